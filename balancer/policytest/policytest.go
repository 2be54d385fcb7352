// Package policytest helps to test a routing policy: fake replicas, connected
// to a real [router.Router] with a fake clock and seeded randomness, helpers to
// pick and to fill, and [Conform], the suite of what every policy must keep.
//
// A test of your own policy begins with
//
//	func TestConform(t *testing.T) {
//		policytest.Conform(t, func() policy.Policy { return mypolicy.New() })
//	}
//
// and goes on with the policy's own rule:
//
//	r := policytest.NewRouter(t, mypolicy.New(), policytest.Replicas("a", "b"))
//	policytest.Fill(t, r, "a", 3)
//	id := policytest.Route(t, r, policytest.Session("user_42"))
package policytest

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Replicas returns members with these ids and no bound on their requests. The
// caller may change them before they enter a fleet.
func Replicas(ids ...string) []router.Member {
	fleet := make([]router.Member, len(ids))
	for i, id := range ids {
		fleet[i].ID = id
		fleet[i].Address = fmt.Sprintf("192.0.2.%d:%d", i%250+1, 50051+i/250)
	}
	return fleet
}

// Fleet returns n members, r0, r1 and so on.
func Fleet(n int) []router.Member {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("r%d", i)
	}
	return Replicas(ids...)
}

// Bounded sets how many requests each member may have at once, and returns them.
func Bounded(fleet []router.Member, maxOngoing int) []router.Member {
	for i := range fleet {
		fleet[i].MaxOngoing = maxOngoing
	}
	return fleet
}

// NewRouter returns a Router of the policy over the fleet, all of it connected.
// Its clock stands still and its randomness is seeded unless an option sets
// otherwise. It is closed when the test ends.
func NewRouter(t testing.TB, p policy.Policy, fleet []router.Member, opts ...func(*router.Options)) *router.Router {
	t.Helper()
	o := router.Options{Policy: p, Now: routertest.NewClock().Now, Rand: routertest.Seeded(1)}
	for _, opt := range opts {
		opt(&o)
	}
	r, err := router.NewRouter(o)
	if err != nil {
		t.Fatalf("policytest: %v", err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Errorf("policytest: %v", err)
		}
	})
	SetFleet(r, fleet)
	return r
}

// SetFleet replaces the Router's fleet and connects all of it.
func SetFleet(r *router.Router, fleet []router.Member) {
	r.Fleet.Set(fleet)
	r.Fleet.Connect()
}

// Session returns a request of a session.
func Session(key string) *policy.Request { return &policy.Request{Session: key} }

// Pick picks and reserves. The test fails where the Router has an error.
func Pick(t testing.TB, r *router.Router, q *policy.Request) *router.Reservation {
	t.Helper()
	return routertest.Pick(t, r, q)
}

// Route picks, releases at once, and returns the id of the replica.
func Route(t testing.TB, r *router.Router, q *policy.Request) string {
	t.Helper()
	return routertest.Decide(t, r, q).Replica.ID
}

// Fill reserves n requests on a replica. The function that it returns releases the
// oldest k of those still held.
func Fill(t testing.TB, r *router.Router, id string, n int) (release func(k int)) {
	t.Helper()
	held := make([]*router.Reservation, n)
	for i := range held {
		held[i] = Pick(t, r, &policy.Request{Pin: id})
	}
	return func(k int) {
		for _, b := range held[:k] {
			b.Release()
		}
		held = held[k:]
	}
}

// Benchmark measures one pick and its release by fleet size, over 1,024 sessions
// that were prepared before.
func Benchmark(b *testing.B, build func() policy.Policy) {
	for _, n := range routertest.BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			r := NewRouter(b, build(), Fleet(n))
			qs := make([]*policy.Request, 1024)
			for i := range qs {
				qs[i] = routertest.Request(4 * i)
				r.Prepare(context.Background(), qs[i])
			}
			var held router.Reservation
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Reserve(context.Background(), qs[i%len(qs)], &held, router.How{NoWait: true}); err != nil {
					b.Fatal(err)
				}
				held.Release()
				i++
			}
		})
	}
}
