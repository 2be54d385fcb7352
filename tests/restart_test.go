package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// The predicted cache contents of a replica are cleared when it restarts, and not when its connection breaks or
// another replica restarts.
func TestRestartedReplicaIsCold(t *testing.T) {
	c := policy.Config{Policy: policy.Selection{Name: "kv_aware"}}
	r, err := router.FromConfig(&c, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	members := []router.Member{{Attributes: policy.Attributes{ID: "a"}}, {Attributes: policy.Attributes{ID: "b"}}}
	set := func(a, b string) {
		members[0].Instance, members[1].Instance = a, b
		r.Fleet.Set(members)
	}
	set("1", "1")
	r.Fleet.Connect()
	tokens := make([]uint32, 4096)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	matched := func(on string) int {
		q, b := &policy.Request{Pin: ""}, new(router.Reservation)
		for _, rep := range r.View().Replicas() {
			if rep.ID != on {
				q.Exclude = append(q.Exclude, rep.ID)
			}
		}
		q.SetPrompt(policy.Prompt{Tokens: tokens})
		require.NoError(t, r.Reserve(t.Context(), q, b, router.How{NoWait: true}))
		b.Release()
		return b.Decision.MatchedTokens
	}
	for _, id := range []string{"a", "b"} {
		require.Zero(t, matched(id))
		require.Positive(t, matched(id))
	}
	r.Fleet.SetConnected("a", false)
	r.Fleet.SetConnected("a", true)
	require.Positive(t, matched("a"), "a blink")
	set("2", "1")
	require.Positive(t, matched("b"))
	require.Zero(t, matched("a"), "another life")
	require.Positive(t, matched("a"))
}
