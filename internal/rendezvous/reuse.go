package rendezvous

import (
	"math"
	"sync"
	"sync/atomic"
)

// Reuse measures what other clients do for this one, from what engines report they had cached: the share of a prompt's
// own tokens that its home has cached although this client predicted none, and whether there are other clients at all.
// Nothing is expected before something was measured. The zero value is ready. Safe from any goroutine.
//
// mu guards known and length, and lets one goroutine write bits at a time. No other lock is taken under it.
type Reuse struct {
	alone  atomic.Int64  // prompts in a row that showed no other client; below 0 after one that did
	bits   atomic.Uint64 // of the share
	mu     sync.Mutex
	known  float64 // prompts learned from
	length float64 // mean of the prompts' own tokens, 0 before the first
}

const (
	// reuseStep is how far a prompt of the usual length moves the share; shorter ones
	// move it less, since less is saved by them, and longer ones more, up to twice.
	// The first move it further, as if none were cached of reusePrior before them.
	reuseStep  = 0.05
	reusePrior = 4

	// A client is alone after aloneAfter prompts that showed no other client. One that did takes away seen.
	aloneAfter, seen = 8, 64
)

// Alone reports whether no engine lately had tokens cached that this client did not send there: then its own loads are
// all there are, and nothing is cached that it does not know of. It is false if engines report nothing.
func (u *Reuse) Alone() bool { return u.alone.Load() >= aloneAfter }

// Saw takes the end of a prompt of so many tokens: how many of them were cached, and up to how many this client knew of.
func (u *Reuse) Saw(known, cached, tokens int) {
	switch {
	case cached > known:
		u.alone.Store(-seen)
	case tokens > known: // else it could not have shown one
		u.alone.Add(1)
	}
}

// Share returns the share, in [0, 1].
func (u *Reuse) Share() float64 { return math.Float64frombits(u.bits.Load()) }

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
	u.bits.Store(math.Float64bits(was + step*(hit-was)))
}
