package router

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Reservation is the load charged to a replica from the pick to the end of the
// attempt. The host provides its memory, so that picking does not allocate; the
// zero value is ready for [Router.Reserve]. It must not be copied once reserved.
//
// Its methods may be called from any goroutine, and more often than once. They
// cannot tell the pick they are meant for from a later one, so the memory may go
// to another pick only when it is released and nothing else keeps the pointer: a
// host that pools reservations gives them to one holder, one that shares a reservation
// (the end of the call here, the first message there) gives each call its own.
type Reservation struct {
	// Decision is what was decided. It stays readable after Release.
	Decision policy.Decision

	router  *Router
	prefill atomic.Int64 // tokens still charged
	shows   bool         // its wait is that of state.Book.Waits, until prefill is taken
	held    atomic.Bool  // in the books
	attempt outlier.Attempt
}

// Router returns the Router that made the reservation, or nil.
func (b *Reservation) Router() *Router { return b.router }

// PrefillDone drops the prompt's share of the load: the first response message
// has come. Later calls, and calls after Release, do nothing.
func (b *Reservation) PrefillDone() {
	r := b.router
	if r == nil {
		return
	}
	if prefill := b.takePrefill(); prefill > 0 {
		part.OfReplica(b.Decision.Replica).Book.Add(-prefill)
	}
	r.Routes.send(&b.Decision)
}

// takePrefill takes the prompt's share of the load, and has another call show how long calls wait on the replica.
func (b *Reservation) takePrefill() int64 {
	prefill := b.prefill.Swap(0)
	if prefill > 0 && b.shows {
		part.OfReplica(b.Decision.Replica).Book.Waits.Store(0)
	}
	return prefill
}

// Watched reports whether Answered returns how long the first message took. It is for the goroutine that made the pick.
func (b *Reservation) Watched() bool { return b.attempt.Watched() }

// Answered notes that the first response message has come: PrefillDone, and what it shows of the replica. It may come
// after Release. It returns how long the message took since the pick, 0 where the request is not watched. Later calls
// do nothing.
func (b *Reservation) Answered() time.Duration {
	r := b.router
	if r == nil {
		return 0
	}
	took := r.outliers.Answered(&b.attempt)
	b.PrefillDone()
	r.Health.Sync()
	return took
}

// Release gives back what the reservation holds, to the requests that wait for it before any that comes. It takes no
// lock where none waits. Later calls do nothing.
func (b *Reservation) Release() {
	if !b.held.Load() {
		return
	}
	latest := b.router.lineage.latest.Load()
	waits := latest.queue.waits.Load()
	if !waits {
		b.end()
		latest = b.router.lineage.latest.Load()
		waits = latest.queue.waits.Load() // since then
	}
	if waits {
		latest.end(b)
	}
	b.router.Health.Sync()
}

// Withdraw ends the reservation of an attempt that was never sent: Release, and the policy takes
// back what it has noted and learned. q is the request of the pick; the goroutine that has
// it calls this. Later calls do nothing.
func (b *Reservation) Withdraw(q *policy.Request) {
	b.Release()
	if b.router == nil {
		return
	}
	b.router.Complete(q, b.Decision, policy.Outcome{Fault: policy.GivenUp, Usage: policy.NoUsage})
	s := part.OfDecision(&b.Decision)
	s.Observed, s.Chosen = false, false
}

// end takes the reservation out of the books, and reports whether it was in them.
func (b *Reservation) end() bool {
	held := b.held.Swap(false)
	if held {
		part.OfReplica(b.Decision.Replica).Book.Add(-1<<state.TokenBits - b.takePrefill())
		b.router.outliers.End(&b.attempt)
	}
	return held
}

// Errors of a pick. They are matched with errors.Is.
var (
	// ErrNotConnected: no replica that the request may use is connected. A gRPC
	// host hands the request to gRPC, which alone can wake a connection.
	ErrNotConnected = errors.New("no replica is connected")
	// ErrConnecting: the replicas that the request may use are ejected or not connected, and one of them is being connected
	// for the first time. A gRPC host has the request wait for that.
	ErrConnecting = errors.New("the replicas that may serve the request are being connected")
	// ErrFull: every replica that the request may use has max_ongoing_requests
	// under way.
	ErrFull = errors.New("every replica that may serve the request has max_ongoing_requests under way")
	// ErrQueueFull: as many requests wait as may; raise max_queued_requests or
	// add replicas.
	ErrQueueFull = errors.New("the queue is full (max_queued_requests)")
	// ErrNoSuchReplica: the request names a replica that is not in the fleet or
	// is draining, or excludes every one that is left.
	ErrNoSuchReplica = errors.New("no replica of the fleet may serve the request")
	// ErrQueued: the request waits in the queue, with the Ticket that was asked for.
	ErrQueued = errors.New("the request waits in the queue")
	// ErrClosed: the Router was closed.
	ErrClosed = errors.New("the router is closed")
	// ErrHeld: the Reservation given to a pick still holds the load of another. It is
	// a mistake of the host; the load it holds stays until its Release.
	ErrHeld = errors.New("the reservation is still held")
)

// A WaitError is the error of Reserve where the context ended in the queue, or there was no room in the queue. It
// unwraps to the context's error or to ErrQueueFull.
type WaitError struct {
	Waited time.Duration
	Behind int // requests that were before it in the queue when it came
	// Longest is, where the queue was full, how long the first in it had waited.
	Longest time.Duration
	Cause   error // the context's error, and its cause where one was given; or ErrQueueFull
}

func (e *WaitError) Error() string {
	const unit = time.Millisecond
	switch {
	case e.Cause != ErrQueueFull:
		return fmt.Sprintf("waited %v for a replica with room, behind %d others: %v", e.Waited.Round(unit), e.Behind, e.Cause)
	case e.Waited > 0:
		return fmt.Sprintf("waited %v for a replica with room, behind %d others, "+
			"and made room for a request of higher priority: %v",
			e.Waited.Round(unit), e.Behind, e.Cause)
	}
	return fmt.Sprintf("%v: it would wait behind %d others, of which the first has waited %v",
		e.Cause, e.Behind, e.Longest.Round(unit))
}

// Unwrap returns the cause.
func (e *WaitError) Unwrap() error { return e.Cause }

// endOf returns the error of a context that ended, with its cause.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}
