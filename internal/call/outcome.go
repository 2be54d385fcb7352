package call

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fault"
	"github.com/warmpath/warmpath/internal/loadprobe"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/telemetry"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// OnDone returns Finished.
func (c *Call) OnDone() func(balancer.DoneInfo) {
	if c.done == nil {
		c.done = c.Finished
	}
	return c.done
}

// Finished is the picker's Done: the attempt has ended. The Router gets what the replica reported in the trailer: its
// load, or how full it was when it refused. The zero DoneInfo is that of an attempt that was not made after all.
func (c *Call) Finished(info balancer.DoneInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = false
	if c.dropped { // gRPC's status is that of the message that ended the stream
		info.Err = ErrDropped
	}
	if c.legs != nil && !c.leg {
		c.legs.decoded(info.Err)
	}
	held, report, refused := &c.reserved.held, load.Report{}, false
	if info.Err != nil {
		report, refused = refusal(info)
	}
	if refused {
		held.Refused(report)
	} else {
		held.Release()
		if raw := info.Trailer[warmpathv1.TrailerLoad]; len(raw) > 0 {
			held.Router().Report(held.Decision.Replica.ID, loadprobe.ParseOrca([]byte(raw[0])))
		}
	}
	if !info.BytesSent && info.Err == nil {
		c.reserved.giveBack(&c.key.request)
		c.outcome.last = attempt{} // the connection was gone before anything happened
		return
	}
	o := &c.outcome
	last := &o.last
	last.Refused, last.Err, last.BytesSent, last.BytesReceived = refused, info.Err, info.BytesSent, info.BytesReceived
	last.statusAlone = len(info.Trailer["content-type"]) > 0 // an answer without headers and messages has it there
	o.result.Err, o.result.Sent, o.result.Fault = info.Err, info.BytesSent, policy.NoFault
	c.pending = true
	if info.Err != nil {
		switch o.result.Fault = fault.Of(info.Err); {
		case c.late && o.result.Fault != policy.NoFault:
			o.result.Fault = policy.Late
		case c.leg && c.Context.Err() != nil && o.result.Fault == policy.Failed: // gRPC's status for what ended here
			o.result.Fault = policy.GivenUp
		}
		c.abort(info)
	}
	// The usage in a unary answer is read after this, inside Invoke. Of the others the end is known now: what a server has
	// reserved must not last through a backoff. A leg is judged when the other one has ended, too.
	if c.ended || (part.OfRequest(&c.key.request).Answer != state.AnswerWhole || info.Err != nil) && !c.legs.dispute(info.Err) {
		c.complete()
	}
}

// abort has the engine of an attempt stop, where the call was cancelled and the engine does not stop by itself. Called
// with mu held.
func (c *Call) abort(info balancer.DoneInfo) {
	b, code := c.reserved.binding, status.Code(info.Err)
	if c.key.abort == "" || !info.BytesSent || b.Abort == nil ||
		code != codes.Canceled && code != codes.DeadlineExceeded ||
		c.Context.Err() == nil && !c.late && !c.dropped && c.legs.failure() == nil { // the status is the replica's own
		return
	}
	c.stop(b)
}

// stop has the engine of the last reservation stop the request.
func (c *Call) stop(b *Binding) {
	ctx := context.WithoutCancel(c.Context)
	ended := c.legs.aborts()
	b.Abort(ctx, c.Decision().Replica.ID, b.dialect(&c.key.request).Abort(), c.key.abort, func(how string) {
		b.Telemetry.Count(ctx, telemetry.Aborts, b.Policy, how)
		ended()
	})
}

// FirstMessage is called when the first response message has come: no other attempt follows, and the message and the
// prompt in it are forgotten. It reports whether messages may have usage.
func (c *Call) FirstMessage() (usage bool) {
	h := c.handle
	if !h.ever.Load() {
		h.warnUnbound(c)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = true
	c.Attempts.free()
	b := c.reserved.binding
	c.key.msg = nil
	router.DropPrompt(&c.key.request)
	if b == nil {
		return false
	}
	if c.legs != nil {
		_ = c.legs.transferred() // of a call that is not a stream; a stream has asked
	}
	if !c.shared {
		if server := c.reserved.server; server != nil {
			server.Prefilled()
		}
		o := &c.outcome
		o.result.FirstMessage = c.reserved.held.Answered()
		if o.result.FirstMessage == 0 && o.began > 0 {
			o.result.FirstMessage = time.Since(started) - o.began
		}
		if c.outrun != nil && o.result.FirstMessage <= time.Duration(b.Config.FirstTokenTimeout) {
			b.Router.Health.Outrun(c.outrun)
		}
		c.outrun = nil
	}
	return c.key.method.HasUsage()
}

// ReadUsage reads the token counts in a response message, if messages may have them.
func (c *Call) ReadUsage(msg any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key.method.Usage(&c.outcome.result.Usage, msg)
}

// ErrDropped is the status of a call whose stream the application dropped.
var ErrDropped = status.Error(codes.Canceled, "warmpath: the stream was dropped before its end")

// End is called once by the interceptor after the last attempt: the call's context ends, what was not used is released,
// and the outcome is reported. Where a call ends while its stream is being opened, it is called again after that.
func (c *Call) End() {
	if c.cancel != nil {
		c.cancel()
	}
	if l := c.finish(); l != nil && !c.leg {
		l.end()
	}
}

// finish releases and reports. It returns the legs of the last attempt.
func (c *Call) finish() *legs {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Attempts.free()
	c.reserved.drop(&c.key.request)
	c.complete()
	if !c.ended && c.route != nil && c.route.Report != nil { // the application reads it from now on
		c.route.Report.Usage = c.outcome.result.Usage
	}
	c.ended = true
	if c.Resume != nil {
		c.Resume.forget()
	}
	c.plain = c.wasPlain()
	return c.legs
}

// Detach takes a call that has ended out of its Scope, unless something else may still refer to it. It reports whether
// nothing does, so that its memory may be used again, for a call that is given the Kept.
func (c *Call) Detach() (k Kept, detached bool) {
	s := c.Scope
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.plain {
		s.call = nil
	}
	return Kept{c.key.request.Prepared, c.done}, c.plain
}

// Kept is what the memory of a call keeps for the next one.
type Kept struct {
	prepared any
	done     func(balancer.DoneInfo)
}

// Keep gives what was kept to the call that has the memory, and has not begun.
func (c *Call) Keep(k Kept) {
	c.spare, c.done = k.prepared, k.done
	part.OfRequest(&c.key.request).Spare = &c.spare
}

// wasPlain reports whether a call that has ended was one attempt that succeeded at once. Goroutines of other calls
// may still refer to them. Called with mu held.
func (c *Call) wasPlain() bool {
	if c.busy { // another goroutine is making a reservation, or an attempt is at gRPC
		return false
	}
	b, q, last := c.reserved.binding, &c.key.request, &c.outcome.last
	return last.Replica != nil && last.Err == nil && !c.shared && c.legs == nil && q.Attempt() == 1 &&
		part.OfRequest(q).Shadow == nil && c.Decision().Queued == 0 && b.Uses&policy.CallsOut == 0 && b.Probe == nil && b.Central == (Central{})
}

// complete reports the outcome of the last reservation, once. Called with mu held.
func (c *Call) complete() {
	if !c.pending {
		return
	}
	c.pending = false
	c.blame()
	b, d, usage := c.reserved.binding, c.Decision(), c.outcome.result.Usage
	if c.shared {
		c.outcome.result.Usage = policy.NoUsage
	}
	if c.legs != nil && !c.leg {
		if c.resumed == 0 { // else the prompt has output in it
			usage = c.legs.sum(usage)
		}
		c.outcome.result.Usage.CachedTokens = -1 // those that came from the prefill leg
	}
	if !c.decidedElsewhere() {
		b.Router.Decisions.Used(&c.key.request, d, c.outcome.result.Usage)
	}
	if server := c.reserved.server; server != nil {
		server.Released(&c.outcome.result)
		c.reserved.server = nil
	}
	b.Router.Complete(&c.key.request, *d, c.outcome.result)
	if c.outcome.result.Fault != policy.NoFault {
		telemetry.Ejected(trace.SpanFromContext(c.Context), b.Router, d.Replica)
	}
	c.handle.Telemetry.Ended(c, b.Policy, &c.key.request, d, &c.outcome.result)
	c.outcome.result = policy.Outcome{Usage: usage}
}

// An outcome is how the last attempt went. Call.mu guards it.
type outcome struct {
	last   attempt
	result policy.Outcome // of the last reservation, with the usage in the messages
	began  time.Duration  // since started, where the Router does not measure how long the first message takes; else 0
}

// started is when the program started.
var started = time.Now()

// An attempt is what the retry loop looks at.
type attempt struct {
	Replica *policy.Replica // nil when none was picked
	Full    bool            // the channel's picker found every replica full
	Refused bool            // the replica refused the request with warmpath's trailer since it is full

	// How it ended; zero = it has not.
	BytesSent     bool
	BytesReceived bool // something of an answer came, headers at least
	statusAlone   bool // the replica answered with a status in place of headers and messages
	spared        bool // it is a leg, and the other one is at fault
	Err           error
}

// refusal returns what a replica reported that failed an attempt because it is full. A plain RESOURCE_EXHAUSTED may be
// anything, and so may one that names no bound.
func refusal(done balancer.DoneInfo) (report load.Report, ok bool) {
	raw := done.Trailer[warmpathv1.TrailerRejection]
	var r warmpathv1.Rejection
	if len(raw) == 0 || status.Code(done.Err) != codes.ResourceExhausted ||
		proto.Unmarshal([]byte(raw[0]), &r) != nil || r.GetMaxOngoing() == 0 {
		return load.Report{}, false
	}
	return load.Report{Ongoing: int(r.GetOngoing()), QueuedTokens: -1}, true
}
