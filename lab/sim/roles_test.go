package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/sim/baseline"
	"github.com/warmpath/warmpath/lab/workload"
)

// split is a fleet in which two engines prefill for two others.
func split(policyName, rule string, clients int) Config {
	c := small(policyName, clients, ShareLoad)
	c.Prefill, c.Decode, c.Split = 2, 2, rule
	return c
}

// policies are warmpath's own, without those that tests register.
var policies = policy.Names()

// A split request ends once on a prefill engine and once on a decode engine, and its KV moves. The run itself
// checks that no KV and no reservation is left.
func TestLegs(t *testing.T) {
	rs := chatsFor(t, 8, 15*time.Second)
	for _, name := range policies {
		for _, rule := range []string{baseline.SplitCost, baseline.SplitNever, "always", "uncached_512"} {
			t.Run(name+"/"+rule, func(t *testing.T) {
				t.Parallel()
				r, err := finished(t.Context(), NewPrompts(rs), split(name, rule, 6))
				require.NoError(t, err)
				var prefill, serve, received int
				for i, m := range r.machines {
					s, l := m.engine.Stats(), m.engine.Load()
					require.Zero(t, l.Running+l.Waiting+l.Held)
					require.Equal(t, s.Submitted, s.Finished)
					if received += s.ReceivedTokens; i < r.Prefill {
						require.Equal(t, s.Finished, s.OutputTokens, "one token of each")
						prefill += s.Finished
					} else {
						serve += s.Finished
					}
				}
				require.Equal(t, len(rs), serve, "each once")
				require.Equal(t, prefill > 0, received > 0)
				res := r.result()
				for i, s := range res.Samples {
					require.NoError(t, s.Err)
					require.Equal(t, rs[i].OutputTokens, s.Output)
					require.GreaterOrEqual(t, s.Cached+s.Computed, s.Prompt)
				}
				switch rule {
				case "always":
					require.Equal(t, len(rs), prefill)
					require.Equal(t, 1.0, res.Split)
				case baseline.SplitNever:
					require.Zero(t, res.Split)
				}
			})
		}
	}
}

// A threshold splits requests with enough uncached tokens, and no more than the rule that splits all.
func TestSplitRules(t *testing.T) {
	d := policy.Decision{MatchedTokens: 1000}
	for name, want := range map[string][3]bool{ // of 1,015, 1,600 and 4,000 tokens
		"always": {true, true, true}, "llmd": {false, true, true}, "uncached_512": {false, true, true},
		"uncached_2048": {false, false, true}, "dynamo": {false, false, true},
	} {
		rule := baseline.Split(name)
		for i, prompt := range []int{1015, 1600, 4000} {
			require.Equal(t, want[i], rule(prompt, d), "%s: %d", name, prompt)
		}
	}
	require.True(t, baseline.Split("uncached_2048")(4000, policy.Decision{MatchedTokens: 1500}))
	require.False(t, baseline.Split("dynamo")(4000, policy.Decision{MatchedTokens: 1500}), "0.625 of the prompt")
	require.Nil(t, baseline.Split(baseline.SplitCost))
}

// The first token waits for the transfer, and a prefill on another engine does not delay the tokens.
func TestTransfer(t *testing.T) {
	rs := []workload.Request{
		{ID: "a", PromptTokens: 1000, OutputTokens: 500, Segments: []workload.Segment{{Seed: 1, Len: 1000}}},
		{ID: "b", PromptTokens: 80_000, OutputTokens: 2, At: time.Second,
			Segments: []workload.Segment{{Seed: 2, Len: 80_000}}},
	}
	run := func(prefill, decode int) (a, b time.Duration) {
		c := Config{Replicas: max(prefill+decode, 1), Clients: 1, Prefill: prefill, Decode: decode, Split: "always",
			Channel: named("round_robin"), Seed: 1}
		samples := runOf(t, rs, c).Samples
		return samples[0].TPOT, samples[1].TTFT
	}
	together, soon := run(0, 0)
	apart, late := run(1, 1)
	require.Greater(t, together, apart*3/2)
	e, err := enginesim.New(enginesim.Config{})
	require.NoError(t, err)
	require.InDelta(t, e.Transfer(80_000).Seconds(), (late - soon).Seconds(), 0.1)
}

// A request that only the engine of its decode leg refuses ends there, and the KV of its prompt is freed.
func TestDecodeLegIsRefused(t *testing.T) {
	rs := []workload.Request{
		{ID: "a", PromptTokens: 119_000, OutputTokens: 5000, Segments: []workload.Segment{{Seed: 1, Len: 119_000}}},
	}
	r, err := finished(t.Context(), NewPrompts(rs), split("round_robin", "always", 1))
	require.NoError(t, err)
	require.ErrorIs(t, r.samples[0].Err, enginesim.ErrTooLong)
	for _, m := range r.machines {
		require.Zero(t, m.engine.Load().UsedTokens)
	}
}

func TestRoleMistakes(t *testing.T) {
	for field, adjust := range map[string]func(*Config){
		"roles":  func(c *Config) { c.Prefill = 4 },
		"split":  func(c *Config) { c.Split = "half" },
		"policy": func(c *Config) { c.Channel = named("dynamo") },
	} {
		c := split("round_robin", "", 1)
		adjust(&c)
		require.ErrorContains(t, c.Check(), field)
	}
}
