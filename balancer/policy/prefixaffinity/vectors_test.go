package prefixaffinity

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// rays returns a Router with the policy over some replicas.
func rays(t *testing.T, c Config, ids ...string) (*router.Router, *affinity) {
	p := newPolicy(t, c)
	return policytest.NewRouter(t, p.policy(), policytest.Replicas(ids...)), p
}

// hold makes a replica hold prompts.
func hold(t *testing.T, r *router.Router, p *affinity, id string, prompts ...string) {
	t.Helper()
	for _, s := range prompts {
		q := text(s)
		routertest.Choose(t, r, q)
		p.routed(q, policy.To(r.View().ByID(id), ""))
	}
}

// goes is where a prompt goes, "" if it waits.
func goes(t *testing.T, r *router.Router, prompt string) string {
	t.Helper()
	if rep := routertest.Choose(t, r, text(prompt)).Replica; rep != nil {
		return rep.ID
	}
	return ""
}

// The cases of Ray's test_prefix_aware_request_router that state where a request goes. The others have no counterpart
// here:
//
//   - 0.5 s of delay in the tree does not block the loop, on_request_routed returns at once: the tree is in the process.
//   - the default threshold sends no probes and one lookup; cached queue lengths beyond the threshold avoid the lookup:
//     the loads are there, no replica is probed.
//   - the eviction loop starts at update_replicas: what is too much is forgotten as a prompt is added.
//   - two deployments have trees of their own: each policy has its own.
//   - what of a chat is the prompt: the dialect's matter.
func TestRaysPrefixRouter(t *testing.T) {
	t.Run("no prompt: least busy", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		policytest.Fill(t, r, "r1", 5)
		for range 10 {
			b := policytest.Pick(t, r, &policy.Request{Session: "s"})
			require.Equal(t, "r2", b.Decision.Replica.ID)
			require.Equal(t, policy.ReasonNoKey, b.Decision.Reason)
			b.Release()
		}
		require.Zero(t, p.of("r1").chars.Load())
		require.Zero(t, p.of("r2").chars.Load())
	})
	t.Run("imbalanced: the match is ignored", func(t *testing.T) {
		r, p := rays(t, Config{ImbalancedThreshold: 2}, "r1", "r2")
		hold(t, r, p, "r2", "hello world")
		policytest.Fill(t, r, "r2", 2)
		require.Equal(t, "r2", goes(t, r, "hello world"), "the threshold itself is balanced")
		policytest.Fill(t, r, "r2", 8)
		for range 10 {
			require.Equal(t, "r1", goes(t, r, "hello world"))
		}
	})
	t.Run("any imbalance", func(t *testing.T) {
		r, p := rays(t, Config{ImbalancedThreshold: 0.5}, "r1", "r2")
		hold(t, r, p, "r2", "hello world")
		require.Equal(t, "r2", goes(t, r, "hello world"))
		policytest.Fill(t, r, "r2", 1)
		require.Equal(t, "r1", goes(t, r, "hello world"))
	})
	t.Run("high match", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		hold(t, r, p, "r2", "Hello")
		require.Equal(t, "r2", goes(t, r, "Hello world"))
	})
	t.Run("low match: the smallest", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		hold(t, r, p, "r1", "hi")
		hold(t, r, p, "r2", "longtext")
		require.EqualValues(t, 2, p.of("r1").chars.Load())
		require.EqualValues(t, 8, p.of("r2").chars.Load())
		require.Equal(t, "r1", goes(t, r, "z"))
	})
	t.Run("the smallest after forgetting", func(t *testing.T) {
		r, p := rays(t, Config{EvictionThresholdChars: 10, EvictionTargetChars: 8}, "r1", "r2")
		hold(t, r, p, "r1", "hello")
		hold(t, r, p, "r2", "abcdefghi", "1234")
		require.EqualValues(t, 4, p.of("r2").chars.Load())
		require.Equal(t, "r2", goes(t, r, "z"))
	})
	t.Run("both empty: both are the smallest", func(t *testing.T) {
		r, _ := rays(t, Config{}, "r1", "r2")
		require.Equal(t, "r1", goes(t, r, "hello"))
		policytest.Fill(t, r, "r1", 1)
		require.Equal(t, "r2", goes(t, r, "hello"))
	})
	t.Run("what is routed is inserted", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1")
		for range 3 {
			policytest.Pick(t, r, text("hello"))
		}
		require.EqualValues(t, 5, p.of("r1").chars.Load())
	})
	t.Run("removed during the lookup", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		hold(t, r, p, "r2", "hello world")
		q := text("hello world")
		r.Prepare(t.Context(), q)
		policytest.SetFleet(r, policytest.Replicas("r1"))
		require.Equal(t, "r1", r.Policy().Choose(q, r.View()).Replica.ID)
	})
	t.Run("the rate is compared by dividing", func(t *testing.T) {
		r, p := rays(t, Config{MatchRateThreshold: 0.07}, "r1", "r2")
		hold(t, r, p, "r2", "1234567-")
		require.Equal(t, "r2", goes(t, r, "1234567"+strings.Repeat("x", 93)), "0.07*100 > 7")
	})
	t.Run("a full holder is waited for", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		hold(t, r, p, "r2", "hello world")
		policytest.SetFleet(r, policytest.Bounded(policytest.Replicas("r1", "r2"), 1))
		policytest.Fill(t, r, "r2", 1)
		require.Empty(t, goes(t, r, "hello world"), "r1 has room")
		require.Equal(t, "r1", goes(t, r, "z"))
	})
	t.Run("characters are code points", func(t *testing.T) {
		r, p := rays(t, Config{}, "r1", "r2")
		hold(t, r, p, "r1", "日本語")
		hold(t, r, p, "r2", "four")
		require.Equal(t, "r1", goes(t, r, "z"), "three are fewer than four")
	})
}

// keys are the hashes of a prompt.
func keys(s string) []uint64 { return read(text(s)).path }

// matched is how many characters a tree has of a prompt, by tenant.
func matched(x *tree, prompt string) map[string]int {
	depths := map[string]int{}
	for _, h := range x.match(keys(prompt), nil) {
		depths[h.id] = h.depth
	}
	return depths
}

// The cases of Ray's tests of its PrefixTree.
func TestRaysPrefixTree(t *testing.T) {
	t.Run("match", func(t *testing.T) {
		x, t1, t2 := new(tree), &tenant{id: "t1"}, &tenant{id: "t2"}
		require.Empty(t, matched(x, "hello"))
		x.insert(t1, keys("helloworld"), 1)
		x.insert(t2, keys("hellothere"), 1)
		require.Equal(t, map[string]int{"t1": 5, "t2": 10}, matched(x, "hellothereextra"))
		require.Empty(t, matched(x, "foobar"))
		x.insert(t1, keys("apple"), 1)
		x.insert(t2, keys("apricot"), 1)
		require.Equal(t, map[string]int{"t1": 4, "t2": 2}, matched(x, "application"))
	})
	t.Run("counts", func(t *testing.T) {
		x, t1, t2 := new(tree), &tenant{id: "t1"}, &tenant{id: "t2"}
		for range 2 {
			x.insert(t1, keys("helloworld"), 1)
		}
		x.insert(t2, keys("hellothere"), 1)
		x.insert(t2, keys("hellothomas"), 1)
		require.EqualValues(t, []int64{10, 14}, []int64{t1.chars.Load(), t2.chars.Load()})
		x.shrink(t1, 1)
		require.Zero(t, t1.chars.Load(), "of one insertion")
		x.shrink(t2, 1)
		require.EqualValues(t, 11, t2.chars.Load(), "ere, which the last insertion did not use")
		x.shrink(t2, 1)
		require.Zero(t, t2.chars.Load())
		require.Zero(t, x.nodes)
		require.Zero(t, x.chars)
	})
	t.Run("eviction", func(t *testing.T) {
		for chars, left := range map[int64]int64{1: 5, 2: 3, 4: 0, 100: 0} {
			x, t1 := new(tree), &tenant{id: "t1"}
			for _, s := range []string{"a", "bb", "ccc"} {
				x.insert(t1, keys(s), 1)
			}
			x.shrink(t1, chars)
			require.Equal(t, left, t1.chars.Load())
		}
	})
	t.Run("remove", func(t *testing.T) {
		x, t1, t2 := new(tree), &tenant{id: "t1"}, &tenant{id: "t2"}
		x.insert(t1, keys("hello"), 1)
		x.insert(t1, keys("foobar"), 1)
		x.insert(t2, keys("help"), 1)
		require.EqualValues(t, 11, t1.chars.Load())
		x.remove(t1)
		require.Equal(t, map[string]int{"t2": 4}, matched(x, "help"))
		require.EqualValues(t, 4, x.chars)
	})
}

func TestBoundsNameTheField(t *testing.T) {
	for want, configs := range map[string][]Config{
		"": {
			{}, Config{}.WithDefaults(), {MatchRateThreshold: policy.Off, ImbalancedThreshold: 0.5}, {MatchRateThreshold: 1},
			{EvictionThresholdChars: 1}, {EvictionThresholdChars: maxChars, EvictionTargetChars: maxChars},
		},
		"match_rate_threshold":     {{MatchRateThreshold: -0.1}, {MatchRateThreshold: 1.1}, {MatchRateThreshold: policy.Limit(math.NaN())}},
		"imbalanced_threshold":     {{ImbalancedThreshold: -2}, {ImbalancedThreshold: policy.Limit(math.NaN())}},
		"eviction_threshold_chars": {{EvictionThresholdChars: -1}, {EvictionThresholdChars: maxChars + 1}},
		"eviction_target_chars":    {{EvictionTargetChars: -1}, {EvictionTargetChars: 400_001}},
	} {
		for _, c := range configs {
			if _, err := New(c); want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, want)
			}
		}
	}
}

// A replica that comes back under its id holds nothing.
func TestReplicaThatComesBackHoldsNothing(t *testing.T) {
	r, p := rays(t, Config{}, "r1", "r2")
	hold(t, r, p, "r1", "hello")
	policytest.SetFleet(r, policytest.Replicas("r2"))
	require.Zero(t, p.tree.nodes)
	policytest.SetFleet(r, policytest.Replicas("r1", "r2"))
	require.Zero(t, p.of("r1").chars.Load())
}

// All replicas together hold maxChars.
func TestTheTreeIsBounded(t *testing.T) {
	const replicas, each = 64, 1 << 17
	p := newPolicy(t, Config{EvictionThresholdChars: maxChars})
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(replicas))
	tokens := make([]uint32, each)
	for i := range 6 * replicas {
		tokens[0] = uint32(i)
		q := &policy.Request{Pin: r.View().Replicas()[i%replicas].ID}
		q.SetPrompt(policy.Prompt{Tokens: tokens})
		policytest.Pick(t, r, q)
		require.LessOrEqual(t, p.tree.chars, int64(maxChars))
	}
	for _, held := range p.tenants {
		require.LessOrEqual(t, held.chars.Load(), int64(maxChars/replicas))
	}
}
