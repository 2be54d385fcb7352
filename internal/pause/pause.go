// Package pause lets time pass until a context ends.
package pause

import (
	"context"
	"iter"
	"sync"
	"time"
)

// For returns nil when d has passed, or ctx.Err() as soon as ctx ends. A d of zero or less
// does not wait, and fails too where ctx has ended. Safe from any goroutine.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Every yields the time at once, and then after each d, until ctx ends. A d that passes within the loop's body is
// yielded once after it.
func Every(ctx context.Context, d time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		tick := time.NewTicker(d)
		defer tick.Stop()
		for now := time.Now(); ctx.Err() == nil && yield(now); {
			select {
			case now = <-tick.C:
			case <-ctx.Done():
			}
		}
	}
}

// Run runs f until stop is called, which waits for its end.
func Run(f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}
