package poweroftwo

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Ray's unit/test_pow_2_request_router.py, case by case, with its numbers: max_ongoing 10. The cases that Ray runs
// under four settings of locality run under four here.

const maxOngoing = 10

func fleet(ids ...string) []router.Member {
	return policytest.Bounded(policytest.Replicas(ids...), maxOngoing)
}

func eachLocality(t *testing.T, test func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router)) {
	for _, node := range []string{"", "here"} {
		for _, zone := range []string{"", "here"} {
			t.Run(fmt.Sprintf("node=%q zone=%q", node, zone), func(t *testing.T) {
				test(t, func(t *testing.T, ids ...string) *router.Router {
					return policytest.NewRouter(t, build(), fleet(ids...), func(o *router.Options) {
						o.Node, o.Zone = node, zone
					})
				})
			})
		}
	}
}

// picked counts the replicas of n picks, each released at once.
func picked(t *testing.T, r *router.Router, q policy.Request, n int) map[string]int {
	t.Helper()
	ids := make(map[string]int)
	for range n {
		again := q
		ids[policytest.Route(t, r, &again)]++
	}
	return ids
}

func TestRayNoReplicasThenOne(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t)
		require.ErrorIs(t, r.Reserve(context.Background(), &policy.Request{}, new(router.Reservation), router.How{NoWait: true}), router.ErrNotConnected)
		policytest.SetFleet(r, fleet("r1"))
		require.Equal(t, map[string]int{"r1": 5}, picked(t, r, policy.Request{}, 5))
	})
}

func TestRayFullThenAccepts(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		synctest.Test(t, func(t *testing.T) {
			r := newRouter(t, "r1")
			release := policytest.Fill(t, r, "r1", maxOngoing)
			got := routertest.Acquire(t, r, &policy.Request{})
			synctest.Wait()
			require.Equal(t, 1, r.Queued())
			release(1)
			require.Equal(t, "r1", (<-got).Decision.Replica.ID)
		})
	})
}

func TestRayFullThenANewOne(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		synctest.Test(t, func(t *testing.T) {
			r := newRouter(t, "r1")
			policytest.Fill(t, r, "r1", maxOngoing)
			got := routertest.Acquire(t, r, &policy.Request{})
			synctest.Wait()
			require.Equal(t, 1, r.Queued())
			policytest.SetFleet(r, fleet("r1", "r2"))
			require.Equal(t, "r2", (<-got).Decision.Replica.ID)
		})
	})
}

func TestRayAvailableRemovedBack(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t, "r1")
		require.Equal(t, "r1", policytest.Route(t, r, &policy.Request{}))
		policytest.SetFleet(r, nil)
		require.ErrorIs(t, r.Reserve(context.Background(), &policy.Request{}, new(router.Reservation), router.How{NoWait: true}), router.ErrNotConnected)
		policytest.SetFleet(r, fleet("r1"))
		require.Equal(t, "r1", policytest.Route(t, r, &policy.Request{}))
	})
}

func TestRayTwoAvailableThenOneRemoved(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t, "r1", "r2")
		require.Len(t, picked(t, r, policy.Request{}, 10), 2)
		policytest.SetFleet(r, fleet("r1"))
		require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{}, 10))
	})
}

// 11 requests on a replica whose bound was lowered to 10.
func TestRayOneBeyondItsBound(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t)
		policytest.SetFleet(r, policytest.Bounded(policytest.Replicas("r1", "r2"), 11))
		policytest.Fill(t, r, "r2", 11)
		policytest.SetFleet(r, fleet("r1", "r2"))
		require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{}, 10))
	})
}

func TestRayThreeWithOneFull(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t, "r1", "r2", "r3")
		policytest.Fill(t, r, "r3", maxOngoing)
		ids := picked(t, r, policy.Request{}, 100)
		require.Zero(t, ids["r3"])
		require.Len(t, ids, 2)
	})
}

func TestRayShorterQueue(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		r := newRouter(t, "r1", "r2")
		policytest.Fill(t, r, "r1", 1)
		require.Equal(t, map[string]int{"r2": 10}, picked(t, r, policy.Request{}, 10))
	})
}

func TestRayFIFO(t *testing.T) {
	eachLocality(t, func(t *testing.T, newRouter func(*testing.T, ...string) *router.Router) {
		synctest.Test(t, func(t *testing.T) {
			r := newRouter(t, "r1")
			release := policytest.Fill(t, r, "r1", maxOngoing)
			var waits []<-chan *router.Reservation
			for range maxOngoing {
				waits = append(waits, routertest.Acquire(t, r, &policy.Request{}))
				synctest.Wait()
			}
			for i, first := range waits {
				require.Equal(t, len(waits)-i, r.Queued())
				release(1)
				require.NotNil(t, <-first, "the first that came is the first served")
				for _, later := range waits[i+1:] {
					require.Empty(t, later)
				}
			}
		})
	})
}

// localFleet is one replica on the client's node, one in its zone, one in another zone.
func localFleet() []router.Member {
	m := fleet("r1", "r2", "r3")
	m[0].Node, m[0].Zone = "n1", "z1"
	m[1].Node, m[1].Zone = "n2", "z1"
	m[2].Node, m[2].Zone = "n3", "z2"
	return m
}

func at(node, zone string) func(*router.Options) {
	return func(o *router.Options) { o.Node, o.Zone = node, zone }
}

func TestRayPrefersNodeThenZoneThenAll(t *testing.T) {
	r := policytest.NewRouter(t, build(), localFleet(), at("n1", "z1"))
	for _, id := range []string{"r1", "r2", "r3"} { // the tiers in their order
		require.Equal(t, map[string]int{id: 10}, picked(t, r, policy.Request{}, 10))
		policytest.Fill(t, r, id, maxOngoing)
	}
}

func TestRayNodeRemoved(t *testing.T) {
	r := policytest.NewRouter(t, build(), localFleet(), at("n1", "z1"))
	policytest.SetFleet(r, localFleet()[1:])
	require.Equal(t, map[string]int{"r2": 10}, picked(t, r, policy.Request{}, 10))
	policytest.SetFleet(r, localFleet()[2:])
	require.Equal(t, map[string]int{"r3": 10}, picked(t, r, policy.Request{}, 10))
}

func TestRayNoPreferenceSpreads(t *testing.T) {
	r := policytest.NewRouter(t, build(), localFleet())
	require.Len(t, picked(t, r, policy.Request{}, 1000), 3)
}

func TestRaySameNodeThenTheOthers(t *testing.T) {
	r := policytest.NewRouter(t, build(), localFleet(), at("n1", ""))
	require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{}, 10))
	policytest.Fill(t, r, "r1", maxOngoing)
	ids := picked(t, r, policy.Request{}, 100)
	require.Zero(t, ids["r1"])
	require.Len(t, ids, 2)
}

func TestRayRankViaLocality(t *testing.T) {
	r := policytest.NewRouter(t, build(), localFleet(), at("n1", "z1"))
	var sizes []int
	for i := 0; ; i++ {
		p, ok := r.View().Pool(&policy.Request{}, i)
		if !ok {
			break
		}
		sizes = append(sizes, len(p.Replicas))
	}
	require.Equal(t, []int{1, 2, 3}, sizes)
}

func TestRayModelHoldersWhateverTheirQueue(t *testing.T) {
	m := fleet("r1", "r2", "r3")
	m[0].Adapters = []string{"m1", "m2"}
	m[1].Adapters = []string{"m1"}
	r := policytest.NewRouter(t, build(), m)
	policytest.Fill(t, r, "r1", 9)
	policytest.Fill(t, r, "r2", 9)
	ids := picked(t, r, policy.Request{Adapter: "m1"}, 50)
	require.Len(t, ids, 2)
	require.Zero(t, ids["r3"], "idle, but it does not hold the model")
	require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{Adapter: "m2"}, 10))
}

func TestRayFewestModelsWhenNoReplicaHoldsIt(t *testing.T) {
	m := fleet("r1", "r2", "r3")
	m[0].Adapters = []string{"m1", "m2"}
	m[1].Adapters = []string{"m2"}
	m[2].Adapters = []string{"m3"}
	r := policytest.NewRouter(t, build(), m)
	ids := picked(t, r, policy.Request{Adapter: "new"}, 50)
	require.Zero(t, ids["r1"])
	require.Len(t, ids, 2)
}

func TestRayModelBacksOffToTheRest(t *testing.T) {
	m := fleet("r1", "r2", "r3")
	m[0].Adapters = []string{"m1", "m2"}
	m[1].Adapters = []string{"m2", "m3"}
	m[2].Adapters = []string{"m3"}
	r := policytest.NewRouter(t, build(), m)
	for _, id := range []string{"r1", "r3", "r2"} { // the holder, the fewest, the rest
		require.Equal(t, map[string]int{id: 10}, picked(t, r, policy.Request{Adapter: "m1"}, 10))
		policytest.Fill(t, r, id, maxOngoing)
	}
}

func TestRayHundredWaitForTheNewcomerWithTheModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := policytest.NewRouter(t, build(), fleet("r1"))
		policytest.Fill(t, r, "r1", maxOngoing)
		var waits []<-chan *router.Reservation
		for range 100 {
			waits = append(waits, routertest.Acquire(t, r, &policy.Request{Adapter: "m1"}))
		}
		synctest.Wait()
		require.Equal(t, 100, r.Queued())
		m := policytest.Bounded(fleet("r1", "r2", "r3"), 100)
		m[0].MaxOngoing = maxOngoing
		m[1].Adapters = []string{"m1"}
		r.Fleet.Set(m)
		r.Fleet.SetConnected("r2", true)
		r.Fleet.SetConnected("r3", true)
		for _, got := range waits {
			require.Equal(t, "r2", (<-got).Decision.Replica.ID)
		}
	})
}

func TestRayFIFOWithinAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fleet("r1")
		m[0].Adapters = []string{"m1", "m2"}
		r := policytest.NewRouter(t, build(), m)
		release := policytest.Fill(t, r, "r1", maxOngoing)
		var waits []<-chan *router.Reservation
		for i := range maxOngoing {
			waits = append(waits, routertest.Acquire(t, r, &policy.Request{Adapter: fmt.Sprintf("m%d", i%2+1)}))
			synctest.Wait()
		}
		for i, first := range waits {
			release(1)
			require.NotNil(t, <-first)
			for _, later := range waits[i+1:] {
				require.Empty(t, later)
			}
		}
	})
}

func TestRayBusyHolderGivesWay(t *testing.T) {
	m := fleet("r1", "r2")
	m[0].Adapters = []string{"m1"}
	r := policytest.NewRouter(t, build(), m)
	policytest.Fill(t, r, "r1", maxOngoing)
	require.Equal(t, map[string]int{"r2": 10}, picked(t, r, policy.Request{Adapter: "m1"}, 10))
}

func TestRayModelsOfAReplicaAreUpdated(t *testing.T) {
	m := fleet("r1", "r2")
	m[0].Adapters = []string{"m1"}
	r := policytest.NewRouter(t, build(), m)
	require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{Adapter: "m1"}, 10))
	m[0].Adapters, m[1].Adapters = []string{"m2"}, []string{"m1"}
	r.Fleet.Set(m)
	require.Equal(t, map[string]int{"r2": 10}, picked(t, r, policy.Request{Adapter: "m1"}, 10))
}

func TestRayDiedReplicaIsNeverPickedAgain(t *testing.T) {
	r := policytest.NewRouter(t, build(), fleet("r1", "r2"))
	policytest.SetFleet(r, fleet("r1"))
	require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{}, 10))
}

func TestRayUnavailableReplicaIsKept(t *testing.T) {
	r := policytest.NewRouter(t, build(), fleet("r1", "r2"))
	r.Fleet.SetConnected("r2", false)
	require.Equal(t, map[string]int{"r1": 10}, picked(t, r, policy.Request{}, 10))
	require.NotNil(t, r.View().ByID("r2"))
	r.Fleet.SetConnected("r2", true)
	policytest.Fill(t, r, "r1", 1)
	require.Equal(t, map[string]int{"r2": 10}, picked(t, r, policy.Request{}, 10))
}

func TestRayAvailableExcludesOnlyTheFull(t *testing.T) {
	r := policytest.NewRouter(t, build(), fleet("r1", "r2", "r3"))
	policytest.Fill(t, r, "r1", maxOngoing)
	policytest.Fill(t, r, "r2", maxOngoing-1)
	var ids []string
	for _, rep := range r.View().Connected() {
		if r.View().Available(&policy.Request{}, rep) {
			ids = append(ids, rep.ID)
		}
	}
	require.Equal(t, []string{"r2", "r3"}, ids)
}

// The reservations count what Ray's queue-length cache counts: 3, 2, 1, 0, never below.
func TestRayCountGoesDownNeverNegative(t *testing.T) {
	r := policytest.NewRouter(t, build(), fleet("r1"))
	b := policytest.Pick(t, r, &policy.Request{})
	release := policytest.Fill(t, r, "r1", 2)
	for want := 3; want > 1; want-- {
		require.Equal(t, want, r.View().ByID("r1").Ongoing())
		release(1)
	}
	for range 3 {
		b.Release()
		require.Zero(t, r.View().ByID("r1").Ongoing())
	}
}
