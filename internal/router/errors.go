package router

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of a pick. They are matched with errors.Is.
var (
	// ErrNotConnected: no replica that the request may use is connected. A gRPC
	// host hands the request to gRPC, which alone can wake a connection.
	ErrNotConnected = errors.New("no replica is connected")
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

// A WaitError is the error of Reserve where the context ended in the queue, or there was no room in the queue. It unwraps to the context's error or to
// ErrQueueFull.
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
