package router

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestPickDoesNotAllocate(t *testing.T) {
	for name, o := range map[string]Options{
		"pick":         {},
		"bounded":      {MaxOngoing: 4},
		"least loaded": {Policy: choosing(leastLoaded)},
		"observed":     {Policy: new(busy).policy()},
	} {
		t.Run(name, func(t *testing.T) {
			r := connected(t, o, members(8)...)
			q, b, ctx := &policy.Request{PromptTokens: 100}, new(Reservation), context.Background()
			if name == "observed" {
				r.prepares = false // what Prepare allocates is the policy's affair
			}
			require.Zero(t, testing.AllocsPerRun(100, func() {
				_ = r.Reserve(ctx, q, b, How{NoWait: true})
				b.PrefillDone()
				b.Release()
				_ = r.Reserve(ctx, q, b, How{})
				b.Release()
			}))
		})
	}
}

// trivial costs next to nothing, so that the core is measured.
func trivial(q *policy.Request, v policy.View) policy.Decision {
	for _, r := range v.Connected() {
		if v.Available(q, r) {
			return policy.To(r, "first")
		}
	}
	return policy.Wait()
}

func BenchmarkPickRelease(b *testing.B) {
	for name, pol := range map[string]policy.Policy{"trivial": choosing(trivial), "least_loaded": choosing(leastLoaded)} {
		b.Run(name, func(b *testing.B) {
			r := connected(b, Options{Policy: pol}, members(8)...)
			q, bk, ctx := new(policy.Request), new(Reservation), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				_ = r.Reserve(ctx, q, bk, How{NoWait: true})
				bk.Release()
			}
		})
	}
}

func BenchmarkPickReleaseParallel(b *testing.B) {
	r := connected(b, Options{Policy: choosing(trivial)}, members(8)...)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		q, bk, ctx := new(policy.Request), new(Reservation), context.Background()
		for pb.Next() {
			_ = r.Reserve(ctx, q, bk, How{NoWait: true})
			bk.Release()
		}
	})
}

func BenchmarkAcquireRelease(b *testing.B) {
	r := connected(b, Options{Policy: choosing(trivial), MaxOngoing: 4}, members(8)...)
	q, bk, ctx := new(policy.Request), new(Reservation), context.Background()
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Reserve(ctx, q, bk, How{})
		bk.Release()
	}
}

// One replica's weight changes. The promise is 10 ms at 1,000 replicas and 50 ms
// at 10,000.
func BenchmarkSetFleetOneChange(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			ms := members(n, models("m"), at("n0", "z0"))
			r := connected(b, Options{Zone: "z0"}, ms...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ms[n/2].Weight = float64(1 + i%2)
				r.Fleet.Set(ms)
			}
		})
	}
}

func BenchmarkSetConnected(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			r := connected(b, Options{}, members(n)...)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r.Fleet.SetConnected("r7", i%2 == 1)
			}
		})
	}
}

// A release serves the first of a thousand waiters, which then joins the end of the queue.
func BenchmarkReleaseWithWaiters(b *testing.B) {
	for name, session := range map[string]string{"any": "", "one_replica": "a"} {
		b.Run(name, func(b *testing.B) {
			r := connected(b, Options{Policy: choosing(wants), MaxOngoing: 1, MaxQueued: -1}, member("a"))
			bk, ctx := pick(b, r, &policy.Request{Pin: "a"}), context.Background()
			next := make([]*waiter, 0, 1001)
			enqueue := func() {
				w, _ := pickOrEnqueue(r, ctx, &policy.Request{Session: session}, new(Reservation))
				next = append(next, w)
			}
			for range 1000 {
				enqueue()
			}
			b.ReportAllocs()
			for b.Loop() {
				bk.Release()
				bk = next[0].b
				next = append(next[:0], next[1:]...)
				enqueue()
			}
			require.Equal(b, 1000, r.Queued())
		})
	}
}

// A change of connectivity lets a thousand waiters choose again.
func BenchmarkSetConnectedWithWaiters(b *testing.B) {
	r := connected(b, Options{MaxOngoing: 1}, members(100)...)
	for range 100 {
		pick(b, r, new(policy.Request))
	}
	for range 1000 {
		_, _ = pickOrEnqueue(r, context.Background(), new(policy.Request), new(Reservation))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		r.Fleet.SetConnected("r7", i%2 == 1)
	}
}
