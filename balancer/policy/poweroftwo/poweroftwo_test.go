package poweroftwo

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Ties: each replica is picked about equally often, also when few of many are
// available, which the draws hardly ever find.
func TestDrawIsUniform(t *testing.T) {
	for _, c := range []struct{ n, available int }{{1, 1}, {2, 2}, {3, 3}, {3, 2}, {50, 50}, {50, 10}, {200, 3}, {200, 1}} {
		t.Run(fmt.Sprintf("%d of %d", c.available, c.n), func(t *testing.T) {
			r := policytest.NewRouter(t, build(), policytest.Bounded(policytest.Fleet(c.n), 1))
			for _, rep := range r.View().Replicas()[c.available:] {
				policytest.Fill(t, r, rep.ID, 1)
			}
			const each = 1000
			ids := picked(t, r, policy.Request{}, each*c.available)
			require.Len(t, ids, c.available)
			for id, n := range ids {
				require.InDeltaf(t, each, n, 150, id)
			}
		})
	}
}

// The two are distinct: of two replicas the less busy one always wins, and of
// three the busiest never does.
func TestTheTwoAreDistinct(t *testing.T) {
	for _, n := range []int{2, 3, 40} {
		r := policytest.NewRouter(t, build(), policytest.Fleet(n))
		policytest.Fill(t, r, "r0", 3)
		require.Zero(t, picked(t, r, policy.Request{}, 2000)["r0"])
	}
}

// A burst sees its own reservations: the busiest replica stays near the mean, where one random choice would be far
// above it.
func TestBurstDoesNotHerd(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(100))
	for range 1000 {
		policytest.Pick(t, r, &policy.Request{})
	}
	for id, n := range routertest.Ongoing(r) {
		require.LessOrEqualf(t, n, 14, id)
	}
}

func TestRetryTakesTheUntriedFirst(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(10))
	policytest.Fill(t, r, "r9", 5)
	q := &policy.Request{}
	for i := range 9 {
		router.NextAttempt(q, r.View().ByID(fmt.Sprintf("r%d", i)))
	}
	d := policytest.Pick(t, r, q).Decision
	require.Equal(t, "r9", d.Replica.ID)
	require.Equal(t, policy.ReasonRetry, d.Reason)
	require.Equal(t, policy.ReasonLeastOfTwo, d.Rule)
}

// The worst case: all but two of the fleet are full.
func BenchmarkNearlyAllFull(b *testing.B) {
	for _, n := range routertest.BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			r := policytest.NewRouter(b, build(), policytest.Bounded(policytest.Fleet(n), 1))
			for _, rep := range r.View().Replicas()[2:] {
				policytest.Fill(b, r, rep.ID, 1)
			}
			q := &policy.Request{}
			var reservation router.Reservation
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Reserve(b.Context(), q, &reservation, router.How{NoWait: true}); err != nil {
					b.Fatal(err)
				}
				reservation.Release()
			}
		})
	}
}
