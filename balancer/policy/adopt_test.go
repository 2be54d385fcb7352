package policy_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

func TestAdoptionConfig(t *testing.T) {
	for text, wrong := range map[string]string{
		`{"mode":"central_only","central_deadline":"50ms"}`: "",
		`{"percentage":0,"shadow_policy":{"kv_aware":{}}}`:  "",
		`{"percentage":"off"}`:                              "",
		`{"mode":"middle"}`:                                 `config: mode: "middle" is not broadcast, central or central_only`,
		`{"central_deadline":"11s"}`:                        "config: central_deadline: 11s is not between 0s and 10s",
		`{"shadow_policy":"kv_aware"}`:                      `config: shadow_policy: it is not an object like {"round_robin": {}}`,
		`{"shadow_policy":{"kv_aware":{},"a":{}}}`:          `config: shadow_policy: 2 are named, a, kv_aware; name one`,
		`{"percentage":101}`:                                "config: percentage: 101 is not between 0 and 100",
		`{"percentage":"5"}`:                                "config: percentage: it is a string, not a number",
		`{"shadow_policy":{"nosuch":{}}}`:                   `config: shadow_policy: "nosuch" is unknown`,
		`{"shadow_policy":{"kv_aware":{"kv_tokens":-1}}}`:   "config: shadow_policy.kv_aware: kv_tokens",
	} {
		_, err := policy.ParseConfig([]byte(text))
		if wrong == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, wrong, text)
	}
}

// A config without adoption fields is sent to clients without them.
func TestAdoptionIsSilent(t *testing.T) {
	c, err := policy.ParseConfig(nil)
	require.NoError(t, err)
	raw, err := json.Marshal(c)
	require.NoError(t, err)
	for _, field := range []string{"mode", "central", "shadow_policy", "percentage"} {
		require.NotContains(t, string(raw), field)
	}
}

func routerOf(t *testing.T, text string, replicas int) *router.Router {
	t.Helper()
	c, err := policy.ParseConfig([]byte(text))
	require.NoError(t, err)
	r, err := router.FromConfig(c, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	var fleet []router.Member
	for i := range replicas {
		fleet = append(fleet, router.Member{Attributes: policy.Attributes{ID: fmt.Sprint("r", i)}})
	}
	r.Fleet.Set(fleet)
	r.Fleet.Connect()
	return r
}

// ask picks once and releases.
func ask(t *testing.T, r *router.Router, q *policy.Request) policy.Decision {
	t.Helper()
	var b router.Reservation
	require.NoError(t, r.Reserve(t.Context(), q, &b, router.How{NoWait: true}))
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{Sent: true, Usage: policy.NoUsage})
	return b.Decision
}

// This percentage of a hundred sessions uses the policy, and it is the same ones in every process and at every
// higher percentage.
func TestPercentage(t *testing.T) {
	mine := func(r *router.Router) (all map[int]bool) {
		all = make(map[int]bool)
		for i := range 1000 {
			if d := ask(t, r, &policy.Request{Session: fmt.Sprint("s", i)}); d.Reason == policy.ReasonRing {
				all[i] = true
			} else {
				require.Equal(t, policy.ReasonRoundRobin, d.Reason)
			}
		}
		return all
	}
	few := mine(routerOf(t, `{"policy":{"consistent_hash":{}},"percentage":20}`, 4))
	require.InDelta(t, 200, len(few), 50)
	require.Equal(t, few, mine(routerOf(t, `{"policy":{"consistent_hash":{}},"percentage":20}`, 3)), "other processes, other fleets")
	r := routerOf(t, `{"policy":{"consistent_hash":{}},"percentage":20}`, 4)
	require.NoError(t, r.Rollout.Set(new(policy.Limit(60))))
	more := mine(r)
	require.InDelta(t, 600, len(more), 60)
	for i := range few {
		require.True(t, more[i], "session %d was the policy's and is not any more", i)
	}
	none := mine(routerOf(t, `{"policy":{"consistent_hash":{}},"percentage":0}`, 4))
	require.Empty(t, none)
	require.NoError(t, r.Rollout.Set(nil))
	require.Len(t, mine(r), 1000)
}

// Every replica gets equally many calls while the kill switch is on, whatever the key, and the policy keeps its
// state for the time after.
func TestKillSwitch(t *testing.T) {
	r := routerOf(t, `{"policy":{"kv_aware":{}}}`, 4)
	prompt := func() *policy.Request {
		q := &policy.Request{Session: "s"}
		q.SetPrompt(policy.Prompt{Tokens: make([]uint32, 1600)})
		return q
	}
	home := ask(t, r, prompt())
	require.Equal(t, home.Replica.ID, ask(t, r, prompt()).Replica.ID)
	require.NoError(t, r.Rollout.Set(new(policy.Limit(policy.Off))))
	require.Zero(t, r.Uses(), "the policy needs no part of a request")
	got := make(map[string]int)
	for range 40 {
		q := prompt()
		d := ask(t, r, q)
		got[d.Replica.ID]++
		require.Equal(t, policy.ReasonRoundRobin, d.Reason)
		require.Nil(t, q.Prepared, "the policy was called")
	}
	require.Equal(t, map[string]int{"r0": 10, "r1": 10, "r2": 10, "r3": 10}, got)
	require.NoError(t, r.Rollout.Set(nil))
	d := ask(t, r, prompt())
	require.Equal(t, home.Replica.ID, d.Replica.ID)
	require.Equal(t, 1600, d.MatchedTokens)
}

// A shadow decides on every request without effect. It learns from the real routes, and predicts its own matches.
// Issue 12.27: it also predicts what was cached on the replica that served the request, whatever policy chose it.
func TestShadowPolicy(t *testing.T) {
	r := routerOf(t, `{"policy":{"round_robin":{}},"shadow_policy":{"kv_aware":{}}}`, 4)
	differs, matched, actual := 0, 0, 0
	for i := range 40 {
		q := &policy.Request{}
		q.SetPrompt(policy.Prompt{Tokens: make([]uint32, 1600)})
		d := ask(t, r, q)
		require.Equal(t, policy.ReasonRoundRobin, d.Reason, "the shadow has no effect")
		name, shadow, cached, ok := router.Shadow(q)
		require.Equal(t, "kv_aware", name)
		require.True(t, ok)
		require.NotNil(t, shadow.Replica)
		if shadow.Replica != d.Replica {
			differs++
		}
		matched += shadow.MatchedTokens
		actual += cached
		if i < 4 { // the first request of each replica
			require.Zero(t, cached)
		} else {
			require.Equal(t, 1600, cached, "it has been there")
		}
		if i > 0 {
			require.Positive(t, shadow.MatchedTokens, "it learns where requests went")
		}
	}
	require.Positive(t, differs)
	require.Positive(t, matched)
	require.Equal(t, 36*1600, actual)

	q := new(policy.Request)
	ask(t, routerOf(t, `{}`, 1), q)
	_, _, _, ok := router.Shadow(q)
	require.False(t, ok)
}

// The other way round: a policy that uses prompts with a shadow that does not.
func TestShadowOfAnother(t *testing.T) {
	r := routerOf(t, `{"policy":{"kv_aware":{}},"shadow_policy":{"round_robin":{}}}`, 4)
	differs, actual := 0, 0
	for range 8 {
		q := &policy.Request{}
		q.SetPrompt(policy.Prompt{Text: "the same for all, and long enough to be more than a block of text, which it is by now"})
		d := ask(t, r, q)
		_, shadow, cached, ok := router.Shadow(q)
		require.True(t, ok)
		require.Zero(t, shadow.MatchedTokens)
		if shadow.Replica != d.Replica {
			differs++
		}
		actual += cached
	}
	require.Equal(t, 6, differs, "turns meet one replica of four two times of eight")
	require.Positive(t, actual)
	require.NoError(t, r.Rollout.Set(new(policy.Limit(policy.Off))))
	q := new(policy.Request)
	ask(t, r, q)
	_, _, _, ok := router.Shadow(q)
	require.False(t, ok, "the kill switch is the shadow's too")
}
