package consistenthash

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func TestConfigBounds(t *testing.T) {
	for name, edit := range map[string]func(*Config){
		"num_virtual_nodes":     func(c *Config) { c.NumVirtualNodes = maxVirtualNodes + 1 },
		"num_fallback_replicas": func(c *Config) { c.NumFallbackReplicas = math.MinInt },
		"max_load_factor":       func(c *Config) { c.MaxLoadFactor = 0.99 },
	} {
		c := Config{}.WithDefaults()
		edit(&c)
		_, err := New(c)
		require.ErrorContains(t, err, name)
	}
	for _, f := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		_, err := New(Config{NumVirtualNodes: 1, MaxLoadFactor: f})
		require.Errorf(t, err, "%v", f)
	}
}

// Whatever the history of a fleet, its ring is that of a new one.
func TestRingDoesNotDependOnHistory(t *testing.T) {
	for _, weighted := range []bool{false, true} {
		c := Config{}.WithDefaults()
		c.NumVirtualNodes, c.Weighted = 7, weighted
		p := with(c)
		r := policytest.NewRouter(t, p.policy(), nil)
		rnd := routertest.Seeded(3)
		pool := policytest.Fleet(20)
		for range 200 {
			rnd.Shuffle(len(pool), func(a, b int) { pool[a], pool[b] = pool[b], pool[a] })
			fleet := slices.Clone(pool[:1+rnd.IntN(len(pool))])
			for i := range fleet {
				fleet[i].Weight = float64(rnd.IntN(4)) / 2
			}
			policytest.SetFleet(r, fleet)
			policytest.Route(t, r, policytest.Session("any")) // reads new weights

			fresh := with(c)
			policytest.NewRouter(t, fresh.policy(), fleet)
			got, want := p.ring, fresh.ring
			require.Len(t, got, len(want))
			for i := range got {
				require.Equal(t, want[i].hash, got[i].hash)
				require.Equal(t, want[i].owner.id, got[i].owner.id)
			}
			require.Len(t, p.members, len(fleet))
		}
	}
}

// Points with the same hash are in the order of their ids, in whatever order they came.
func TestRingBreaksTiesByID(t *testing.T) {
	a, b, c := &member{id: "a"}, &member{id: "b"}, &member{id: "c"}
	old := ring{{5, b}, {9, b}}
	require.Equal(t, ring{{5, a}, {5, b}, {5, c}, {9, b}, {9, c}}, old.merge([]point{{5, a}, {5, c}, {9, c}}))
	b.gone = true
	require.Equal(t, ring{{5, a}}, old.merge([]point{{5, a}}))
}

// Stickiness: of N replicas one joins or leaves, and about 1/N of the sessions move.
func TestStickiness(t *testing.T) {
	keys := sessions(4000)
	for _, n := range []int{2, 8, 40} {
		fleet := policytest.Fleet(n + 1)
		r := policytest.NewRouter(t, build(), fleet[:n])
		before := owners(t, r, keys)
		require.Equal(t, before, owners(t, r, keys))
		policytest.SetFleet(r, fleet)
		moved := 0
		for k, id := range owners(t, r, keys) {
			if id != before[k] {
				require.Equal(t, fleet[n].ID, id)
				moved++
			}
		}
		share := float64(len(keys)) / float64(n+1)
		require.InDelta(t, share, float64(moved), share*0.5)
		policytest.SetFleet(r, fleet[:n])
		require.Equal(t, before, owners(t, r, keys))
	}
}

// Agreement: the order of the fleet, and the connections that a client has lost, change nothing in the order of
// the others.
func TestAgreement(t *testing.T) {
	fleet := policytest.Fleet(12)
	a, b := with(Config{}.WithDefaults()), with(Config{}.WithDefaults())
	policytest.NewRouter(t, a.policy(), fleet)
	mixed := slices.Clone(fleet)
	slices.Reverse(mixed)
	r := policytest.NewRouter(t, b.policy(), mixed)
	down := map[string]bool{"r3": true, "r7": true}
	for id := range down {
		r.Fleet.SetConnected(id, false)
	}
	for _, k := range sessions(500) {
		ids := order(a, k, len(fleet))
		require.Equal(t, ids, order(b, k, len(fleet)))
		left := slices.DeleteFunc(ids, func(id string) bool { return down[id] })
		require.Equal(t, left[0], policytest.Route(t, r, policytest.Session(k)))
	}
}

func TestReplicasThatCannotServeUseUpNoFallback(t *testing.T) {
	for name, spoil := range map[string]func(*router.Router, *policy.Request, []router.Member, string){
		"disconnected": func(r *router.Router, _ *policy.Request, _ []router.Member, id string) {
			r.Fleet.SetConnected(id, false)
		},
		"excluded": func(_ *router.Router, q *policy.Request, _ []router.Member, id string) {
			q.Exclude = append(q.Exclude, id)
		},
		"draining": func(r *router.Router, _ *policy.Request, fleet []router.Member, id string) {
			fleet[slices.IndexFunc(fleet, func(m router.Member) bool { return m.ID == id })].Draining = true
			policytest.SetFleet(r, fleet)
		},
		"other model": func(r *router.Router, q *policy.Request, fleet []router.Member, id string) {
			q.Model = "m"
			for i := range fleet {
				if fleet[i].ID == id {
					fleet[i].Models = []string{"other"}
				} else if fleet[i].Models == nil {
					fleet[i].Models = []string{"m"}
				}
			}
			policytest.SetFleet(r, fleet)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := with(Config{}.WithDefaults())
			fleet := policytest.Bounded(policytest.Fleet(8), 1)
			r := policytest.NewRouter(t, p.policy(), fleet)
			ids := order(p, "user_42", 8)
			q := policytest.Session("user_42")
			for _, id := range ids[:4] {
				spoil(r, q, fleet, id)
			}
			for place := 4; place < 7; place++ {
				b := policytest.Pick(t, r, q)
				require.Equal(t, ids[place], b.Decision.Replica.ID)
				require.Equal(t, place, b.Decision.Place)
				require.Equal(t, policy.ReasonRingFallback, b.Decision.Reason)
			}
			var b router.Reservation
			require.ErrorIs(t, r.Reserve(context.Background(), q, &b, router.How{NoWait: true}), router.ErrFull)
			require.Len(t, routertest.Choose(t, r, q).WaitFor, 3)
		})
	}
}

func TestRetryFollowsTheOrder(t *testing.T) {
	p := with(Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(8))
	ids := order(p, "user_42", 3)
	q := policytest.Session("user_42")
	for place, id := range append(ids, ids[0]) { // then the first again
		b := policytest.Pick(t, r, q)
		require.Equal(t, id, b.Decision.Replica.ID)
		if place > 0 {
			require.Equal(t, policy.ReasonRetry, b.Decision.Reason)
		}
		router.NextAttempt(q, b.Decision.Replica)
		b.Release()
	}
}

// Issue 12.19: a request without session and id has a position on the ring like any other, and keeps it for all
// its attempts.
func TestNoKeyHasARandomPlaceOnTheRing(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(3))
	policytest.Fill(t, r, "r0", 5) // load does not matter
	firsts := make(map[string]int)
	for range 300 {
		q := &policy.Request{}
		d := routertest.Decide(t, r, q)
		require.Equal(t, policy.ReasonNoKey, d.Reason)
		require.Zero(t, d.Place)
		firsts[d.Replica.ID]++
		require.Equal(t, d.Replica.ID, policytest.Route(t, r, q), "the same request")
	}
	require.Len(t, firsts, 3)
	for id, n := range firsts {
		require.Greater(t, n, 50, id)
	}
}

// One session alone cannot load a replica above the bound, and hardly any other sessions move.
func TestBoundedLoad(t *testing.T) {
	for _, factor := range []float64{1, 1.25, 2} {
		c := Config{}.WithDefaults()
		c.MaxLoadFactor = factor
		r := policytest.NewRouter(t, with(c).policy(), policytest.Fleet(10))
		for i := range 1000 {
			key := "hot"
			if i%2 == 0 {
				key = fmt.Sprintf("sess_%04d", i)
			}
			policytest.Pick(t, r, policytest.Session(key))
			for id, n := range routertest.Ongoing(r) {
				require.LessOrEqualf(t, float64(n), math.Ceil(factor*float64(i+1)/10), "%s after %d", id, i+1)
			}
		}
	}
}

func TestBoundedLoadWeighted(t *testing.T) {
	c := Config{}.WithDefaults()
	c.MaxLoadFactor, c.Weighted = 1.25, true
	fleet := policytest.Fleet(4)
	fleet[0].Weight = 3
	r := policytest.NewRouter(t, with(c).policy(), fleet)
	for range 600 {
		policytest.Pick(t, r, policytest.Session("hot"))
	}
	for id, n := range routertest.Ongoing(r) {
		share := 100.0
		if id == "r0" {
			share = 300
		}
		require.LessOrEqualf(t, float64(n), 1.25*share+1, id)
	}
}

// When all eligible replicas are above the bound, the first of them serves.
func TestBoundedLoadIsNoReasonToWait(t *testing.T) {
	c := Config{}.WithDefaults()
	c.MaxLoadFactor = 1
	p := with(c)
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(4))
	ids := order(p, "user_42", 4)
	policytest.Fill(t, r, ids[0], 5)
	q := policytest.Session("user_42")
	q.Exclude = ids[1:]
	require.Equal(t, ids[0], policytest.Route(t, r, q))
	require.Equal(t, ids[1], policytest.Route(t, r, policytest.Session("user_42")))
}

func TestWeightedShares(t *testing.T) {
	c := Config{}.WithDefaults()
	c.Weighted = true
	fleet := policytest.Fleet(4)
	fleet[0].Weight = 3
	r := policytest.NewRouter(t, with(c).policy(), fleet)
	owned := make(map[string]int)
	before := owners(t, r, sessions(6000))
	for _, id := range before {
		owned[id]++
	}
	require.InDelta(t, 3000, owned["r0"], 450)

	fleet[0].Weight = 0.5 // gives sessions away, takes none
	policytest.SetFleet(r, fleet)
	for k, id := range owners(t, r, sessions(6000)) {
		if before[k] != "r0" {
			require.Equal(t, before[k], id)
		}
	}
	fleet[0].Weight = 3
	policytest.SetFleet(r, fleet)
	require.Equal(t, before, owners(t, r, sessions(6000)))
}

func BenchmarkFirstFleet(b *testing.B) {
	for _, n := range routertest.BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			fleet := policytest.Fleet(n)
			b.ReportAllocs()
			for b.Loop() {
				r, err := router.NewRouter(router.Options{Policy: build()})
				if err != nil {
					b.Fatal(err)
				}
				r.Fleet.Set(fleet)
			}
		})
	}
}

func BenchmarkBoundedLoad(b *testing.B) {
	policytest.Benchmark(b, func() policy.Policy {
		c := Config{}.WithDefaults()
		c.MaxLoadFactor = 1.25
		return with(c).policy()
	})
}
