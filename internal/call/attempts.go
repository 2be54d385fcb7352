package call

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// Attempts is the retry loop of one call, which ends at the first response message: each pass reserves a replica and
// makes an attempt, and the cause of a failure decides whether another pass follows, and when. The goroutine of the
// call uses it.
type Attempts struct {
	call *Call
	Options

	failed  uint8  // attempts that count towards max_attempts: all that failed but those that were refused
	sent    bool   // a replica may have begun to serve the request
	codes   uint32 // bit n: a replica failed the request with the status code n; a lost attempt counts as UNAVAILABLE
	single  bool   // the message can be sent only once
	refused int32  // attempts that a full replica refused, which are none
	backoff time.Duration

	elsewhere *policy.Replica // the next attempt does not go to this replica; nil = it may go to any
	codec     *requestCodec   // nil = gRPC's own will do
}

// Errors of calls, which are gRPC statuses as well.
var (
	// ErrRetryBudget: the attempt failed, and may have been made again but for the budget. The status is that of the
	// attempt.
	ErrRetryBudget = errors.New("the retry budget of the channel is spent (retry_ratio)")

	// ErrLate is the error of an attempt that was cancelled since its first message was late.
	ErrLate = errors.New("the first message did not come within first_token_timeout")
)

// A callError is a status with the sentinel of its cause.
type callError struct {
	status *status.Status
	causes []error
}

func (e *callError) Error() string              { return e.status.Err().Error() }
func (e *callError) GRPCStatus() *status.Status { return e.status }
func (e *callError) Unwrap() []error            { return e.causes }

// A Way is how an attempt is sent.
type Way struct {
	Split bool // in two legs
	// Limit is how long the call waits for the first message, until another replica gets it; 0 = it stays.
	Limit time.Duration
}

// Sends gives the request message, which is sent once for each attempt.
func (a *Attempts) Sends(msg any) {
	c := a.call
	b := c.handle.bound.Load()
	prioritized := len(metadata.ValueFromOutgoingContext(c.Context, priorityKey)) > 0 // the context is the application's
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key.msg = msg
	legs := b == noBinding || b.Router.Fleet.Divided()
	if (b == noBinding || b.Config.MaxResumes > 0 && b.dialect(&c.key.request).Resumes()) && part.OfRequest(&c.key.request).Answer == state.AnswerMessage && c.Resume == nil {
		c.Resume = &Resume{call: c}
	}
	if _, a.single = msg.(*grpc.PreparedMsg); a.single || a.base == nil {
		return
	}
	once := a.chosen || a.base.Name() != encodingproto.Name
	switch msg.(type) {
	case nil, proto.Message, protoadapt.MessageV1: // gRPC may encode it as often as it likes
	default:
		once = true
	}
	// A patch is appended when gRPC encodes the message, since only then the replica is certain.
	if patched := legs || b.Ranks || prioritized; !once && !patched && c.Resume == nil { // which notes what comes
		return
	}
	a.codec = &requestCodec{CodecV2: a.base, scope: c.Scope, resume: c.Resume, msg: msg, once: once}
	a.Each = append(slices.Clip(a.Each), grpc.ForceCodecV2(a.codec))
}

// Run makes attempts with send until one succeeds. Where one has been made and failed, failed is its error, else nil.
// An error is that of the call.
func (a *Attempts) Run(failed error, send func(Way) error) error {
	for err := failed; ; {
		if err != nil {
			if err = a.again(err); err != nil {
				return err
			}
		}
		wait := a.backoff
		a.backoff = 0
		if err = a.call.reserve(wait); err != nil {
			return err
		}
		if err = send(a.way()); err == nil {
			return nil
		}
	}
}

// again returns nil if another attempt follows one that failed with err, once the time for it has come; else the error
// of the call.
func (a *Attempts) again(err error) error {
	c := a.call
	if c.key.refused {
		return c.key.refusal()
	}
	last, err := a.lost(err)
	why := causeOf(err, &last)
	if why == final || why == failed {
		if c.legs.broke(err) {
			why = broken
		}
	}
	switch why {
	case full, refused, rejected, unsent: // no engine has begun
	default:
		c.legs.spend()
	}
	if why == final || why != full && (a.single || why != refused && a.oversized(err)) {
		return err
	}
	if end := ended(c.Context, err); end != nil {
		return end
	}
	b := c.handle.bound.Load()
	switch {
	case why == full:
		a.next()
		return nil
	case why != late && a.retriedElsewhere() && !(why == unsent && c.legs != nil): // no other can repeat a leg
		return err
	case why == refused:
		a.refused++
		a.backoff = b.Config.Backoff.Wait(int(a.refused))
	default:
		if err := a.spend(why, &last, err); err != nil {
			return err
		}
		if err := c.pause(b.Config.Backoff.Wait(int(a.failed))); err != nil {
			return err
		}
	}
	c.handle.Telemetry.Count(c, telemetry.Retries, b.Policy, retries[why])
	a.next()
	return nil
}

// LastError is the status that the last attempt ended with, nil where it is OK or under way.
func (a *Attempts) LastError() error { return a.last().Err }

// last is the last attempt.
func (a *Attempts) last() attempt {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	return a.call.outcome.last
}

// lost returns what has failed where an attempt ended with err: the attempt, or its prefill leg. It reports the
// outcome.
func (a *Attempts) lost(err error) (attempt, error) {
	l := a.call.legs
	if l.dispute(err) {
		l.finish(a.call)
	}
	a.call.mu.Lock()
	a.call.complete()
	a.call.mu.Unlock()
	failure := l.failure()
	if failure == nil {
		return a.last(), err
	}
	p := &l.prefill
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.outcome.last
	last.Replica = p.Decision().Replica
	return last, failure
}

// next starts another attempt after the last one failed. One that the channel's own picker refused, since all was full,
// does not count.
func (a *Attempts) next() {
	c := a.call
	c.legs.finish(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reserved.drop(&c.key.request)
	c.complete()
	if !c.begun {
		c.outcome.result.Usage = policy.NoUsage
	}
	c.repeats = 0
	if c.late {
		c.late, c.outrun = false, c.outcome.last.Replica
	}
	if last := &c.outcome.last; !last.Full {
		if last.spared {
			last.Replica = nil
		}
		if a.elsewhere != nil {
			c.key.request.Exclude = append(slices.Clip(c.key.request.Exclude), a.elsewhere.ID)
			a.elsewhere = nil
		}
		router.NextAttempt(&c.key.request, last.Replica)
		c.legs.avoid(&c.key.request)
	}
	c.outcome.last = attempt{}
}

// spend takes another attempt out of the call's attempts and the channel's budget. The error is the one of the call
// where it is not there. What two replicas failed alike is not sent to a third one, unless the request has two legs.
func (a *Attempts) spend(why cause, last *attempt, err error) error {
	a.failed++
	code := status.Code(err)
	switch why {
	case late, broken:
		code = codes.Unavailable
	case rejected:
		if !a.canMove(last.Replica, true) {
			return err
		}
	case failed:
		if !a.canMove(last.Replica, false) {
			return err
		}
		a.elsewhere = last.Replica
	}
	alike := a.codes&(1<<code) != 0
	if why != unsent {
		a.sent = true
		a.codes |= 1 << code
	}
	if why == late {
		return nil // move has checked the rest
	}
	if int(a.failed) >= a.call.handle.bound.Load().Config.MaxAttempts || why != unsent && alike && !a.call.split {
		return err
	}
	if !a.retry() {
		st, _ := status.FromError(err)
		return &callError{
			status: status.New(st.Code(), st.Message()+"; warmpath: it is not tried again: "+ErrRetryBudget.Error()),
			causes: []error{ErrRetryBudget, err},
		}
	}
	return nil
}

// oversized reports whether a replica may have refused the request message for its size.
func (a *Attempts) oversized(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && a.size() > commonLimit
}

// commonLimit is the size in bytes up to which gRPC servers take messages as a rule: larger ones are refused by all of a
// fleet if they are by one.
const commonLimit = 4 << 20

// size returns the size of the request message as it was sent last, 0 if it is not known.
func (a *Attempts) size() int {
	if a.codec != nil { // which may have appended to it
		return a.codec.sized()
	}
	switch m := a.call.key.msg.(type) {
	case proto.Message:
		return proto.Size(m)
	case protoadapt.MessageV1:
		return proto.Size(protoadapt.MessageV2Of(m))
	}
	return 0
}

// retry takes one more attempt out of the channel's budget, and reports whether it was there.
func (a *Attempts) retry() bool {
	h := a.call.handle
	b := h.bound.Load()
	if h.budget.take(time.Now(), float64(b.Config.RetryRatio)) {
		return true
	}
	h.Telemetry.Count(a.call, telemetry.OverBudget, b.Policy, "")
	return false
}

// canMove reports whether another replica than the one at which an attempt failed may take the call: if now is set, at
// once, else also after a wait for room. gRPC may be at the attempt meanwhile.
func (a *Attempts) canMove(at *policy.Replica, now bool) bool {
	c := a.call
	b := c.handle.bound.Load()
	if b.Router == nil {
		return false
	}
	c.mu.Lock()
	k, route := key{request: c.key.request, msg: c.key.msg, uses: c.key.uses}, c.route
	excluded := c.key.request.Exclude
	router.Rekey(&k.request) // a copy that shares no memory with the request
	c.mu.Unlock()
	k.fill(c.Context, c.handle, b, route)
	q := &k.request
	if at == nil || q.Pin != "" || b.Central.Closed && now {
		return false
	}
	q.Exclude = append(slices.Clone(excluded), at.ID)
	var room, prefill router.Reservation
	how := router.How{Query: true}
	if b.Router.Fleet.Divided() {
		if how.Legs = b.legs(q); how.Legs != nil {
			how.Legs.Prefill = &prefill
		}
	}
	err := b.Router.Reserve(c, q, &room, how)
	room.Release()
	prefill.Release()
	return err == nil || err == router.ErrFull && !now
}

// retriedElsewhere reports whether retries are made by another mechanism, to which this loop adds none: a retryPolicy
// of the service config, or an interceptor that runs inside.
func (a *Attempts) retriedElsewhere() bool {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	cc := a.call.handle.conn.Value()
	return a.call.inside || cc != nil && cc.GetMethodConfig(a.call.key.request.Method).RetryPolicy != nil
}

// way is how the attempt is sent that the call has reserved.
func (a *Attempts) way() Way {
	c := a.call
	if c.legs != nil {
		return Way{Split: true}
	}
	limit := time.Duration(c.handle.bound.Load().Config.FirstTokenTimeout)
	if limit <= 0 || a.sent || part.OfRequest(&c.key.request).Answer == state.AnswerUnseen || a.retriedElsewhere() {
		return Way{}
	}
	return Way{Limit: limit}
}

// Await runs receive for an attempt with a limit. Each time that it passes it calls move, as a rule [Attempts.Move].
// Where the call moves, Await cancels the attempt, and returns ErrLate once receive has returned.
func (a *Attempts) Await(
	limit time.Duration, cancel context.CancelFunc, receive func() error, move func() (moved, ever bool),
) error {
	done := make(chan error, 1)
	go func() { done <- receive() }()
	timeout := time.NewTicker(limit)
	defer timeout.Stop()
	for ever := true; ever; {
		select {
		case err := <-done:
			return err
		case <-timeout.C:
		}
		var moved bool
		if moved, ever = move(); moved {
			cancel()
			<-done // it writes the application's message
			return ErrLate
		}
	}
	return <-done
}

// Move reports whether the call leaves an attempt whose first message is late: another replica has room, and neither
// the attempts nor the budget are spent. Those do not come back: then it is not asked ever again.
func (a *Attempts) Move() (moved, ever bool) {
	if a.sent || int(a.failed)+1 >= a.call.handle.bound.Load().Config.MaxAttempts {
		return false, false
	}
	if !a.canMove(a.last().Replica, true) {
		return false, true
	}
	if !a.retry() {
		return false, false
	}
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.call.late = true
	return true, true
}

// Drop notes that the application has dropped the stream of the attempt under way, which is ended next.
func (a *Attempts) Drop() {
	a.call.mu.Lock()
	defer a.call.mu.Unlock()
	a.call.dropped = true
}

// Options are the options of a call, as its attempts and its end need them.
type Options struct {
	Each   []grpc.CallOption // of each attempt
	finish func(error)       // all OnFinish: gRPC would run them after every attempt, the application wants them once
	base   encoding.CodecV2  // what gRPC takes; nil = of an older interface, which returns bytes that gRPC does not free
	chosen bool              // an option names the codec
	Passed                   // zero where it is none of a proxy
}

// Passed is the option of a stream that a proxy passes on: it is always read to its end, so it is never abandoned.
type Passed struct {
	grpc.EmptyCallOption
	Proxied bool
	Defers  bool // the first message opens the stream, whatever its dialect asks for
}

// optionsOf splits the options of a call.
func optionsOf(opts []grpc.CallOption) Options {
	all, name := Options{Each: opts}, encodingproto.Name
	for _, o := range opts {
		switch o := o.(type) {
		case grpc.OnFinishCallOption:
			before := all
			all.finish = func(err error) { before.Finish(err); o.OnFinish(err) }
		case grpc.ForceCodecV2CallOption:
			all.base, all.chosen = o.CodecV2, true
		case grpc.ForceCodecCallOption, grpc.CustomCodecCallOption:
			all.base, all.chosen = nil, true
		case grpc.ContentSubtypeCallOption:
			name = o.ContentSubtype
		case Passed:
			all.Passed = o
		}
	}
	if !all.chosen {
		all.base = encoding.GetCodecV2(name)
	}
	if all.Finishes() {
		all.Each = slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool {
			_, ok := o.(grpc.OnFinishCallOption)
			return ok
		})
	}
	return all
}

// Finishes reports whether the application waits for the end with OnFinish.
func (o *Options) Finishes() bool { return o.finish != nil }

// Finish runs what the application gave to OnFinish.
func (o *Options) Finish(err error) {
	if o.finish != nil {
		o.finish(err)
	}
}
