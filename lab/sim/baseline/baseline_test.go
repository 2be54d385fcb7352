package baseline

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	routerload "github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/lab/enginesim"
)

func TestNames(t *testing.T) {
	engines := []enginesim.Config{{KVTokens: 160_000, BlockSize: 16}}
	for _, name := range Names() {
		f := NewFleet(name, 2, engines)
		require.Equal(t, name, New(name, f).Name)
	}
	require.Nil(t, New("round_robin", NewFleet("round_robin", 2, engines)).Choose)
}

func TestRandomIsEven(t *testing.T) {
	w := newWorld(t, "random", 4)
	n := map[string]int{}
	for range 4000 {
		n[w.at(1, 8)]++
	}
	for id, k := range n {
		require.InDelta(t, 1000, k, 150, id)
	}
	require.Len(t, n, 4)
}

func TestLeast(t *testing.T) {
	for name, want := range map[string]string{
		"least_requests": "r1", // one request, however long
		"least_tokens":   "r0", // two short ones are less load
	} {
		w := newWorld(t, name, 2)
		w.pick("r0", 1, 100)
		w.pick("r0", 2, 100)
		w.pick("r1", 3, 5000)
		require.Equal(t, want, w.at(4, 10), name)
		w.router.Load.SetPeers([]routerload.Peer{{ID: want, Ongoing: 20}})
		require.NotEqual(t, want, w.at(4, 10), "%s: what others do counts too", name)
	}
}

func TestSMG(t *testing.T) {
	for _, name := range []string{"smg_cache_aware_2025", "smg_cache_aware"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, name, 3)
			first := w.pick("", 1, 320)
			require.Equal(t, policy.ReasonLeastLoaded, first.Decision.Reason)
			home := first.Decision.Replica.ID
			again := w.pick("", 1, 320, 2, 320)
			require.Equal(t, home, again.Decision.Replica.ID)
			require.Equal(t, policy.ReasonPrefixMatch, again.Decision.Reason)
			require.Equal(t, 320, again.Decision.MatchedTokens)
			short := w.pick("", 1, 320, 3, 800) // 0.29 of it is cached
			require.Equal(t, policy.ReasonLeastLoaded, short.Decision.Reason)
			require.NotEqual(t, home, short.Decision.Replica.ID, "it has two requests, the others none")

			// A hot prefix stays until the busiest is 65 above the idlest, or above the mean of three by more than 64.
			w = newWorld(t, name, 3)
			home = w.at(1, 320)
			n := 1
			for w.at(1, 320) == home {
				n++
			}
			require.Equal(t, map[string]int{"smg_cache_aware_2025": 65, "smg_cache_aware": 97}[name], n)
		})
	}
}

// Until August 2026 an unbalanced fleet lost all affinity; since then the replica that took the spill holds the
// prefix too.
func TestSMGSpill(t *testing.T) {
	w := newWorld(t, "smg_cache_aware", 3)
	for range 99 {
		w.pick("", 1, 320)
	}
	require.Equal(t, policy.ReasonPrefixMatch, w.pick("", 1, 320).Decision.Reason, "the second holder is idle")
	require.Equal(t, policy.ReasonLeastLoaded, w.pick("", 2, 320).Decision.Reason)
}

func TestLLMD(t *testing.T) {
	w := newWorld(t, "llmd_default", 3)
	home := w.pick("", 1, 640)
	for range 20 {
		d := w.pick("", 1, 640).Decision
		require.Equal(t, home.Decision.Replica, d.Replica, "3 for the prefix, the rest is equal")
		require.Equal(t, 640, d.MatchedTokens)
	}
	k := home.Decision.Replica.Index()
	for i := range w.fleet.seen {
		w.fleet.seen[i] = enginesim.Load{TotalTokens: 100}
	}
	w.fleet.seen[k].Waiting = 1 // one request more is the whole of the queue's score
	require.Equal(t, k, w.pick("", 1, 640).Decision.Replica.Index(), "2 less, but 3 for the prefix")
	w.fleet.seen[k].UsedTokens = 60
	require.NotEqual(t, k, w.pick("", 1, 640).Decision.Replica.Index(), "3.2 less")
	require.Empty(t, w.pick("", 9, 10).q.Prepared.(*found).blocks, "less than a block has no prefix")

	for range 50 { // the score uses the engines' state, not reservations
		e := w.engines[0]
		_, err := e.Submit(w.now, enginesim.FromTokens("x", prompt(1, 4000), 1, e.Config().BlockSize, 0))
		require.NoError(t, err)
	}
	w.fleet.Scrape()
	require.Positive(t, w.fleet.seen[0].Waiting)
	require.Zero(t, w.fleet.seen[1].Waiting)
}

func TestDynamoCost(t *testing.T) {
	// The first 62 blocks of the prompt of 62.5 are cached on r0.
	for name, want := range map[string]string{
		"dynamo":     "r1", // 0.5 + 163 + 1 against 62.5 + 63
		"dynamo_s16": "r0", // 8 + 163 + 1 against 1000 + 63
	} {
		w := newWorld(t, name, 2)
		w.compute(0, 1, 1000)
		require.Equal(t, "r0", w.at(1, 1000))

		w = newWorld(t, name, 2)
		w.compute(0, 1, 1000)
		c := w.pick("", 1, 1000, 2, 1600)
		require.Equal(t, "r0", c.Decision.Replica.ID)
		require.Equal(t, 992, c.Decision.MatchedTokens, "full blocks")
		other := w.pick("", 1, 1000)
		require.Equal(t, "r1", other.Decision.Replica.ID, "100.5 blocks wait on r0")
		w.end(other)
		c.PrefillDone()
		require.Equal(t, want, w.at(1, 1000), name)
	}
}

// A cached prompt goes to the replica that holds it until the product of its work and its requests is larger.
func TestLMetric(t *testing.T) {
	w := newWorld(t, "lmetric_queued", 2)
	w.compute(0, 1, 1600)
	c := w.pick("", 1, 1600, 2, 160)
	require.Equal(t, "r0", c.Decision.Replica.ID, "160 × 1 against 1760 × 1")
	require.Equal(t, 1600, c.Decision.MatchedTokens)
	c.PrefillDone()
	require.Equal(t, "r0", w.at(1, 1600, 3, 160), "160 × 2 against 1760 × 1")
	for range 10 {
		w.pick("r0", 4, 10).PrefillDone()
	}
	require.Equal(t, "r1", w.at(1, 1600, 5, 160), "160 × 12 against 1760 × 1")
}

// Decode blocks are counted once for all requests that share them, and freed with the last.
func TestDynamoActive(t *testing.T) {
	var p *dynamo
	w := worldOf(t, "dynamo", 1, func(f *Fleet) policy.Policy {
		p = newDynamo(f, 1)
		return p.policy()
	})
	a, b := w.pick("", 1, 160, 2, 40), w.pick("", 1, 160, 3, 32)
	require.Equal(t, 10+2+2+1, p.active[0].blocks, "the tail of the first is a block")
	require.Equal(t, 12, p.active[0].shared(a.q.Prepared.(*found).blocks))
	w.end(a)
	require.Equal(t, 12, p.active[0].blocks)
	require.Equal(t, 10, p.active[0].shared(a.q.Prepared.(*found).blocks))
	w.end(b)
	require.Zero(t, p.active[0].blocks)
}

// The events report what the engine then finds, also after it has evicted.
func TestContentsAreExact(t *testing.T) {
	w := newWorld(t, "dynamo", 1)
	rnd := rand.New(rand.NewPCG(8, 8))
	hits := 0
	for range 300 {
		segments := []int{rnd.IntN(3), 64 * (1 + rnd.IntN(4)), 10 + rnd.IntN(20), 1000 * (1 + rnd.IntN(9)), 1000 + rnd.IntN(9000), 30 + rnd.IntN(4000)}
		blocks := kvindex.AppendTokens(nil, prompt(segments...), 16, kvindex.SeedFor("", "", ""))
		depth := make([]int, 1)
		w.fleet.cached(blocks, depth)
		known := depth[0] * 16
		cached := w.compute(0, segments...)
		if known == len(prompt(segments...)) {
			known -= 16 // an engine computes at least one token
		}
		require.Equal(t, cached, known)
		hits += cached
	}
	require.Positive(t, hits)
}

// Blocks under way are counted as by a map, whatever comes and goes.
func TestActive(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	a, want := new(active), map[uint64]int{}
	var there []*found
	for range 3000 {
		if len(there) > 0 && rnd.IntN(2) == 0 {
			i := rnd.IntN(len(there))
			a.remove(there[i])
			for _, b := range there[i].blocks {
				if want[b]--; want[b] == 0 {
					delete(want, b)
				}
			}
			there = append(there[:i], there[i+1:]...)
		} else {
			tokens := prompt(rnd.IntN(2), 16*rnd.IntN(4), rnd.IntN(3), 16*rnd.IntN(4), rnd.IntN(3), 16*rnd.IntN(4))
			s := &found{blocks: kvindex.AppendTokens(nil, tokens, 16, 1)}
			shared := 0
			for shared < len(s.blocks) && want[s.blocks[shared]] > 0 {
				shared++
			}
			require.Equal(t, shared, a.shared(s.blocks))
			a.add(s)
			for _, b := range s.blocks {
				want[b]++
			}
			there = append(there, s)
		}
		require.Equal(t, len(want), a.blocks)
	}
}
