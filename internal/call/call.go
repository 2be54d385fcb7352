// Package call is one RPC from the interceptor to its end, and what the interceptors and the balancer of one channel
// share.
//
// The rule. An interceptor puts a [Call] into the context of every attempt, and the picker finds it there. The
// channel's [Handle] gives the interceptors the Router that the channel's balancer hosts, and keeps that Router while
// gRPC closes the balancer of an idle channel, so that what was learned survives. While several balancers of one
// channel are alive (xDS clusters, a switch of policy) the interceptors have no Router: the picker alone decides.
//
// Guarantees. A Handle owns memory only: nothing in it runs. A reservation that an interceptor made is either used by
// one picker or released by the interceptor.
package call

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fault"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Call is one call of the application, from the interceptor to the end of its last attempt. It is the context of its
// attempts, so that a picker finds it. An attempt passes five stages, in the order of this file:
//
//	key       what the policy may look at, from the message and the metadata
//	admit     is it sent at all: a prompt where one is required, and none in quarantine
//	reserve   the Router reserves a replica, or the call waits in its queue
//	Claim     the picker uses the reservation, and gRPC opens the stream
//	Finished  the outcome: first message, usage, release; observers run once
//
// The goroutine of the call uses it, and so do gRPC's own goroutines through Claim and Finished; mu arbitrates.
type Call struct {
	context.Context
	// Attempts is the retry loop; the goroutine of the call uses it.
	Attempts Attempts

	handle *Handle
	given  *Route // of the context that the call began with
	route  *Route // of the last attempt; guarded by mu once there was one
	key    key    // the goroutine of the call uses it until an attempt is at gRPC, then with mu

	met atomic.Bool // a picker of this package's channel saw the call

	// mu guards the fields below. The Router's mutex may be taken under it.
	mu       sync.Mutex
	few      *rare
	busy     bool // a reservation is being made, or an attempt is at gRPC
	ended    bool
	shared   bool // there was another attempt at the same time, so messages are of either
	reserved reservation
	outcome  outcome
}

// rare is what only few calls need to remember. Call.mu guards it.
type rare struct {
	span    trace.Span      // the application's, where it records
	picked  time.Time       // the last pick, where the Router does not measure
	rank    int             // one more than the data-parallel rank in the attempt's message, 0 = none
	repeats int             // attempts that were sent and repeated inside one pass of the retry loop
	inside  bool            // an interceptor inside makes them
	late    bool            // the attempt under way is given up because its first message is late
	outrun  *policy.Replica // of an earlier attempt that was given up for that; nil = none
}

// rarely returns what only few calls remember, to be written. Called with mu held.
func (c *Call) rarely() *rare {
	if c.few == &none {
		c.few = new(rare)
	}
	return c.few
}

var none rare // read only

// Start begins a call of a method in memory that the interceptor has, which must be zero; msg may be nil where the message
// is not known yet.
func (h *Handle) Start(
	c *Call, ctx context.Context, cc *grpc.ClientConn, method string, msg any, answer policy.Answer,
) {
	c.Context, c.handle, c.few = ctx, h, &none
	c.Attempts.call, c.Attempts.conn = c, cc
	c.key.msg, c.key.request.Method, c.key.request.Answer = msg, method, answer
	c.key.request.State().Origin = c
	c.outcome.result.Usage = policy.NoUsage
	h.budget.calls.Add(1)
	if c.given = h.routeOf(ctx); c.given != nil && c.given.Report != nil {
		*c.given.Report = telemetry.NoReport // over that of an earlier call
	}
	c.route = c.given
	if s := trace.SpanFromContext(ctx); s.IsRecording() {
		c.few = &rare{span: s}
	}
}

// Value returns the Call itself for this package's key.
func (c *Call) Value(k any) any {
	if _, ok := k.(ctxKey); ok {
		return c
	}
	return c.Context.Value(k)
}

// Message returns the request message, nil where it is not known yet or not needed any more.
func (c *Call) Message() any { return c.key.msg }

// Header returns the values of a key in the call's metadata.
func (c *Call) Header(key string) []string { return metadata.ValueFromOutgoingContext(c.Context, key) }

// dialect is how the call's messages are read, nil where no balancer is bound.
func (c *Call) dialect() *requestkey.Method {
	if b := c.handle.bound.Load(); b != nil {
		return b.Dialects.Lookup(c.key.request.Method)
	}
	return nil
}

// Handle returns the handle of the call's channel.
func (c *Call) Handle() *Handle { return c.handle }

// SetMessage gives the request message once it is known.
func (c *Call) SetMessage(msg any) { c.key.msg = msg }

// DropMessage forgets the message and the prompt in it: no other attempt needs them.
func (c *Call) DropMessage() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key.msg = nil
	router.DropPrompt(&c.key.request)
}

// reserve takes the key, admits the call and reserves a replica before gRPC is asked for a stream, waiting in the queue
// where all are full. It returns nil without a reservation where only gRPC can help. The error is a gRPC status. A
// backoff that is not 0 is the wait of a call that a full replica refused: it passes in the queue, before the call may
// have room.
func (c *Call) reserve(b *Binding, backoff time.Duration) error {
	c.mu.Lock()
	if c.busy { // with an attempt of an interceptor that did not wait for its end
		c.mu.Unlock()
		return nil
	}
	c.busy, c.shared, c.outcome.last = true, false, attempt{}
	c.mu.Unlock()
	c.key.fill(c.Context, c.handle, b, c.route)
	err := c.admit(b)
	if err == nil {
		err = c.reserved.make(c, b, &c.key.request, backoff)
	}
	c.mu.Lock()
	c.busy = false
	c.mu.Unlock()
	return err
}

// admit returns the error of a call that is not sent.
func (c *Call) admit(b *Binding) error {
	if c.key.lacksPrompt(b) {
		return c.key.refusal()
	}
	if q := &c.handle.quarantine; q.held.Load() > 0 && b.quarantineTTL() > 0 {
		if prompt, ok := c.key.prompt(b.Dialects.Lookup(c.key.request.Method)); ok {
			return b.quarantined(c, q.refuses(prompt, time.Now(), b.quarantineTTL()))
		}
	}
	return nil
}

// Claim gives an attempt its replica for a picker: the one that was reserved in the picker's Router, else a new one. It
// returns the Call that has the reservation: another one for an attempt that is made while one is under way, or after
// the call. ready reports whether the attempt may be sent. Where the connection is only being opened the call keeps its
// reservation for the next picker.
func (c *Call) Claim(
	ctx context.Context, route *Route, b *Binding, state stateOf,
) (claimed *Call, ready bool, err error) {
	c.met.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.ended {
		c.shared = true
		claimed = c.extra(route)
		claimed.mu.Lock()
		defer claimed.mu.Unlock()
		ready, err = claimed.claim(ctx, b, state)
		if !ready && err == nil { // the next picker makes another one
			claimed.reserved.brought.Store(false)
			claimed.reserved.giveBack(&claimed.key.request)
		}
		return claimed, ready, err
	}
	if route != c.route {
		c.reroute(route)
	}
	ready, err = c.claim(ctx, b, state)
	return c, ready, err
}

// stateOf returns the state of a replica's connection.
type stateOf = func(*policy.Replica) connectivity.State

// extra returns the Call of an attempt beside another one, or after the end. Its key is taken anew, its decision is not
// reported, and nothing but its outcome becomes known. Called with mu held.
func (c *Call) extra(route *Route) *Call {
	n := &Call{Context: c.Context, handle: c.handle, given: route, route: route, ended: true, few: &none}
	if route != nil && route.Report != nil {
		n.route = route.changed(func(r *Route) { r.Report = nil })
	}
	n.key.msg, n.key.request.Method, n.key.request.Answer = c.key.msg, c.key.request.Method, c.key.request.Answer
	n.outcome.result.Usage = policy.NoUsage
	return n
}

// reroute takes over a route that an interceptor inside has changed. What was reserved before is given back. Called
// with mu held.
func (c *Call) reroute(r *Route) {
	old := c.route
	c.route = r
	if old != nil && r != nil && r.Session == old.Session && r.Pin == old.Pin && slices.Equal(r.Exclude, old.Exclude) {
		return // as before, but for where it is reported
	}
	c.reserved.drop(&c.key.request)
	c.key.filled = false
	router.Rekey(&c.key.request)
}

// claim is Claim for the call itself. Called with mu held.
func (c *Call) claim(ctx context.Context, b *Binding, state stateOf) (ready bool, err error) {
	if c.reserved.brought.Swap(false) {
		if c.reserved.held.Router() == b.Router {
			if ready, kept := c.use(ctx, b, state); ready || kept {
				return ready, nil
			}
		}
		c.reserved.giveBack(&c.key.request)
	}
	c.complete()
	if c.outcome.last.Replica != nil { // gRPC itself repeats the attempt, or an interceptor inside
		if c.outcome.last.Sent { // gRPC does that once, and only where no answer came
			r := c.rarely()
			r.repeats++
			r.inside = r.inside || c.outcome.last.Answered || r.repeats > 1
		}
		router.NextAttempt(&c.key.request, c.outcome.last.Replica)
		c.outcome.last = attempt{}
	}
	c.key.fill(c.Context, c.handle, b, c.route)
	if c.key.lacksPrompt(b) {
		return false, errNoPrompt
	}
	if m := b.asks(&c.key.request); m != nil && m.Closed {
		return false, errUnasked
	}
	if err := b.Router.Reserve(ctx, &c.key.request, &c.reserved.held, router.How{NoWait: true}); err != nil {
		if err == router.ErrFull {
			c.outcome.last.Full, c.reserved.full = true, b
		}
		return false, Explain(err, &c.key.request, b.Router.View())
	}
	c.reserved.decidedHere(b, &c.key.request)
	ready, kept := c.use(ctx, b, state)
	if !ready && !kept {
		c.reserved.giveBack(&c.key.request)
	}
	return ready, nil
}

// use makes the reservation that of the attempt if its connection is ready, or keeps it for the next picker if a pick
// opens the connection. Called with mu held.
func (c *Call) use(ctx context.Context, b *Binding, state stateOf) (ready, kept bool) {
	r := c.reserved.held.Decision.Replica
	switch state(r) {
	case connectivity.Ready:
	case connectivity.Idle, connectivity.Connecting:
		kept = r.Connected() // to the Router: the fleet is too large to connect to all of it
		c.reserved.brought.Store(kept)
		return false, kept
	default:
		return false, false
	}
	c.busy, c.reserved.binding = true, b
	c.outcome.last = attempt{Replica: r, breaks: c.handle.quarantine.breaks.Load()}
	if b.Router.Observes() && !c.reserved.held.Watched() {
		c.rarely().picked = time.Now()
	}
	Note(ctx, b, c.few.span, c.route, &c.key.request, c.Decision())
	return true, false
}

// Decision is that of the reservation.
func (c *Call) Decision() *policy.Decision { return &c.reserved.held.Decision }

// Unclaim gives back the reservation of a pick that cannot be used after all.
func (c *Call) Unclaim() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	c.reserved.giveBack(&c.key.request)
	c.outcome.last = attempt{}
}

// Finished is the picker's Done: the attempt has ended.
func (c *Call) Finished(info balancer.DoneInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if c.outcome.result.FirstMessage > 0 {
		c.brokeLate(info.Err) // before the release, so that a break is seen either way
	}
	refused := Ended(&c.reserved.held, info)
	if !info.BytesSent && info.Err == nil {
		c.reserved.giveBack(&c.key.request)
		c.outcome.last = attempt{} // the connection was gone before anything happened
		return
	}
	o, late := &c.outcome, c.few.late
	o.last.Sent, o.last.Refused, o.last.Err = info.BytesSent, refused, info.Err
	o.last.Answered, o.last.Trailer = info.BytesReceived, info.Trailer
	o.result.Err, o.result.Sent, o.result.Fault = info.Err, info.BytesSent, fault.Of(info.Err)
	if o.result.Fault != policy.NoFault && late {
		o.result.Fault = policy.Late
	}
	o.pending = true
	if info.Err != nil && c.key.abortable {
		c.abort(info, late)
	}
	// The usage in a unary answer is read after this, inside Invoke. Of the others the end is known now: what a server has
	// reserved must not last through a backoff.
	if c.key.request.Answer != policy.AnswerWhole || info.Err != nil || c.ended {
		c.complete()
	}
}

// brokeLate notes that a connection may have broken under a call that was answered: under others it is no evidence
// against their prompts. Called with mu held.
func (c *Call) brokeLate(err error) {
	b := c.reserved.binding
	if b != nil && b.quarantineTTL() > 0 && status.Code(err) == codes.Unavailable && c.outcome.last.Replica != nil {
		at := breakage{replica: c.outcome.last.Replica.ID, at: time.Now(), began: c.outcome.last.breaks}
		c.handle.quarantine.broke(at, b.quarantineTTL())
	}
}

// abort has the engine of an attempt stop, where the call was cancelled and the engine does not stop by itself. Called
// with mu held.
func (c *Call) abort(info balancer.DoneInfo, late bool) {
	if !info.BytesSent || c.reserved.binding.Abort == nil {
		return
	}
	if code := status.Code(info.Err); code != codes.Canceled && code != codes.DeadlineExceeded {
		return
	}
	id := c.key.requestID()
	if id == "" || c.Context.Err() == nil && !late { // the status is the replica's own
		return
	}
	b, ctx := c.reserved.binding, c.Context
	method := b.Dialects.Lookup(c.key.request.Method).Abort()
	b.Abort(ctx, c.reserved.held.Decision.Replica.ID, method, id, func(how string) {
		b.Telemetry.Count(context.WithoutCancel(ctx), telemetry.Aborts, b.Policy, how)
	})
}

// FirstMessage is called when the first response message has come. It reports whether messages may have usage.
func (c *Call) FirstMessage() (usage bool) {
	h := c.handle
	if !c.met.Load() {
		h.warnUnbound(c)
	}
	if q := &h.quarantine; q.held.Load() > 0 {
		if prompt, ok := c.key.prompt(c.dialect()); ok {
			q.clear(prompt) // a replica has answered it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.shared {
		if c.reserved.server != nil {
			c.reserved.server.Prefilled()
		}
		c.outcome.result.FirstMessage = c.reserved.held.Answered()
		if c.few != &none {
			c.few.answered(&c.outcome.result, c.reserved.binding)
		}
	}
	return c.reserved.binding != nil && c.reserved.binding.Dialects.Lookup(c.key.request.Method).HasUsage()
}

// answered is FirstMessage for what few calls remember: the time where the Router has none, and the replica of an
// attempt that was given up as late where another one answers in time.
func (r *rare) answered(o *policy.Outcome, b *Binding) {
	if o.FirstMessage == 0 && !r.picked.IsZero() {
		o.FirstMessage = time.Since(r.picked)
	}
	if r.outrun != nil && b != nil {
		if o.FirstMessage <= time.Duration(b.Config.FirstTokenTimeout) {
			b.Router.Health.Outrun(r.outrun)
		}
		r.outrun = nil
	}
}

// ReadUsage reads the token counts in a response message.
func (c *Call) ReadUsage(msg any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reserved.binding == nil {
		return
	}
	if m := c.reserved.binding.Dialects.Lookup(c.key.request.Method); m.HasUsage() {
		m.Usage(&c.outcome.result.Usage, msg)
	}
}

// End is called once by the interceptor after the last attempt: what was not used is released, and the outcome is
// reported. Where a call ends while its stream is being opened, it is called again after that.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	c.reserved.drop(&c.key.request)
	c.complete()
}

// complete reports the outcome of the last reservation, once. Called with mu held.
func (c *Call) complete() {
	if !c.outcome.pending {
		return
	}
	c.outcome.pending = false
	b, d, usage := c.reserved.binding, c.Decision(), c.outcome.result.Usage
	if c.shared {
		c.outcome.result.Usage = policy.NoUsage
	}
	if c.reserved.server != nil {
		c.reserved.server.Released(&c.outcome.result)
		c.reserved.server = nil
	}
	b.Router.Complete(&c.key.request, *d, c.outcome.result)
	if c.outcome.result.Fault != policy.NoFault {
		if c.few.span != nil {
			telemetry.Ejected(c.few.span, b.Router, d.Replica)
		}
	}
	c.handle.Telemetry.Ended(c, b.Policy, &c.key.request, d, &c.outcome.result)
	if c.route != nil && c.route.Report != nil {
		c.route.Report.Usage = usage
	}
	c.outcome.result = policy.Outcome{Usage: usage}
}
