package rendezvous

import (
	"math"
	"sync"
	"sync/atomic"
)

// Reuse is the share of a prompt's own tokens that the first replica of the rendezvous order
// has cached where this client predicted none: other clients sent them there. It is learned
// from what engines report, so that the gain of the common order is measured, not assumed.
// The zero value is ready. Safe from any goroutine.
//
// mu guards known and length, and lets one goroutine write bits at a time. No other lock is taken under it.
type Reuse struct {
	bits   atomic.Uint64 // of the share, less unknownReuse, so that zero is ready
	mu     sync.Mutex
	known  float64 // prompts learned from
	length float64 // mean of the prompts' own tokens, 0 before the first
}

const (
	// unknownReuse is the share where engines report nothing.
	unknownReuse = 0.3
	// reuseStep is how far a prompt of the usual length moves the share; shorter ones
	// move it less, since less is saved by them, and longer ones more, up to twice.
	// The first move it further, as if unknownReuse were learned from reusePrior before.
	reuseStep  = 0.05
	reusePrior = 4
)

// Share returns the share, in [0, 1].
func (u *Reuse) Share() float64 { return unknownReuse + math.Float64frombits(u.bits.Load()) }

// Learn takes a prompt of so many tokens of its own, of which some were cached.
func (u *Reuse) Learn(cached, own int) {
	if own <= 0 {
		return
	}
	hit := min(max(float64(cached)/float64(own), 0), 1)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.length == 0 {
		u.length = float64(own)
	}
	u.length += reuseStep * (float64(own) - u.length)
	u.known++
	step := min(max(reuseStep, 1/(reusePrior+u.known))*min(2, float64(own)/u.length), 1)
	was := math.Float64frombits(u.bits.Load())
	u.bits.Store(math.Float64bits(was + step*(hit-unknownReuse-was)))
}
