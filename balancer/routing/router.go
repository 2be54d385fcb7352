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
	if o.Rand == nil {
		o.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	r := &Router{
		opts:     o,
		shared:   &shared{requestCost: o.RequestCost, rand: o.Rand, now: o.Now},
		departed: make(map[string]*live),
	}
	uses := r.Uses()
	r.prepares = uses&UsesPrompt != 0
	r.callsOut = uses&CallsOut != 0
	r.routeObs, _ = o.Policy.(RouteObserver)
	r.endObs, _ = o.Policy.(CompletionObserver)
	r.memberObs, _ = o.Policy.(MembershipObserver)
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
	if q.epoch == v.fleet.epoch {
		return
	}
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

// lockPrepared takes the lock with the request prepared for the View it
// returns, or, where the fleet changes faster than that, nearly so.
func (r *Router) lockPrepared(ctx context.Context, q *Request) *View {
	const tries = 3
	for range tries {
		r.Prepare(ctx, q)
		r.mu.Lock()
		v := r.view.Load()
		if !r.prepares || q.epoch == v.fleet.epoch || q.Pin != "" {
			return v
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	return r.view.Load()
}

// Pick chooses a replica and books the request on it in one step. It never
// waits: ErrFull says that every replica that may serve the request is full. On
// an error b holds nothing.
func (r *Router) Pick(ctx context.Context, q *Request, b *Booking) error {
	v := r.lockPrepared(ctx, q)
	d, err := r.choose(q, v)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	r.book(q, b, d)
	r.mu.Unlock()
	r.routed(q, b)
	return nil
}

// Complete tells the policy how a call that was booked ended. The host calls it
// once per booking, after Release or before.
func (r *Router) Complete(q *Request, d Decision, o Outcome) {
	if r.endObs != nil && d.Replica != nil {
		r.endObs.Completed(q, d, o)
	}
}

func (r *Router) routed(q *Request, b *Booking) {
	if r.routeObs != nil {
		r.routeObs.Routed(q, b.Decision)
	}
}

// choose asks the policy and checks its answer. Its errors are the sentinels
// themselves. Called with mu held.
func (r *Router) choose(q *Request, v *View) (Decision, error) {
	switch {
	case r.closed:
		return Decision{}, ErrClosed
	case len(v.connected) == 0:
		return Decision{}, ErrNotConnected
	case q.Pin != "":
		return v.pinned(q)
	}
	q.anyModel = q.Model != "" && !v.fleet.models[q.Model]
	d := r.opts.Policy.Choose(q, v)
	if d.Replica != nil {
		if v.current(d.Replica) != d.Replica {
			d.Replica = v.ByID(d.Replica.ID) // prepared before the fleet changed
		}
		if d.Replica == nil || !v.Available(q, d.Replica) {
			d = v.correct(q, d.Replica)
		}
	}
	if d.Replica == nil {
		return v.whomToWaitFor(q, d)
	}
	if q.attempt > 0 {
		d.Rule, d.Reason = d.Reason, ReasonRetry
	}
	return d, nil
}

func (v *View) pinned(q *Request) (Decision, error) {
	rep := v.ByID(q.Pin)
	switch {
	case rep == nil || q.excluded(rep):
		return Decision{}, ErrNoSuchReplica
	case !rep.Connected():
		return Decision{}, ErrNotConnected
	case rep.Full():
		return Wait(rep), ErrFull
	}
	return To(rep, ReasonPinned), nil
}

// correct answers for a policy that picked what it may not pick; r is nil when
// that has left the fleet.
func (v *View) correct(q *Request, r *Replica) Decision {
	if r != nil && r.Connected() && v.allowed(q, r) {
		return Wait(r) // only full
	}
	if r := v.LeastLoaded(q); r != nil {
		return To(r, ReasonLeastLoaded)
	}
	return Wait()
}

// LeastLoaded returns the available replica with the least load in the first
// pool that has one, or nil. Ties go to the first in the fleet's order. O(replicas).
func (v *View) LeastLoaded(q *Request) *Replica {
	for i := 0; ; i++ {
		p, ok := v.Pool(q, i)
		if !ok {
			return nil
		}
		var best *Replica
		var least float64
		for _, r := range p.Replicas {
			if !p.Takes(r) {
				continue
			}
			if l := v.Load(r); best == nil || l < least {
				best, least = r, l
			}
		}
		if best != nil {
			return best
		}
	}
}

// whomToWaitFor makes sure that somebody who is waited for can ever serve the
// request: a wait that nothing can end is an error.
func (v *View) whomToWaitFor(q *Request, d Decision) (Decision, error) {
	hopeful := func(rs []*Replica) (ok []*Replica) {
		for _, r := range rs {
			if r.Connected() && v.allowed(q, r) {
				ok = append(ok, r)
			}
		}
		return ok
	}
	if set := hopeful(d.WaitFor); len(set) > 0 {
		d.WaitFor = set
		return d, ErrFull
	}
	set := hopeful(v.connected)
	switch {
	case len(set) == len(v.connected):
		d.WaitFor = nil
	case len(set) > 0:
		d.WaitFor = set
	default:
		for _, r := range v.fleet.replicas {
			if v.allowed(q, r) {
				return d, ErrNotConnected
			}
		}
		return d, ErrNoSuchReplica
	}
	return d, ErrFull
}

// book charges the decision. Called with mu held.
func (r *Router) book(q *Request, b *Booking, d Decision) {
	l := d.Replica.live
	d.Load = r.shared.load(l, l.book.Load())
	prefill := max(int64(q.PromptTokens-d.MatchedTokens), 0)
	b.Decision, b.router, b.live, b.prefill, b.held = d, r, l, prefill, true
	r.charge(l, 1, prefill)
}

// charge adds to a replica's book. Called with mu held.
func (r *Router) charge(l *live, ongoing, tokens int64) {
	old := l.book.Load()
	book := old + ongoing<<tokenBits + tokens
	l.book.Store(book)
	if l.connected.Load() {
		r.shared.loadSum.Add(r.shared.fixed(l, book) - r.shared.fixed(l, old))
	}
}

// fixed is the load as an integer; the same book always gives the same number.
func (s *shared) fixed(l *live, book int64) int64 { return int64(s.load(l, book) * loadUnit) }

// Close wakes everybody in the queue with ErrClosed, fails later picks, and
// closes the policy if it is an io.Closer. Bookings may still be released.
func (r *Router) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	r.requeue()
	r.mu.Unlock()
	if c, ok := r.opts.Policy.(io.Closer); ok {
		if err := c.Close(); err != nil {
			return fmt.Errorf("routing: closing the policy: %w", err)
		}
	}
	return nil
}
