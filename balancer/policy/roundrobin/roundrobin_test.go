package roundrobin

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
)

func TestEveryReplicaOnceInARow(t *testing.T) {
	for n := 1; n < 20; n++ {
		r := policytest.NewRouter(t, newRotation().policy(), policytest.Fleet(n))
		for range 3 {
			seen := make(map[string]bool)
			for _, id := range route(t, r, &policy.Request{}, n) {
				seen[id] = true
			}
			require.Len(t, seen, n)
		}
	}
}

// In Ray the neighbour of a full replica gets its own request and the skipped one.
func TestSkippedReplicaLosesItsRequest(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Bounded(policytest.Fleet(4), 1))
	release := policytest.Fill(t, r, "r1", 1)
	require.Equal(t, []string{"r0", "r2", "r3", "r0", "r2", "r3"}, route(t, r, &policy.Request{}, 6))
	release(1)
	require.Equal(t, []string{"r0", "r1", "r2", "r3"}, route(t, r, &policy.Request{}, 4))
}

func TestAllFullLeavesTheCursor(t *testing.T) {
	p := from(5)
	r := policytest.NewRouter(t, p.policy(), policytest.Bounded(policytest.Fleet(2), 1))
	policytest.Fill(t, r, "r0", 1)
	policytest.Fill(t, r, "r1", 1)
	require.ErrorIs(t, r.Reserve(context.Background(), &policy.Request{}, new(router.Reservation), router.How{NoWait: true}), router.ErrFull)
	require.EqualValues(t, 6, p.plain.next)
}

func TestLocalityDoesNotMatter(t *testing.T) {
	fleet := policytest.Fleet(3)
	fleet[1].Node, fleet[1].Zone = "here", "here"
	r := policytest.NewRouter(t, from(0).policy(), fleet, func(o *router.Options) { o.Node, o.Zone = "here", "here" })
	require.Equal(t, []string{"r0", "r1", "r2"}, route(t, r, &policy.Request{}, 3))
	fleet[2].Adapters = []string{"a"}
	policytest.SetFleet(r, fleet)
	require.Equal(t, []string{"r0", "r1", "r2"}, route(t, r, &policy.Request{}, 3))
}

func TestRetryTakesTheUntriedFirst(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Fleet(3))
	q := &policy.Request{}
	router.NextAttempt(q, r.View().ByID("r0"))
	for _, want := range []string{"r1", "r2", "r1"} {
		b := policytest.Pick(t, r, q)
		require.Equal(t, want, b.Decision.Replica.ID)
		require.Equal(t, policy.ReasonRetry, b.Decision.Reason)
		require.Equal(t, policy.ReasonRoundRobin, b.Decision.Rule)
	}
}

func TestCursorForEachAdapter(t *testing.T) {
	fleet := policytest.Fleet(4)
	fleet[0].Adapters = []string{"a", "b"}
	fleet[1].Adapters = []string{"a", "b"}
	fleet[2].Adapters = []string{"c"}
	r := policytest.NewRouter(t, from(0).policy(), fleet)
	seen := make(map[string]int)
	for range 10 { // alternately: with one cursor each adapter would always get the same replica
		seen["a"+route(t, r, &policy.Request{Adapter: "a"}, 1)[0]]++
		seen["b"+route(t, r, &policy.Request{Adapter: "b"}, 1)[0]]++
	}
	require.Equal(t, map[string]int{"ar0": 5, "ar1": 5, "br0": 5, "br1": 5}, seen)
	require.Equal(t, []string{"r2", "r2"}, route(t, r, &policy.Request{Adapter: "c"}, 2))
	require.Equal(t, []string{"r3", "r3"}, route(t, r, &policy.Request{Adapter: "loaded nowhere"}, 2), "the fewest adapters")
}

func TestAdapterSpillsTierByTier(t *testing.T) {
	fleet := policytest.Bounded(policytest.Fleet(3), 1)
	fleet[0].Adapters = []string{"a"}
	fleet[1].Adapters = []string{"b"}
	r := policytest.NewRouter(t, from(0).policy(), fleet)
	q := &policy.Request{Adapter: "a"}
	for _, want := range []string{"r0", "r2", "r1"} {
		require.Equal(t, want, policytest.Pick(t, r, q).Decision.Replica.ID)
	}
}

// Callers choose the names of adapters: the table of cursors is bounded.
func TestTableOfAdaptersIsBounded(t *testing.T) {
	fleet := policytest.Fleet(3)
	fleet[0].Adapters = []string{"a"}
	p := newRotation()
	r := policytest.NewRouter(t, p.policy(), fleet)
	for i := range 3 * maxAdapters {
		policytest.Route(t, r, &policy.Request{Adapter: fmt.Sprint(i)})
		require.Len(t, p.byAdapter, min(i+1, maxAdapters))
	}
}

func BenchmarkAdapters(b *testing.B) {
	fleet := policytest.Fleet(64)
	for i := range fleet {
		fleet[i].Adapters = []string{fmt.Sprint(i % 8)}
	}
	r := policytest.NewRouter(b, build(), fleet)
	qs := make([]*policy.Request, 16)
	for i := range qs {
		qs[i] = &policy.Request{Adapter: fmt.Sprint(i)}
	}
	var reservation router.Reservation
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		if err := r.Reserve(context.Background(), qs[i%len(qs)], &reservation, router.How{NoWait: true}); err != nil {
			b.Fatal(err)
		}
		reservation.Release()
		i++
	}
}
