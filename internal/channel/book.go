package channel

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Acquire books a replica before gRPC is asked for a stream, waiting in the
// queue where all are full. It returns nil without a booking where only gRPC can
// help. The error is a gRPC status.
func (c *Call) Acquire(b *Binding) error {
	c.last = Attempt{}
	c.fill(b)
	if c.lacksPrompt(b) {
		return c.Final(ErrNoPrompt)
	}
	if err := c.checkQuarantine(b); err != nil {
		return err
	}
	if b.Central != nil {
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
	err := b.Router.Acquire(c, &c.Request, &c.booking)
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

// Book returns the booking of this attempt for a picker: the one that came with
// the call if the picker's Router made it, else a new one. ready says that its
// connection is: the attempt may be sent. Where the connection is only being
// opened the call keeps its booking and brings it along again to the next picker.
func (c *Call) Book(ctx context.Context, route *Route, b *Binding, connection func(*routing.Replica) connectivity.State) (booked *routing.Booking, ready bool, err error) {
	c.met.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if route != c.route {
		c.reroute(route)
	}
	if c.brought.Swap(false) {
		if c.booking.Router() == b.Router {
			if ready, kept := c.claim(ctx, b, connection); ready || kept {
				return &c.booking, ready, nil
			}
		}
		c.giveBack()
	}
	c.tell()
	if c.last.Replica != nil { // gRPC itself repeats the attempt
		c.Request.NextAttempt(c.last.Replica)
		c.last = Attempt{}
	}
	c.fill(b)
	if c.lacksPrompt(b) {
		return nil, false, ErrNoPrompt
	}
	if m := c.central(b); m != nil && m.Closed {
		return nil, false, errUnasked
	}
	if err := b.Router.Pick(ctx, &c.Request, &c.booking); err != nil {
		c.last.Full = err == routing.ErrFull
		return nil, false, Explain(err, &c.Request, b.Router.View())
	}
	c.decidedHere(b)
	ready, kept := c.claim(ctx, b, connection)
	if !ready && !kept {
		c.giveBack()
	}
	return &c.booking, ready, nil
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
	note(ctx, c.handle.Telemetry, c.span(), b.Policy, c.report(), &c.Request, d)
}

// Unclaim takes back the booking of a pick that cannot be used after all.
func (c *Call) Unclaim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giveBack()
	c.last = Attempt{}
}
