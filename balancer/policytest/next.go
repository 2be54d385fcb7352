package policytest

import (
	"context"
	"maps"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// conformNext asks which replicas would be next after each of a series of picks.
func conformNext(t *testing.T, build func() policy.Policy) {
	rnd := routertest.Seeded(7)
	fleet := randomFleet(rnd, 12)
	r := NewRouter(t, build(), fleet, func(o *router.Options) { o.Rand = routertest.Seeded(9) })
	for i := range 400 {
		q := randomRequest(rnd, i, fleet)
		b := new(router.Reservation)
		if err := r.Reserve(context.Background(), q, b, router.How{NoWait: true}); err != nil {
			continue
		}
		before, v := routertest.Ongoing(r), r.View()
		seen := map[string]bool{b.Decision.Replica.ID: true}
		next := r.Next(q, b.Decision.Replica, len(fleet), nil)
		for _, d := range next {
			if seen[d.Replica.ID] || !v.Available(q, d.Replica) {
				t.Fatalf("request %d: %s is next, and is not available, or was before", i, d.Replica.ID)
			}
			seen[d.Replica.ID] = true
		}
		for _, other := range v.Connected() {
			if q.Pin == "" && !seen[other.ID] && v.Available(q, other) {
				t.Fatalf("request %d: %s is available and never next", i, other.ID)
			}
		}
		if after := routertest.Ongoing(r); !maps.Equal(before, after) {
			t.Fatalf("request %d: asking for the next replica changed the reservations: %v, then %v", i, before, after)
		}
		if i%3 > 0 {
			b.Release()
		}
	}
}
