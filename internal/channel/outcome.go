package channel

import (
	"google.golang.org/grpc/balancer"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/fault"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// Finished is the picker's Done: the attempt has ended.
func (c *Call) Finished(info balancer.DoneInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if c.outcome.FirstMessage > 0 {
		c.brokeLate(info.Err) // before the booking is released, so that a break is seen either way
	}
	refused := Ended(&c.booking, info)
	if !info.BytesSent && info.Err == nil {
		c.giveBack()
		c.last = Attempt{} // the connection was gone before anything happened
		return
	}
	c.last.Sent, c.last.Refused, c.last.Err = info.BytesSent, refused, info.Err
	c.last.Answered, c.last.Trailer = info.BytesReceived, info.Trailer
	c.outcome.Err, c.outcome.Sent = info.Err, info.BytesSent
	if c.outcome.Fault = fault.Of(info.Err); c.outcome.Fault != routing.NoFault && c.late() {
		c.outcome.Fault = routing.Late
	}
	c.pending = true
	c.abort(info)
	if !c.unary || info.Err != nil || c.ended { // what a server has reserved must not last through a backoff
		c.tell()
	}
}

// FirstMessage is called when the first response message has come.
func (c *Call) FirstMessage() {
	c.warnUnbound()
	c.acquit()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared {
		return
	}
	c.reservation.Prefilled()
	if c.outcome.FirstMessage = c.booking.Answered(); c.outcome.FirstMessage == 0 {
		c.outcome.FirstMessage = c.sincePick()
	}
	c.outran()
}

// Late says that the attempt under way is given up because its first message is late: its caller is about to cancel it.
func (c *Call) Late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.more().late = true
}

func (c *Call) late() bool {
	r := c.rare.Load()
	return r != nil && r.late
}

// outran holds it against the replica of an attempt that was given up as late where another one answers in time. Called
// with mu held.
func (c *Call) outran() {
	r := c.rare.Load()
	if r == nil || r.outrun == nil || c.binding == nil {
		return
	}
	if c.outcome.FirstMessage <= c.binding.Retries.FirstTokenTimeout {
		c.binding.Router.Outrun(r.outrun)
	}
	r.outrun = nil
}

// TellsUsage reports whether messages of the attempt may say something of tokens.
func (c *Call) TellsUsage() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.binding != nil && c.binding.Dialects.Lookup(c.Request.Method).HasUsage()
}

// ReadUsage reads what a response message says of tokens.
func (c *Call) ReadUsage(msg any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.binding == nil {
		return
	}
	if m := c.binding.Dialects.Lookup(c.Request.Method); m.HasUsage() {
		m.Usage(&c.outcome.Usage, msg)
	}
}

// End is called once by the interceptor after the last attempt: what was not
// claimed is released, and the outcome is told. Where a call ends while its
// stream is being opened, it is called again after that.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.brought.Swap(false) {
		c.giveBack()
	}
	c.tell()
}

// tell reports the outcome of the last booking, once. Called with mu held.
func (c *Call) tell() {
	if !c.pending {
		return
	}
	c.pending = false
	d, usage := c.booking.Decision, c.outcome.Usage
	if c.shared {
		c.outcome.Usage = routing.NoUsage
	}
	c.reservation.Released(&c.outcome)
	c.reservation = nil
	c.binding.Router.Complete(&c.Request, d, c.outcome)
	if s := c.span(); c.outcome.Fault != routing.NoFault && s != nil {
		telemetry.Ejected(s, c.binding.Router, d.Replica)
	}
	c.handle.Telemetry.Ended(c, c.binding.Policy, &c.Request, d, c.outcome)
	if r := c.report(); r != nil {
		r.Usage = usage
	}
	c.outcome = routing.Outcome{Usage: usage}
}

// Last returns how the last attempt went.
func (c *Call) Last() Attempt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// Next starts another attempt after the last one failed. One that our own
// picker refused, since all was full, does not count.
func (c *Call) Next() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.brought.Swap(false) {
		c.giveBack()
	}
	c.tell()
	c.outcome.Usage = routing.NoUsage
	if r := c.rare.Load(); r != nil {
		r.repeats = 0
	}
	if c.late() {
		r := c.more()
		r.late, r.outrun = false, c.last.Replica
	}
	if !c.last.Full {
		c.Request.NextAttempt(c.last.Replica)
	}
	c.last = Attempt{}
}
