package routing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of [Options].
const (
	DefaultRequestCost    = 500 // tokens
	DefaultMaxQueued      = 1000
	DefaultPrepareTimeout = 100 * time.Millisecond
)

// Options configure a Router. Only Policy is needed.
type Options struct {
	Policy Policy
	// MaxOngoing bounds the bookings of a replica that has no bound of its own; 0 = no bound.
	MaxOngoing int
	// MaxQueued bounds the requests that wait; 0 = DefaultMaxQueued, negative = no bound.
	MaxQueued int
	// RequestCost is what an active request adds to a replica's load, in tokens;
	// 0 = DefaultRequestCost, negative = nothing.
	RequestCost float64
	// PrepareTimeout is the deadline of a Prepare that calls out; 0 = DefaultPrepareTimeout.
	PrepareTimeout time.Duration
	// Node and Zone are where this process runs: replicas there are preferred.
	// Empty = no preference.
	Node, Zone string
	// Now and Rand are the clock and the randomness; nil = the real ones. Rand is
	// used under the Router's lock only.
	Now  func() time.Time
	Rand *rand.Rand
}

// A Router hosts one policy over one fleet: it picks and books. Safe for use by
// many goroutines.
type Router struct {
	opts       Options
	prepares   bool
	callsOut   bool
	routeObs   RouteObserver
	endObs     CompletionObserver
	memberObs  MembershipObserver
	closer     io.Closer
	prepErrors atomic.Int64

	// view is replaced under mu and read without it.
	view atomic.Pointer[View]

	// mu makes choosing and booking one step. It guards every book, the queue,
	// the randomness, and all below. It is held while the policy's Choose and
	// ReplicasChanged run, and no other lock of warmpath is taken before it but
	// a host's own.
	mu       sync.Mutex
	shared   *shared
	anyone   fifo // waiters that take any replica
	queued   int
	seq      uint64
	departed map[string]*live // left the fleet with bookings under way
	leaving  []*live          // during SetFleet: just left
	closed   bool
	keepsSum bool // shared.sumKept

	quick QuickChooser // what picks without mu, or nil

	// inside is held for reading while a policy that is a Closer is called
	// outside mu, and for writing while it is closed. Never taken with mu held.
	inside     sync.RWMutex
	closerDone bool
}

// NewRouter returns a Router over an empty fleet.
func NewRouter(o Options) (*Router, error) {
	if o.Policy == nil {
		return nil, errors.New("routing: Options.Policy is nil")
	}
	if o.MaxQueued == 0 {
		o.MaxQueued = DefaultMaxQueued
	}
	switch {
	case o.RequestCost == 0:
		o.RequestCost = DefaultRequestCost
	case o.RequestCost < 0:
		o.RequestCost = 0
	}
	if o.PrepareTimeout == 0 {
		o.PrepareTimeout = DefaultPrepareTimeout
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	quick, _ := o.Policy.(QuickChooser)
	if o.Rand != nil {
		quick = nil
	} else {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	r := &Router{
		opts:     o,
		shared:   &shared{requestCost: o.RequestCost, rand: o.Rand, now: o.Now},
		departed: make(map[string]*live),
	}
	uses := r.Uses()
	r.prepares = uses&(UsesPrompt|CallsOut) != 0
	r.callsOut = uses&CallsOut != 0
	r.routeObs, _ = o.Policy.(RouteObserver)
	r.endObs, _ = o.Policy.(CompletionObserver)
	r.memberObs, _ = o.Policy.(MembershipObserver)
	r.closer, _ = o.Policy.(io.Closer)
	if r.routeObs == nil && r.endObs == nil && r.closer == nil {
		r.quick = quick
	}
	r.view.Store(&View{fleet: &membership{byID: map[string]*Replica{}}, shared: r.shared})
	return r, nil
}

// Policy returns the Router's policy.
func (r *Router) Policy() Policy { return r.opts.Policy }

// Uses returns what the policy looks at.
func (r *Router) Uses() Uses {
	if k, ok := r.opts.Policy.(KeyUser); ok {
		return k.Uses()
	}
	return UsesSession | UsesPrompt | CallsOut
}

// Observes reports whether the policy wants to be told how calls ended: whether
// Complete does anything.
func (r *Router) Observes() bool { return r.endObs != nil }

// View returns the current snapshot of the fleet.
func (r *Router) View() *View { return r.view.Load() }

// PrepareErrors returns how often the policy's Prepare failed.
func (r *Router) PrepareErrors() int64 { return r.prepErrors.Load() }

// Prepare does the part of a pick that needs no lock. A host calls it before
// Pick or Acquire so that the work is done off the picker; they do it
// themselves for a request that is not prepared, or was for an older fleet.
func (r *Router) Prepare(ctx context.Context, q *Request) {
	if !r.prepares || q.Pin != "" {
		return
	}
	v := r.view.Load()
	if r.prepared(q, v) || !r.enter() {
		return
	}
	defer r.leave()
	if q.router != r {
		q.router, q.Prepared = r, nil // another policy's is of no use
	}
	q.anyModel = v.anyModel(q)
	if r.callsOut {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.PrepareTimeout)
		defer cancel()
	}
	if err := r.opts.Policy.Prepare(ctx, q, v); err != nil {
		r.prepErrors.Add(1)
	}
	q.epoch = v.fleet.epoch
}

func (r *Router) prepared(q *Request, v *View) bool {
	return len(v.fleet.replicas) == 0 || q.router == r && q.epoch == v.fleet.epoch
}

// lockPrepared takes the lock with the request prepared for the View it
// returns, or, where the fleet changes faster than that, nearly so.
func (r *Router) lockPrepared(ctx context.Context, q *Request) *View {
	const tries = 3
	for range tries {
		r.Prepare(ctx, q)
		r.mu.Lock()
		v := r.view.Load()
		if !r.prepares || q.Pin != "" || r.closed || r.prepared(q, v) {
			return v
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	return r.view.Load()
}

// Complete tells the policy how a call that was booked ended. The host calls it
// once per booking, after Release or before. After Close it does nothing.
func (r *Router) Complete(q *Request, d Decision, o Outcome) {
	if r.endObs != nil && d.Replica != nil && r.enter() {
		defer r.leave()
		r.endObs.Completed(q, d, o)
	}
}

func (r *Router) routed(q *Request, b *Booking) {
	if r.routeObs != nil && r.enter() {
		defer r.leave()
		r.routeObs.Routed(q, b.Decision)
	}
}

// enter reports whether the policy may still be called outside mu. A policy that
// is a Closer is held open until leave.
func (r *Router) enter() bool {
	if r.closer == nil {
		return true
	}
	r.inside.RLock()
	if r.closerDone {
		r.inside.RUnlock()
		return false
	}
	return true
}

func (r *Router) leave() {
	if r.closer != nil {
		r.inside.RUnlock()
	}
}

// Close wakes everybody in the queue with ErrClosed, fails later picks, and
// closes the policy if it is an io.Closer. Bookings may still be released.
func (r *Router) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.hold()
	r.requeue(r.view.Load())
	r.mu.Unlock()
	if r.closer == nil {
		return nil
	}
	r.inside.Lock()
	defer r.inside.Unlock()
	r.closerDone = true
	if err := r.closer.Close(); err != nil {
		return fmt.Errorf("routing: closing the policy: %w", err)
	}
	return nil
}
