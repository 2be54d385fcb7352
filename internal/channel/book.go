package channel

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/pause"
)

// Queue returns the Binding in whose Router the call may wait: that of the channel's balancer, and, where it has several
// or none, that of the one whose picker found all replicas full; nil = only gRPC can help.
func (c *Call) Queue() *Binding {
	if b := c.handle.Bound(); b != nil {
		return b
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.full
}

// Acquire books a replica before gRPC is asked for a stream, waiting in the
// queue where all are full. It returns nil without a booking where only gRPC can
// help. The error is a gRPC status. A backoff that is not 0 is the wait of a call that a full replica refused: it
// passes in the queue, before the call may have room.
func (c *Call) Acquire(b *Binding, backoff time.Duration) error {
	c.mu.Lock()
	if c.busy { // with an attempt of an interceptor that did not wait for its end
		c.mu.Unlock()
		return nil
	}
	c.busy, c.shared, c.last = true, false, Attempt{}
	c.mu.Unlock()
	err := c.acquire(b, backoff)
	c.mu.Lock()
	c.busy = false
	c.mu.Unlock()
	return err
}

func (c *Call) acquire(b *Binding, backoff time.Duration) error {
	c.fill(b)
	if c.lacksPrompt(b) {
		return c.Final(ErrNoPrompt)
	}
	if err := c.checkQuarantine(b); err != nil {
		return err
	}
	if b.Central != nil {
		if pause.For(c, backoff) != nil {
			return status.FromContextError(c.Err()).Err()
		}
		backoff = 0
		booked, err := c.timedAsk(b)
		if booked {
			c.binding = b
			c.brought.Store(true)
		}
		if booked || err != nil {
			return err
		}
	}
	timed := c.handle.Telemetry.Timed(c)
	var start time.Time
	if timed {
		start = time.Now()
	}
	err := b.Router.AcquireAfter(c, backoff, &c.Request, &c.booking)
	switch err {
	case nil:
		c.decidedHere(b)
		c.binding = b
		c.brought.Store(true)
		if timed && c.booking.Decision.Queued == 0 {
			c.handle.Telemetry.Picked(c, b.Policy, time.Since(start))
		}
		return nil
	case routing.ErrNotConnected, routing.ErrClosed:
		return nil
	}
	return Status(Explain(err, &c.Request, b.Router.View()))
}

// Book books an attempt for a picker, with the booking that came with the call if the picker's
// Router made it, else with a new one. It returns the Call that has the booking: another one for an
// attempt that is made while one is under way, or after the call. ready says that its connection is:
// the attempt may be sent. Where the connection is only being opened the call keeps its booking and
// brings it along again to the next picker.
func (c *Call) Book(ctx context.Context, route *Route, b *Binding, connection func(*routing.Replica) connectivity.State) (booked *Call, ready bool, err error) {
	c.met.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.ended {
		c.shared = true
		booked = c.extra(route)
		booked.mu.Lock()
		defer booked.mu.Unlock()
		ready, err = booked.book(ctx, b, connection)
		if !ready && err == nil { // the next picker makes another one
			booked.brought.Store(false)
			booked.giveBack()
		}
		return booked, ready, err
	}
	if route != c.route {
		c.reroute(route)
	}
	ready, err = c.book(ctx, b, connection)
	return c, ready, err
}

// extra returns the Call of an attempt beside another one, or after the end. Its key is taken anew, its decision is not
// reported, and nothing but its outcome becomes known. Called with mu held.
func (c *Call) extra(route *Route) *Call {
	n := &Call{Context: c.Context, handle: c.handle, given: route, route: route, msg: c.msg, ended: true}
	if route != nil && route.Report != nil {
		n.route = route.changed(func(r *Route) { r.Report = nil })
	}
	n.Request.Method, n.Request.Answer = c.Request.Method, c.Request.Answer
	n.outcome.Usage = routing.NoUsage
	return n
}

// Decision is that of the booking.
func (c *Call) Decision() *routing.Decision { return &c.booking.Decision }

// book is Book for the call itself. Called with mu held.
func (c *Call) book(ctx context.Context, b *Binding, connection func(*routing.Replica) connectivity.State) (ready bool, err error) {
	if c.brought.Swap(false) {
		if c.booking.Router() == b.Router {
			if ready, kept := c.claim(ctx, b, connection); ready || kept {
				return ready, nil
			}
		}
		c.giveBack()
	}
	c.tell()
	if c.last.Replica != nil { // gRPC itself repeats the attempt, or an interceptor inside
		c.repeated()
		c.Request.NextAttempt(c.last.Replica)
		c.last = Attempt{}
	}
	c.fill(b)
	if c.lacksPrompt(b) {
		return false, ErrNoPrompt
	}
	if m := c.central(b); m != nil && m.Closed {
		return false, errUnasked
	}
	if err := b.Router.Pick(ctx, &c.Request, &c.booking); err != nil {
		if err == routing.ErrFull {
			c.last.Full, c.full = true, b
		}
		return false, Explain(err, &c.Request, b.Router.View())
	}
	c.decidedHere(b)
	ready, kept := c.claim(ctx, b, connection)
	if !ready && !kept {
		c.giveBack()
	}
	return ready, nil
}

// reroute takes over what an interceptor that runs after ours said about the
// call. What was booked before it spoke is given back. Called with mu held.
func (c *Call) reroute(r *Route) {
	if old := c.route; old != nil && r != nil && r.Session == old.Session && r.Pin == old.Pin && slices.Equal(r.Exclude, old.Exclude) {
		c.route = r // as before, but for where it is reported
		return
	}
	if c.brought.Swap(false) {
		c.giveBack()
	}
	c.route = r
	c.filled = false
	c.Request.Rekey()
}

// claim makes the booking that of the attempt if its connection is ready, or
// keeps it for the next picker if a pick opens the connection. Called with mu
// held.
func (c *Call) claim(ctx context.Context, b *Binding, connection func(*routing.Replica) connectivity.State) (ready, kept bool) {
	r := c.booking.Decision.Replica
	switch connection(r) {
	case connectivity.Ready:
		c.note(ctx, b)
		c.busy = true
		return true, false
	case connectivity.Idle, connectivity.Connecting:
		kept = r.Connected() // to the Router: the fleet is too large to connect to all of it
		c.brought.Store(kept)
	}
	return false, kept
}

// note records the decision of an attempt that is about to be sent.
func (c *Call) note(ctx context.Context, b *Binding) {
	c.binding = b
	d := c.booking.Decision
	c.last = Attempt{Replica: d.Replica, breaks: c.handle.quarantine.breaks.Load()}
	if b.Router.Observes() && !c.booking.Watched() {
		c.more().picked = time.Now()
	}
	note(ctx, b, c.span(), c.report(), &c.Request, d)
}

// Unclaim takes back the booking of a pick that cannot be used after all.
func (c *Call) Unclaim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	c.giveBack()
	c.last = Attempt{}
}
