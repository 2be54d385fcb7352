package channel

import (
	"errors"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
)

// errNoOther: there is no other replica to which a second attempt could go now.
var errNoOther = errors.New("no other replica for a second attempt")

// Beside returns the Call of a second attempt, with a booking of its own on another
// replica than the one that has the call now. cause is the reason under which it is
// counted. It never waits: ErrRetryBudget says that the budget is spent, any other error
// that nobody else has room, or that the call may go nowhere else. The attempt is in the
// budget, in the metrics and known to the policy from when it is sent; one that ends
// before leaves nothing behind. The goroutine of the call uses it, also while gRPC is at
// the first attempt; what either Call does then is nothing to the other, until Replace or
// Drop.
func (c *Call) Beside(why routing.Reason, cause string) (*Call, error) {
	b := c.handle.Bound()
	if b == nil {
		return nil, errNoOther
	}
	if !c.Retry() {
		return nil, ErrRetryBudget
	}
	n, err := c.beside(b)
	if err != nil {
		c.handle.unretry(b.Retries)
		return nil, err
	}
	if why != "" {
		n.booking.Decision.Reason = why
	}
	n.more().unsent = cause
	return n, nil
}

// beside books the second attempt.
func (c *Call) beside(b *Binding) (*Call, error) {
	n := &Call{Context: c.Context, handle: c.handle, msg: c.msg, unary: c.unary}
	n.outcome.Usage = routing.NoUsage
	if !c.lend(n) {
		return nil, errNoOther
	}
	r := n.more()
	r.span = c.span()
	r.notAlone, r.report = true, new(telemetry.Report) // its own, while the first goes on
	n.fill(b)
	if n.Request.Pin != "" {
		return nil, errNoOther
	}
	if m := n.central(b); m != nil && m.Closed {
		return nil, errNoOther // only the server may decide
	}
	if err := n.checkQuarantine(b); err != nil {
		return nil, err
	}
	if err := b.Router.Spare(n, &n.Request, &n.booking); err != nil {
		return nil, err
	}
	n.binding = b
	n.brought.Store(true)
	return n, nil
}

// lend gives a second Call what it must know of the first.
func (c *Call) lend(n *Call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.Replica == nil {
		return false
	}
	n.route, n.more().avoid = c.route, c.last.Replica.ID
	n.Request = c.Request
	n.Request.Rekey()
	n.Request.NextAttempt(c.last.Replica)
	return true
}

// sent counts a second attempt that is about to be sent. Called with mu held.
func (c *Call) sent() {
	c.binding.Router.Sent(&c.Request, &c.booking)
	if r := c.rare.Load(); r != nil && r.unsent != "" {
		c.Retried(r.unsent)
		r.unsent = ""
	}
}

// unsent gives back what a second attempt took that was never sent. Called with mu held.
func (c *Call) unsent() {
	if r := c.rare.Load(); r != nil && r.unsent != "" {
		r.unsent = ""
		c.handle.unretry(c.binding.Retries)
	}
}

// Replace makes the second attempt the one of the call: what the application is told of
// the decision is the second's from now on. The first is dropped.
func (c *Call) Replace(first *Call) {
	report, late := first.Drop(), first.givenUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.more()
	if report != nil {
		*report = *own.report
	}
	own.report = report
	own.outrun = late
}

// readmit lets the attempts after a second one go to the replica of the first again: it is one that was tried, and may be
// the only one that has room. Called with mu held.
func (c *Call) readmit() {
	r := c.rare.Load()
	if r == nil || r.avoid == "" {
		return
	}
	r.avoid, c.Request.Exclude = "", nil
	if c.route != nil {
		c.Request.Exclude = c.route.Exclude
	}
}

// Drop says that the attempt is out of the call: its caller is about to cancel it, and its
// engine is told so. It returns where the application wants to read the decision.
func (c *Call) Drop() *telemetry.Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	report, r := c.report(), c.more()
	r.dropped, r.notAlone, r.report = true, true, nil
	return report
}

// Forget is DropMessage for an attempt that was dropped, and End.
func (c *Call) Forget() {
	c.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.DropMessage()
}

// HedgeWon counts that a second attempt answered first.
func (c *Call) HedgeWon() { c.handle.Telemetry.HedgeWon(c, c.policy()) }
