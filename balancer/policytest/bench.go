package policytest

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

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
