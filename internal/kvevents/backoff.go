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

// Backoff waits longer after each failure, and never as long as others that began with it.
type Backoff struct{ next time.Duration }

// Wait waits; false if the context ended.
func (b *Backoff) Wait(ctx context.Context) bool {
	b.next = min(max(2*b.next, firstRetry), lastRetry)
	return pause.For(ctx, b.next/2+rand.N(b.next/2)) == nil
}

// Reset makes the next wait the first one.
func (b *Backoff) Reset() { b.next = 0 }
