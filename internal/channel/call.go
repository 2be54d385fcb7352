package channel

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/telemetry"
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
	given  *Route // at the beginning; it does not change
	route  *Route // of the last attempt; guarded by mu once there was one
	msg    any    // the request message, until the first response message; set to nil under mu

	keyed   routing.Uses
	filled  bool
	refused bool // for want of a prompt; the goroutine of the call reads it after its attempt
	// unary: usage is read by the interceptor after gRPC's Done, which comes inside Invoke.
	unary     bool
	abortable bool // the engine is to be told, by requestID, that the caller went
	pending   bool // the outcome of the last booking is still to be told; guarded by mu
	busy      bool // the booking is being acquired or is that of an attempt at gRPC; guarded by mu
	ended     bool // guarded by mu
	shared    bool // there was another attempt at the same time, so messages are of either; guarded by mu

	rare    atomic.Pointer[rare] // nil for most calls
	met     atomic.Bool          // a picker of ours saw the call
	brought atomic.Bool          // the booking was acquired by the interceptor and not yet claimed

	// mu guards the fields below. The Router's mutex may be taken under it.
	mu      sync.Mutex
	binding *Binding // that made the booking
	booking routing.Booking
	last    Attempt
	full    *Binding        // of the picker that found all replicas full last
	outcome routing.Outcome // of the last booking; its usage is what this attempt's messages said

	reservation *lookaside.Reservation // the server's, of the booking; nil = none
}

// An Attempt says how the last attempt went.
type Attempt struct {
	Replica *routing.Replica // nil when none was picked
	Sent    bool             // the request left the client
	Full    bool             // our picker found every replica full
	Refused bool             // the replica refused the request with warmpath's trailer since it is full
	// Answered says that something of an answer came, headers at least. Trailer is its trailing metadata. An answer without
	// headers and messages, a status alone, has its content type there.
	Answered bool
	Trailer  metadata.MD

	Err    error  // the status that the attempt ended with; nil = OK, or not ended
	breaks uint64 // of connections, before it began
}

// StatusAlone reports whether the replica answered with a status in place of headers and messages.
func (a *Attempt) StatusAlone() bool { return len(a.Trailer["content-type"]) > 0 }

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
	c.Request.SetOrigin(c)
	c.outcome.Usage = routing.NoUsage
	h.budget.calls.Add(1)
	if unary {
		c.Request.Answer = routing.AnswerWhole
	}
	c.given = h.routeOf(ctx)
	c.route = c.given
	if c.route != nil && c.route.Report != nil {
		*c.route.Report = telemetry.NoReport // over that of an earlier call
	}
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

// Message returns the request message, nil where it is not known yet or not needed any more.
func (c *Call) Message() any { return c.msg }

// Header returns the values of a key in the call's metadata.
func (c *Call) Header(key string) []string { return metadata.ValueFromOutgoingContext(c.Context, key) }

// Handle returns the handle of the call's channel.
func (c *Call) Handle() *Handle { return c.handle }

// SetMessage gives the request message once it is known.
func (c *Call) SetMessage(msg any) { c.msg = msg }

// AwaitsMessage says that the answer begins with a message of a stream, and that the replica has all it needs for it.
func (c *Call) AwaitsMessage() { c.Request.Answer = routing.AnswerMessage }

// DropMessage forgets the message and the prompt in it: no attempt will need
// them any more.
func (c *Call) DropMessage() {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	c.readMetadata(b, q)
	if c.msg == nil {
		return
	}
	m, known := b.Dialects.Lookup(c.Request.Method), q.ID != ""
	if err := m.Request(q, c.keyed, c.msg); err != nil {
		c.handle.warnUnread(c.Request.Method, err)
	}
	if c.abortable = m.Aborts(); c.abortable && known { // from the metadata
		id := m.RequestID(c.msg)
		c.more().id, c.abortable = id, id != ""
	}
}

// readMetadata takes what the request key has from the context and the metadata.
func (c *Call) readMetadata(b *Binding, q *routing.Request) {
	Apply(c.route, q)
	b.Metadata(c.Context, q)
	q.Priority = b.priority(c.Context)
}

// CanMove reports whether another replica than the one that has the attempt has room for the call now.
// The goroutine of the call uses it while gRPC is at the attempt.
func (c *Call) CanMove() bool {
	b := c.handle.Bound()
	if b == nil {
		return false
	}
	c.mu.Lock()
	q, at := c.Request, c.last.Replica
	q.Rekey() // a copy that shares no memory with the request
	c.mu.Unlock()
	c.readMetadata(b, &q)
	if at == nil || q.Pin != "" || b.Central != nil && b.Central.Closed {
		return false
	}
	q.Exclude = append(slices.Clip(q.Exclude), at.ID)
	if c.msg != nil {
		b.Dialects.Lookup(q.Method).Request(&q, c.keyed, c.msg)
	}
	return b.Router.HasRoom(c, &q)
}

// Apply puts what the application said through its context into a request.
func Apply(r *Route, q *routing.Request) {
	if r == nil {
		return
	}
	q.Session, q.Pin, q.Exclude = dialect.Session(r.Session), r.Pin, r.Exclude
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
