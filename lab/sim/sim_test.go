package sim

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/race"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// everyPolicy leaves out those that tests register.
var everyPolicy = Policies()

// Every request of every policy ends once, its figures are consistent, and the same seed gives the same bytes. Run
// itself checks that no reservation is left.
func TestEveryPolicy(t *testing.T) {
	rs := chatsFor(t, 8, race.Of(30*time.Second, 15*time.Second))
	for _, name := range everyPolicy {
		for _, share := range []Share{ShareNone, ShareLoad, ShareBroadcast} {
			t.Run(name+"/"+string(share), func(t *testing.T) {
				t.Parallel()
				c := small(name, 6, share)
				res := runOf(t, rs, c)
				measured, decided, computed := 0, 0, 0
				for i, s := range res.Samples {
					require.NoError(t, s.Err)
					require.Equal(t, rs[i].At, s.At)
					require.Equal(t, rs[i].OutputTokens, s.Output)
					require.Equal(t, rs[i].PromptTokens, s.Prompt)
					require.GreaterOrEqual(t, s.Cached+s.Computed, s.Prompt)
					require.Positive(t, s.TTFT)
					require.GreaterOrEqual(t, s.Latency, s.TTFT)
					require.Equal(t, s.At < c.WarmUp, s.WarmUp)
					if !s.WarmUp {
						measured++
						computed += s.Computed
					}
				}
				for _, n := range res.Decisions {
					decided += n
				}
				for _, n := range res.Loads {
					computed -= n
				}
				require.Equal(t, measured, res.Requests)
				require.Equal(t, measured, decided)
				require.Zero(t, computed)
				require.GreaterOrEqual(t, res.KVImbalance, 1.0)
				require.GreaterOrEqual(t, res.MaxOverMeanLoad, 1.0)

				if share == ShareNone {
					return
				}
				first, err := json.Marshal(res)
				require.NoError(t, err)
				again, err := json.Marshal(runOf(t, rs, c))
				require.NoError(t, err)
				require.Equal(t, string(first), string(again))
			})
		}
	}
}

// With a number at once the next request arrives when one ends, whatever its time.
func TestAtOnce(t *testing.T) {
	rs := chats(t, 8)
	for _, n := range []int{1, 6} {
		c := small("kv_aware", 2, ShareLoad)
		c.AtOnce = n
		res := runOf(t, rs, c)
		var ends []time.Duration
		for i, s := range res.Samples {
			require.NoError(t, s.Err)
			at := time.Duration(0)
			if i >= n {
				at = ends[i-n]
			}
			require.Equal(t, at, s.At, "request %d arrives when all but %d before it have ended", i, n-1)
			k, _ := slices.BinarySearch(ends, s.At+s.Latency)
			ends = slices.Insert(ends, k, s.At+s.Latency)
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	rs := chats(t, 8)
	c := small("power_of_two_choices", 3, ShareNone)
	one := runOf(t, rs, c)
	c.Seed = 2
	require.NotEqual(t, one.TTFT, runOf(t, rs, c).TTFT)
}

// A single client learns nothing from sharing.
func TestOneClient(t *testing.T) {
	rs := chats(t, 12)
	for _, name := range []string{"kv_aware", "least_requests"} {
		alone := runOf(t, rs, small(name, 1, ShareNone))
		require.Equal(t, alone, runOf(t, rs, small(name, 1, ShareLoad)))
	}
}

// Round robin gives all engines the same number, and policies that use load give slow engines less.
func TestMixedFleet(t *testing.T) {
	c := small("least_tokens", 1, ShareNone)
	c.Engines = []enginesim.Config{{KVTokens: 120_000}, {Preset: "2xh100-8b", KVTokens: 120_000}}
	res := runOf(t, chats(t, 20), c)
	slow, fast := res.Loads["r0"]+res.Loads["r2"], res.Loads["r1"]+res.Loads["r3"]
	require.Greater(t, float64(fast), 1.2*float64(slow))
}

// What docs/routing-quality.md shows, on a small fleet: affinity learned from a client's own routes falls with the
// number of clients, a rendezvous order stays, and with slightly old loads all clients pick the same least loaded
// replica.
func TestManyClients(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	rs := chatsFor(t, 12, 2*time.Minute)
	at := func(name string, clients int, share Share) *drive.Result {
		return runOf(t, rs, small(name, clients, share))
	}
	learned, rendezvous := at("smg_cache_aware", 1, ShareNone), at("kv_aware", 1, ShareNone)
	blind := at("round_robin", 1, ShareNone)
	require.Greater(t, rendezvous.CachedTokenRatio, 1.5*blind.CachedTokenRatio)
	require.Greater(t, learned.CachedTokenRatio, 1.5*blind.CachedTokenRatio)
	require.Less(t, at("smg_cache_aware", 32, ShareNone).CachedTokenRatio, 0.8*learned.CachedTokenRatio)
	require.Greater(t, at("kv_aware", 32, ShareNone).CachedTokenRatio, 0.85*rendezvous.CachedTokenRatio)
	shared := at("kv_aware", 32, ShareLoad)
	require.Less(t, shared.TTFT.Mean, 1.2*rendezvous.TTFT.Mean)
	require.Less(t, shared.TTFT.Mean, at("kv_aware", 32, ShareNone).TTFT.Mean)
	require.Greater(t, at("least_requests", 32, ShareLoad).TTFT.Mean, at("least_requests", 32, ShareNone).TTFT.Mean)
}

func TestExactContents(t *testing.T) {
	res := runOf(t, chats(t, 8), small("dynamo_s16", 4, ShareNone))
	blind := runOf(t, chats(t, 8), small("random", 4, ShareNone))
	require.Greater(t, res.CachedTokenRatio, 1.5*blind.CachedTokenRatio)
}

// A request that an engine refuses fails, is counted, and holds nothing.
func TestTooLong(t *testing.T) {
	rs := chats(t, 8)
	rs[3].OutputTokens = 1 << 20
	for i := range rs {
		rs[i].At += 30 * time.Second
	}
	res := runOf(t, rs, small("dynamo", 2, ShareLoad))
	require.Equal(t, 1, res.Errors)
	require.ErrorIs(t, res.FirstError, enginesim.ErrTooLong)
	require.Equal(t, len(rs), res.Requests)
}

func TestText(t *testing.T) {
	rs := []workload.Request{
		{ID: "a", Text: "the quick brown fox jumps over the lazy dog, again and again and again", PromptTokens: 18, OutputTokens: 2},
		{ID: "b", Text: "the quick brown fox jumps over the lazy dog, again and again and again", PromptTokens: 18, OutputTokens: 2, At: time.Second},
	}
	c := small("kv_aware", 3, ShareNone)
	c.WarmUp = 0
	res := runOf(t, rs, c)
	require.Equal(t, 16, res.Samples[1].Cached)
}

func TestAffinity(t *testing.T) {
	rs := chats(t, 8)
	c := small("round_robin", 7, ShareNone)
	for _, affinity := range []bool{false, true} {
		c.Affinity = affinity
		r, err := newRun(NewPrompts(rs), c)
		require.NoError(t, err)
		byClient := map[any]int{}
		clients := map[string]map[any]bool{}
		for i := range rs {
			router := r.client(&rs[i])
			byClient[router]++
			if clients[rs[i].Session] == nil {
				clients[rs[i].Session] = map[any]bool{}
			}
			clients[rs[i].Session][router] = true
		}
		require.Len(t, byClient, 7)
		most := 0
		for _, of := range clients {
			most = max(most, len(of))
		}
		require.Equal(t, affinity, most == 1)
	}
}

func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"replicas: 0":          func(c *Config) { c.Replicas = 0 },
		"clients: 5000":        func(c *Config) { c.Clients = 5000 },
		"interval":             func(c *Config) { c.Interval = 1 },
		"warm-up":              func(c *Config) { c.WarmUp = -1 },
		`share: "all"`:         func(c *Config) { c.Share = "all" },
		`policy "best"`:        func(c *Config) { c.Channel = named("best") },
		"max_ongoing_requests": func(c *Config) { c.Patience = time.Second },
		"patience":             func(c *Config) { c.Channel.MaxOngoingRequests, c.Patience = 3, -1 },
		"load_factor": func(c *Config) {
			c.Channel.Policy = policy.Selection{Name: "kv_aware", Config: json.RawMessage(`{"load_factor":0}`)}
		},
		"blocks of 16 and of 32": func(c *Config) { c.Engines = []enginesim.Config{{}, {BlockSize: 32}} },
		"superblocks": func(c *Config) {
			c.Share, c.Engines = ShareBroadcast, []enginesim.Config{{BlockSize: 48}}
		},
		"preset": func(c *Config) { c.Engines = []enginesim.Config{{Preset: "tpu"}} },
	} {
		c := small("", 2, "")
		change(&c)
		_, err := Run(t.Context(), NewPrompts(nil), c)
		require.ErrorContains(t, err, want)
	}
	require.Zero(t, runOf(t, nil, small("", 2, "")).Requests)
}

func TestCanceledAndProgress(t *testing.T) {
	rs := chatsFor(t, 8, 2*time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	c := small("round_robin", 2, ShareNone)
	c.Progress = func(p drive.Progress) {
		if p.Sent > 0 {
			cancel()
		}
	}
	_, err := Run(ctx, NewPrompts(rs), c)
	require.ErrorIs(t, err, context.Canceled)
}

func TestMerge(t *testing.T) {
	a := &drive.Result{Policy: "p", Requests: 3, Figures: drive.Figures{Goodput: 0.5, TTFT: drive.Distribution{Mean: 10, P99: 20}}, Decisions: map[string]int{"x": 3},
		Simulated: &drive.Simulated{Balance: drive.Balance{KVImbalance: 1, RegretMS: 4}}}
	b := &drive.Result{Policy: "p", Requests: 5, Errors: 1, Figures: drive.Figures{Goodput: 1, TTFT: drive.Distribution{Mean: 30, P99: 20}}, Decisions: map[string]int{"x": 1, "y": 4},
		Simulated: &drive.Simulated{Preemptions: 2, Balance: drive.Balance{KVImbalance: 2, RegretMS: 4}}}
	require.Equal(t, *a, Merge([]*drive.Result{a}))
	m := Merge([]*drive.Result{a, b})
	require.Equal(t, 8, m.Requests)
	require.Equal(t, 1, m.Errors)
	require.Equal(t, 2, m.Preemptions)
	require.Equal(t, map[string]int{"x": 4, "y": 4}, m.Decisions)
	require.Equal(t, drive.Distribution{Mean: 20, P99: 20}, m.TTFT)
	require.Equal(t, 0.75, m.Goodput)
	require.Equal(t, &drive.Spread{Figures: drive.Figures{Goodput: 0.5, TTFT: drive.Distribution{Mean: 20}}, Balance: drive.Balance{KVImbalance: 1}}, m.Spread)
	require.Equal(t, 4.0, m.RegretMS)
	require.Equal(t, 0.5, a.Goodput, "the seeds are left as they are")
}

func BenchmarkRun(b *testing.B) {
	rs := chatsFor(b, 12, 3*time.Minute)
	for _, name := range []string{"round_robin", "kv_aware", "dynamo_s16"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				runOf(b, rs, small(name, 16, ShareLoad))
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(len(rs)), "µs/request")
		})
	}
}
