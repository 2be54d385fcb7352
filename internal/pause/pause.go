// Package pause lets time pass until a context ends.
package pause

import (
	"context"
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
