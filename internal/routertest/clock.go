package routertest

import (
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// A Clock is a clock that moves only by its methods. Safe for concurrent use.
type Clock struct{ nanoseconds atomic.Int64 } // since 1970

// NewClock returns a clock that stands at the first moment of 2030, UTC.
func NewClock() *Clock {
	c := new(Clock)
	c.nanoseconds.Store(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return c
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time { return time.Unix(0, c.nanoseconds.Load()).UTC() }

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) { c.nanoseconds.Add(int64(d)) }

// Seeded returns a source of randomness that is the same in every run.
func Seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
