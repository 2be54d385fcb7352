package routertest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A Clock is a clock that moves only by its methods. Safe for concurrent use.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// NewClock returns a clock that stands at the first moment of 2030, UTC.
func NewClock() *Clock {
	return &Clock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
}

// Now returns the clock's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock forward.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Seeded returns a source of randomness that is the same in every run.
func Seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }
