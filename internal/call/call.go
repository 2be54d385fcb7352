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
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/pause"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// A Call is one call of the application, from the interceptor to the end of its last attempt. Its Scope is the context
// of its attempts, so that a picker finds it. An attempt passes five stages, four in the order of this file, the last
// in outcome.go:
//
//	key       what the policy may look at, from the message and the metadata
//	admit     is it sent at all: a prompt where one is required
//	reserve   the Router reserves a replica, or the call waits in its queue
//	Claim     the picker uses the reservation, and gRPC opens the stream
//	Finished  the outcome: first message, usage, release; observers run once
//
// The goroutine of the call uses it, and so do gRPC's own goroutines through Claim and Finished; mu arbitrates.
type Call struct {
	*Scope
	// Attempts is the retry loop; the goroutine of the call uses it.
	Attempts Attempts
	// Resume is for a stream that may go on at another replica; nil = it is none. Set before the first attempt.
	Resume *Resume

	cancel context.CancelFunc      // of Context; nil where that is the application's own
	early  *early                  // is Context; nil = the service config was known when the call began
	done   func(balancer.DoneInfo) // Finished; nil until it is needed
	spare  any                     // memory for what is prepared; nil = there is none, or it is in use
	route  *Route                  // of the last attempt; guarded by mu once there was one
	key    key                     // the goroutine of the call uses it until an attempt is at gRPC, then with mu

	// mu guards the fields below. The Router's mutex may be taken under it.
	mu       sync.Mutex
	busy     bool // a reservation is being made, or an attempt is at gRPC
	ended    bool
	bare     bool  // there is no interceptor: the call is one attempt
	shared   bool  // there was another attempt at the same time, so messages are of either
	inside   bool  // an interceptor inside repeats attempts
	late     bool  // the attempt under way is given up because its first message is late
	dropped  bool  // the application has dropped the stream
	leg      bool  // it is the prefill leg of another Call
	split    bool  // an attempt was sent in two legs
	begun    bool  // the application has a part of the answer: the usage is that of all attempts
	pending  bool  // the outcome is still to be reported
	plain    bool  // it has ended, and nothing else refers to it
	repeats  int8  // attempts that were sent and repeated inside one pass of the retry loop, up to 2
	resumed  int8  // attempts that went on with a stream whose replica died
	rank     int16 // one more than the data-parallel rank that goes into the attempt's message, 0 = none
	reserved reservation
	outcome  outcome
	outrun   *policy.Replica // of an earlier attempt that was given up as late; nil = none
	legs     *legs           // of the attempt, or of the attempt that this leg belongs to; nil = it is served whole. The call's goroutine sets it
}

// A Scope is the context of a call's attempts. gRPC and interceptors may keep it for as long as they like; the Call,
// whose memory may be used again when it has ended, is reached through it alone.
type Scope struct {
	context.Context // ends with the application's, at the timeout of the service config, and as Start describes
	handle          *Handle
	given           *Route // of the context that the call began with

	mu   sync.Mutex // guards call, and is held while a picker uses it. That one's mu may be taken under it
	call *Call      // nil once its memory is used again
}

// Value returns the Scope itself for this package's key.
func (s *Scope) Value(k any) any {
	if _, ok := k.(ctxKey); ok {
		return s
	}
	return s.Context.Value(k)
}

// Handle returns the handle of the call's channel.
func (s *Scope) Handle() *Handle { return s.handle }

// Enter returns the Call until Leave, or nil, without a Leave, where its memory is used again.
func (s *Scope) Enter() *Call {
	s.mu.Lock()
	if s.call == nil {
		s.mu.Unlock()
		return nil
	}
	return s.call
}

// Leave follows Enter.
func (s *Scope) Leave() { s.mu.Unlock() }

// Start begins a call of a method in memory that the interceptor has, which must be zero but for what Keep gave it. It
// returns false where the channel has two lists of warmpath's options, and the interceptor of the other list has begun
// the call. A timeout of the service config bounds the whole call, the queue and all attempts. The context of a stream
// ends with the call where the stream may be long, the application waits for its end, or attempts may derive contexts
// from it.
func (h *Handle) Start(
	c *Call, ctx context.Context, cc *grpc.ClientConn, method string, answer state.Answer, opts []grpc.CallOption,
) bool {
	outer, route := From(ctx)
	if outer != nil && outer.handle != h && outer.handle.conn == h.conn {
		return false
	}
	c.Scope = &Scope{Context: ctx, handle: h, call: c}
	o := &c.Attempts.Options
	c.Attempts.call, *o = c, optionsOf(opts)
	b := h.bound.Load()
	derives := b == noBinding || b.Config.FirstTokenTimeout > 0 || b.Router.Fleet.Divided()
	if t := cc.GetMethodConfig(method).Timeout; t != nil && *t >= 0 {
		c.Context, c.cancel = context.WithTimeout(ctx, *t)
	} else if t == nil && b == noBinding && cc.GetState() != connectivity.Ready {
		c.early = newEarly(ctx)
		c.Context, c.cancel = c.early, c.early.cancel
	} else if answer == state.AnswerUnseen && !o.Proxied || answer == state.AnswerMessage && (derives || o.Finishes()) {
		c.Context, c.cancel = context.WithCancel(ctx)
	}
	c.key.request.Method = method
	routed := part.OfRequest(&c.key.request)
	routed.Answer, routed.Origin = answer, c
	c.outcome.result.Usage = policy.NoUsage
	h.budget.calls.Add(1)
	if outer != nil && route != nil {
		route = h.routeOf(outer, route)
	}
	if c.given = route; route != nil {
		if route.Report != nil {
			*route.Report = telemetry.NoReport // over that of an earlier call
		}
		if route.of != nil {
			route.of.uses(h)
		}
	}
	c.route = route
	return true
}

// Bare begins a call without an interceptor, and so without a message. It is one attempt, which ends it, and the
// look-aside server is not asked.
func (h *Handle) Bare(ctx context.Context, route *Route) *Call {
	c := &Call{Scope: &Scope{Context: ctx, handle: h, given: route}, route: route, ended: true, bare: true}
	c.Scope.call = c
	part.OfRequest(&c.key.request).Origin = c
	c.outcome.result.Usage = policy.NoUsage
	return c
}

// Message returns the request message, nil where it is not known yet or not needed any more.
func (c *Call) Message() any { return c.key.msg }

// Header returns the values of a key in the call's metadata.
func (c *Call) Header(key string) []string { return metadata.ValueFromOutgoingContext(c.Context, key) }

// reserve takes the key, admits the call and reserves a replica before gRPC is asked for a stream, waiting in the queue
// where all are full. It returns nil without a reservation where only gRPC can help. The error is a gRPC status. A
// backoff that is not 0 is the wait of a call that a full replica refused: it passes in the queue, before the call may
// have room. The Router is that of the channel's balancer, and, where it has several or none, that of the one whose
// picker found all replicas full.
func (c *Call) reserve(backoff time.Duration) error {
	if cc := c.handle.conn.Value(); c.early != nil && cc != nil {
		if t := cc.GetMethodConfig(c.key.request.Method).Timeout; t != nil && *t >= 0 {
			c.early.bound(*t)
		}
	}
	b := c.handle.bound.Load()
	c.mu.Lock()
	if b == noBinding {
		b = c.reserved.full
	}
	if b == nil || c.busy { // with an attempt of an interceptor that did not wait for its end
		l := c.legs
		c.legs = nil // of the attempt before
		c.mu.Unlock()
		if l != nil {
			l.end()
		}
		return c.pause(backoff)
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

// pause lets time pass. The error is the status of a call that ended meanwhile.
func (c *Call) pause(d time.Duration) error {
	if pause.For(c.Context, d) != nil {
		return status.FromContextError(c.Err()).Err()
	}
	return nil
}

// admit returns the error of a call that is not sent.
func (c *Call) admit(b *Binding) error {
	if c.key.lacksPrompt(b) {
		return c.key.refusal()
	}
	return nil
}

// Claim gives an attempt its replica for a picker: the one that was reserved in the picker's Router, else a new one. It
// returns the Call that has the reservation: another one for an attempt that is made while one is under way, or after
// the call. ready reports whether the attempt may be sent. Where the connection is only being opened the call keeps its
// reservation for the next picker.
func (c *Call) Claim(
	ctx context.Context, route *Route, b *Binding, state func(*policy.Replica) connectivity.State,
) (claimed *Call, ready bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy || c.ended && !c.bare {
		if c.leg {
			return c, false, errLegs
		}
		c.shared = true
		c = c.extra(route)
		c.mu.Lock()
		defer c.mu.Unlock()
	} else if route != c.route && !c.leg { // a prefill leg has the place that it was reserved with the other leg
		c.reroute(route)
	}
	brought := c.reserved.brought.Swap(false)
	for {
		if !brought {
			if err := c.pick(ctx, b); err != nil {
				return c, false, err
			}
		}
		if r := c.Decision().Replica; c.reserved.held.Router() == b.Router {
			switch state(r) {
			case connectivity.Ready:
				c.begin(ctx, b)
				return c, true, nil
			case connectivity.Idle, connectivity.Connecting:
				if r.Connected() && !c.ended { // to the Router: the fleet is too large to connect to all of it
					c.reserved.brought.Store(true)
					return c, false, nil
				}
			}
		}
		c.reserved.giveBack(&c.key.request)
		if !brought {
			return c, false, nil
		}
		brought = false
	}
}

// extra returns the Call of an attempt beside another one, or after the end. Its key is taken anew, its decision is not
// reported, and nothing but its outcome becomes known. Called with mu held.
func (c *Call) extra(route *Route) *Call {
	n := &Call{Scope: &Scope{Context: c.Context, handle: c.handle, given: route}, route: route.Unreported(), ended: true}
	n.Scope.call = n
	n.key.msg, n.key.request.Method = c.key.msg, c.key.request.Method
	part.OfRequest(&n.key.request).Answer = part.OfRequest(&c.key.request).Answer
	n.outcome.result.Usage = policy.NoUsage
	return n
}

// reroute takes over a route that an interceptor inside has changed. What was reserved before is given back. Called
// with mu held.
func (c *Call) reroute(r *Route) {
	old := c.route
	c.route = r
	if old != nil && r != nil && r.Session == old.Session && r.parent == old.parent && r.Pin == old.Pin &&
		slices.Equal(r.Exclude, old.Exclude) {
		return // as before, but for where it is reported
	}
	c.reserved.drop(&c.key.request)
	c.key.filled = false
	router.Rekey(&c.key.request)
}

// pick reserves a replica without waiting, for an attempt that brings no reservation along. Called with mu held.
func (c *Call) pick(ctx context.Context, b *Binding) error {
	c.complete()
	if last := &c.outcome.last; last.Replica != nil { // gRPC itself repeats the attempt, or an interceptor inside
		if last.BytesSent { // gRPC does that once, and only where no answer came
			c.repeats = min(c.repeats+1, 2)
			c.inside = c.inside || last.BytesReceived || c.repeats > 1
		}
		router.NextAttempt(&c.key.request, last.Replica)
		*last = attempt{}
	}
	c.key.fill(c.Context, c.handle, b, c.route)
	var m *Central
	if !c.bare {
		if c.key.lacksPrompt(b) {
			return errNoPrompt
		}
		if m = b.asks(&c.key.request); m != nil && m.Closed {
			return errUnasked
		}
	}
	how := router.How{NoWait: true}
	if c.legs != nil {
		from, _ := c.legs.from()
		if c.leg || from == nil {
			return errLegs
		}
		how.Legs = &router.Legs{From: from}
	} else if b.Router.Fleet.Divided() {
		how.Legs = b.legs(&c.key.request)
	}
	if err := b.Router.Reserve(ctx, &c.key.request, &c.reserved.held, how); err != nil {
		if c.legs != nil {
			return errLegs
		}
		if err == router.ErrFull {
			c.outcome.last.Full, c.reserved.full = true, b
		}
		return Explain(err, &c.key.request, b.Router.View())
	}
	if m != nil {
		c.reserved.decidedHere()
	}
	return nil
}

// begin makes the reservation that of an attempt, and records the decision on the attempt's span, in the metrics, and
// in the report that the application asked for. Called with mu held.
func (c *Call) begin(ctx context.Context, b *Binding) {
	c.busy, c.rank, c.reserved.binding = true, 0, b
	if c.legs != nil && !c.leg {
		c.legs.decoding()
	}
	q, d := &c.key.request, c.Decision()
	c.outcome.last = attempt{Replica: d.Replica}
	if !c.reserved.held.Watched() && b.Router.Observes() {
		c.outcome.began = time.Since(started)
	}
	app := c.Context
	if c.bare {
		app = nil // it cannot be distinguished from the attempt's
	}
	shown := d
	if c.legs != nil && !c.leg { // what is cached of the prompt is a matter of the replica that prefills it
		decision := *d
		shown, decision.MatchedTokens = &decision, c.legs.matched
	}
	b.Telemetry.Decided(ctx, app, b.Policy, q, shown)
	if !c.decidedElsewhere() {
		b.Router.Decisions.Count(d.Reason)
	}
	if (d.Reason == policy.ReasonNoKey || d.Rule == policy.ReasonNoKey) && !keyless(q.Method) &&
		!b.Dialects.Beside(q.Method) {
		b.NoKey(b, q.Method)
	}
	if c.route != nil && c.route.Report != nil {
		*c.route.Report = telemetry.Report{
			Replica:       d.Replica.ID,
			Prefill:       c.legs.replica(),
			Address:       d.Replica.Address,
			Policy:        b.Policy,
			Reason:        d.Reason,
			Rule:          d.Rule,
			MatchedTokens: shown.MatchedTokens,
			PromptTokens:  q.PromptTokens,
			Place:         d.Place,
			Load:          d.Load,
			Queued:        d.Queued,
			Attempts:      q.Attempt(),
			Resumed:       int(c.resumed),
			Usage:         policy.NoUsage,
		}
	}
}

// Decision is that of the reservation.
func (c *Call) Decision() *policy.Decision { return &c.reserved.held.Decision }

// decidedElsewhere reports whether the look-aside server made the decision, and counts it.
func (c *Call) decidedElsewhere() bool {
	d := c.Decision()
	return c.reserved.server != nil || d.Reason == policy.ReasonCentral || d.Rule == policy.ReasonCentral
}
