package policytest

import (
	"context"
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// BenchmarkSizes are the sizes of fleet that [Benchmark] measures.
var BenchmarkSizes = []int{8, 64, 512, 1000, 10000}

// Benchmark measures one pick and its release by fleet size, over 1,024 sessions
// that were prepared before.
func Benchmark(b *testing.B, build func() policy.Policy) {
	for _, n := range BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			r := NewRouter(b, build(), Fleet(n))
			qs := make([]*policy.Request, 1024)
			for i := range qs {
				qs[i] = Request(4 * i)
				r.Prepare(context.Background(), qs[i])
			}
			var booking router.Reservation
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Pick(context.Background(), qs[i%len(qs)], &booking); err != nil {
					b.Fatal(err)
				}
				booking.Release()
				i++
			}
		})
	}
}

// BenchmarkMembership measures one replica leaving and coming back: two changes
// of the fleet, with all that the Router does for them.
func BenchmarkMembership(b *testing.B, build func() policy.Policy) {
	for _, n := range BenchmarkSizes {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			fleet := Fleet(n)
			r := NewRouter(b, build(), fleet)
			b.ReportAllocs()
			for b.Loop() {
				r.SetFleet(fleet[1:])
				r.SetFleet(fleet)
			}
		})
	}
}
