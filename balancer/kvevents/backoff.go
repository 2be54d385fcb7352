package kvevents

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath/internal/pause"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// backoff waits longer after each failure, and never as long as others that began with it.
type backoff struct{ next time.Duration }

// wait waits; false if the context ended.
func (b *backoff) wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, firstRetry), lastRetry)
	return pause.For(ctx, b.next/2+rand.N(b.next/2)) == nil
}

func (b *backoff) reset() { b.next = 0 }
