package channel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
	"github.com/warmpath/warmpath/internal/fault"
	"github.com/warmpath/warmpath/internal/lookaside"
)

// A Call is one call of the application, from the interceptor to the end of its
// last attempt. It is the context of its attempts, so that a picker finds it.
//
// The goroutine of the call uses it, and so do gRPC's own goroutines through
// Finished; mu arbitrates between them.
type Call struct {
	context.Context
	Request routing.Request

	handle *Handle
	route  *Route
	msg    any // the request message, until the key is taken from it

	keyed   routing.Uses
	filled  bool
	refused bool // for want of a prompt; the goroutine of the call reads it after its attempt
	// unary: usage is read by the interceptor after gRPC's Done, which comes inside Invoke.
	unary     bool
	abortable bool // the engine is to be told, by requestID, that the caller went
	pending   bool // the outcome of the last booking is still to be told; guarded by mu

	rare    atomic.Pointer[rare] // nil for most calls
	met     atomic.Bool          // a picker of ours saw the call
	brought atomic.Bool          // the booking was acquired by the interceptor and not yet claimed

	// mu guards the fields below. The Router's mutex may be taken under it.
	mu      sync.Mutex
	binding *Binding // that made the booking
	booking routing.Booking
	last    Attempt
	outcome routing.Outcome // of the last booking; its usage is what this attempt's messages said

	reservation *lookaside.Reservation // the server's, of the booking; nil = none
}

// An Attempt says how the last attempt went.
type Attempt struct {
	Replica *routing.Replica // nil when none was picked
	Sent    bool             // the request left the client
	Full    bool             // our picker found every replica full
	Refused bool             // the replica said, in our words, that it is full
}

// NewCall returns a Call for a method; msg may be nil where the message is not
// known.
func (h *Handle) NewCall(ctx context.Context, method string, msg any, unary bool) *Call {
	c := new(Call)
	h.Start(c, ctx, method, msg, unary)
	return c
}

// Start is NewCall in memory of the caller's, which must be zero.
func (h *Handle) Start(c *Call, ctx context.Context, method string, msg any, unary bool) {
	c.Context, c.handle, c.msg, c.unary = ctx, h, msg, unary
	c.Request.Method = method
	c.outcome.Usage = routing.NoUsage
	h.budget.calls.Add(1)
	if unary {
		c.Request.Answer = routing.AnswerWhole
	}
	_, c.route = From(ctx)
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		c.more().span = s
	}
}

// Value returns the Call itself for this package's key.
func (c *Call) Value(k any) any {
	if _, ok := k.(key); ok {
		return c
	}
	return c.Context.Value(k)
}

// AfterFunc lets package context tell the end of the call's context to those
// derived from the call without a goroutine, where that context can.
func (c *Call) AfterFunc(f func()) (stop func() bool) {
	if a, ok := c.Context.(interface{ AfterFunc(func()) func() bool }); ok {
		return a.AfterFunc(f)
	}
	return context.AfterFunc(c.Context, f)
}

// Handle returns the handle of the call's channel.
func (c *Call) Handle() *Handle { return c.handle }

// SetMessage gives the request message once it is known.
func (c *Call) SetMessage(msg any) { c.msg = msg }

// AwaitsMessage says that the answer begins with a message of a stream, and that the replica has all it needs for it.
func (c *Call) AwaitsMessage() { c.Request.Answer = routing.AnswerMessage }

// DropMessage forgets the message and the prompt in it: no attempt will need
// them any more.
func (c *Call) DropMessage() {
	c.msg = nil
	c.Request.DropPrompt()
}

// fill takes the request key from the message and the metadata, once.
func (c *Call) fill(b *Binding) {
	if c.filled && c.keyed&b.Uses == b.Uses {
		return
	}
	c.filled, c.keyed = true, c.keyed|b.Uses
	q := &c.Request
	Apply(c.route, q)
	if r := c.rare.Load(); r != nil && r.avoid != "" {
		q.Exclude = append(slices.Clip(q.Exclude), r.avoid)
	}
	b.Metadata(c.Context, q)
	q.Priority = b.priority(c.Context)
	if c.msg == nil {
		return
	}
	m, known := b.Dialects.Lookup(c.Request.Method), q.ID != ""
	m.Request(q, c.keyed, c.msg)
	if c.abortable = m.Aborts(); c.abortable && known { // from the metadata
		id := m.RequestID(c.msg)
		c.more().id, c.abortable = id, id != ""
	}
}

// Apply puts what the application said through its context into a request.
func Apply(r *Route, q *routing.Request) {
	if r == nil {
		return
	}
	q.Session, q.Pin, q.Exclude = dialect.SessionKey(r.Session), r.Pin, r.Exclude
}

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
	return Status(err)
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
		return nil, false, err
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
	c.sent()
	d := c.booking.Decision
	c.last = Attempt{Replica: d.Replica}
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

// Finished is the picker's Done: the attempt has ended.
func (c *Call) Finished(info balancer.DoneInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	refused := Ended(&c.booking, info)
	if !info.BytesSent && info.Err == nil {
		c.giveBack()
		c.last = Attempt{} // the connection was gone before anything happened
		return
	}
	c.last.Sent, c.last.Refused = info.BytesSent, refused
	c.outcome.Err, c.outcome.Sent = info.Err, info.BytesSent
	c.outcome.Fault = fault.Of(info.Err)
	c.pending = true
	c.abort(info)
	if !c.unary || info.Err != nil { // what a server has reserved must not last through a backoff
		c.tell()
	}
}

// FirstMessage is called when the first response message has come.
func (c *Call) FirstMessage() {
	c.warnUnbound()
	c.acquit()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reservation.Prefilled()
	if c.outcome.FirstMessage = c.booking.Answered(); c.outcome.FirstMessage == 0 {
		c.outcome.FirstMessage = c.sincePick()
	}
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
	if c.brought.Swap(false) {
		c.giveBack()
	}
	c.unsent()
	c.tell()
}

// tell reports the outcome of the last booking, once. Called with mu held.
func (c *Call) tell() {
	if !c.pending {
		return
	}
	c.pending = false
	d := c.booking.Decision
	c.reservation.Released(&c.outcome)
	c.reservation = nil
	c.binding.Router.Complete(&c.Request, d, c.outcome)
	if s := c.span(); c.outcome.Fault != routing.NoFault && s != nil {
		telemetry.Ejected(s, c.binding.Router, d.Replica)
	}
	c.handle.Telemetry.Ended(c, c.binding.Policy, &c.Request, d, c.outcome)
	if r := c.report(); r != nil {
		r.Usage = c.outcome.Usage
	}
	c.outcome = routing.Outcome{Usage: c.outcome.Usage}
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
	if !c.last.Full {
		c.Request.NextAttempt(c.last.Replica)
	}
	c.last = Attempt{}
}

// warnUnbound speaks up, once a channel, when a replica answered and yet no
// picker of ours saw the call.
func (c *Call) warnUnbound() {
	if c.met.Load() || !c.handle.unbound() {
		return
	}
	c.handle.Telemetry.Unbound(c)
	c.handle.Logger.Warn("warmpath: calls of this channel do not reach the warmpath balancer: " +
		"a service config from the resolver or grpc.WithDefaultServiceConfig names another policy; " +
		`put {"loadBalancingConfig":[{"warmpath":{}}]} there, or dial with grpc.WithDisableServiceConfig`)
}

// Status turns an error of the Router into a gRPC status that says what to change.
func Status(err error) error {
	var wait *routing.WaitError
	switch {
	case errors.Is(err, routing.ErrFull), errors.Is(err, routing.ErrQueueFull):
		return status.Error(codes.ResourceExhausted, "warmpath: "+err.Error())
	case errors.As(err, &wait):
		return status.Error(status.FromContextError(wait.Cause).Code(), "warmpath: "+err.Error())
	}
	return status.Error(codes.Unavailable, "warmpath: "+err.Error())
}
