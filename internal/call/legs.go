package call

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// lease is for how long a prefill replica keeps the KV cache for a decode leg: a little less than vLLM's 30 s.
const lease = 25 * time.Second

// legs are those of an attempt that is sent to two replicas: a prefill leg, which is an RPC of its own, and the decode
// leg, which is the attempt of the application's call. The Router reserves both in one step. In a sequential flow the
// decode leg begins with the answer of the prefill leg; while the lease lasts it can go to another replica, unless an
// engine may have begun with it. Else both begin at once, and where one fails both do.
type legs struct {
	prefill  Call // the prefill leg: its picker finds it as that of any call
	kv       *requestkey.Legs
	codec    *requestCodec
	server   *lookaside.Reservation // of both legs; nil = none
	transfer requestkey.Transfer

	answered chan struct{} // closed when the prefill leg has answered, or its RPC has ended
	settle   sync.Once     // closes answered
	done     chan struct{} // closed when its RPC has ended; nil = it was not sent
	prefills link
	decodes  link // at first
	matched  int  // prompt tokens that are predicted to be cached where it is prefilled

	// mu guards the fields below, and the answer in transfer. A Call's mu may be held when it is taken.
	mu        sync.Mutex
	cancel    context.CancelFunc // of the decode leg, where both legs begin at once; nil = it has not begun
	err       error              // that the prefill leg failed with before its answer; nil = it has not
	until     time.Time          // end of the lease; zero = the decode leg does not begin with an answer
	usage     policy.Usage       // of the prefill leg
	over      bool               // the decode leg has its first message: the transfer is complete
	spent     bool               // a decode replica may have taken the KV cache, which only one can
	suspect   bool               // the transfer may have failed
	spared    bool               // the prefill leg has failed since the decode replica is gone
	sent      chan struct{}      // closed when gRPC is done with the attempt of the decode leg; nil = none is under way
	decodeErr error              // that the last one failed with
	aborted   []chan struct{}    // each closed when an Abort of a leg has ended
}

// errLegs is the error of a leg that would be sent without the other, or to a replica that the other does not name.
var errLegs = errors.New("the replica that was reserved for a leg of the request is gone")

// newLegs returns memory for the legs of an attempt, nil where its message is not split.
func (c *Call) newLegs(b *Binding) *legs {
	q := &c.key.request
	c.mu.Lock()
	codec := c.Attempts.codec
	c.mu.Unlock()
	if codec == nil || codec.Name() != encodingproto.Name || !b.dialect(q).Splits(c.key.msg) {
		return nil
	}
	l := &legs{codec: codec, answered: make(chan struct{}), usage: policy.NoUsage}
	p := &l.prefill
	p.Scope = &Scope{handle: c.handle, call: p}
	p.leg, p.legs, p.key.abort, p.key.filled = true, l, c.key.abort, true
	p.key.request.Method, p.key.request.Session = q.Method, q.Session
	part.OfRequest(&p.key.request).Answer = part.OfRequest(q).Answer
	p.key.request.PromptTokens, p.reserved.binding, p.outcome.result.Usage = q.PromptTokens, b, policy.NoUsage
	return l
}

// legs is how a request is reserved whose method is sent in two legs; nil for others.
func (b *Binding) legs(q *policy.Request) *router.Legs {
	kv := b.dialect(q).Legs()
	if kv == nil || part.OfRequest(q).Answer == state.AnswerUnseen {
		return nil
	}
	return &router.Legs{Only: kv.PairOnly()}
}

// held notes that both legs are reserved. It returns false where the request is served whole.
func (l *legs) held(c *Call, b *Binding) bool {
	d := l.prefill.Decision()
	if d.Replica == nil {
		return false
	}
	p := &l.prefill
	p.Context, p.cancel = context.WithCancel(c.Context)
	p.reserved.brought.Store(true)
	l.server, l.prefills, l.decodes = c.reserved.server, linkTo(d.Replica), linkTo(c.Decision().Replica)
	l.matched = d.MatchedTokens
	l.kv = b.dialect(&c.key.request).Legs().For(d.Replica.KVEngineID)
	l.transfer.Address, l.transfer.Engine = fleet.Bootstrap(d.Replica.Attributes), d.Replica.KVEngineID
	if n := d.Replica.Ranks; n > 1 && l.transfer.Engine != "" {
		if d.Rank() < 0 { // the engine would choose another one than the decode leg names
			d.SetRank(rand.IntN(n))
		}
		l.transfer.Engine += fmt.Sprintf("_dp%d", d.Rank())
	}
	return true
}

// from returns the replica that has prefilled the request where a decode leg may still begin with its answer, until
// then, else nil.
func (l *legs) from() (_ *policy.Replica, until time.Time) {
	if l == nil {
		return nil, until
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.over && !l.spent && time.Now().Before(l.until) && !l.prefills.lost() {
		return l.prefills.Replica, l.until
	}
	return nil, until
}

// A Sender makes an RPC of the call's method with a message, and calls each for every response.
type Sender interface {
	Send(ctx context.Context, msg any, opts []grpc.CallOption, each func(response []byte)) error
}

// Prefill sends the prefill leg of an attempt, unless that is done. It returns when the decode leg is to be sent, in
// the context of [Attempts.Decode], or with the error of the attempt.
func (a *Attempts) Prefill(s Sender) error {
	c := a.call
	l, msg := c.legs, c.key.msg
	if l.done != nil {
		return nil
	}
	if err := l.codec.keep(); err != nil { // before the application has its message back
		return err
	}
	if !l.kv.Sequential() {
		if d := l.prefill.Decision(); d.Rank() >= 0 {
			l.transfer.Room = rooms.take(d.Rank(), d.Replica.Ranks)
		} else {
			l.transfer.Room = rooms.take(0, 1)
		}
	}
	c.split, l.done = true, make(chan struct{})
	opts := append(withoutResults(a.Each), grpc.ForceCodecV2(&legCodec{l.codec, &l.prefill}))
	go func() {
		defer close(l.done)
		l.ended(s.Send(&l.prefill, msg, opts, l.read))
	}()
	if l.kv.Sequential() {
		<-l.answered
	}
	if err := l.failure(); err != nil || c.Err() == nil {
		return err
	}
	return status.FromContextError(c.Err()).Err()
}

// Decode returns the context of the decode leg. It ends where the prefill leg fails, and else with the call: drains
// reports whether that is left to the stream, which then waits for the first message.
func (a *Attempts) Decode(stream bool) (ctx context.Context, cancel context.CancelFunc, drains bool) {
	c := a.call
	l := c.legs
	drains = stream && l.kv.Drains()
	ctx = c
	if drains {
		ctx = context.WithoutCancel(c)
	}
	if end, ok := c.Deadline(); ok {
		ctx, cancel = context.WithDeadline(ctx, end)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kv.Sequential() {
		l.cancel = cancel
	}
	if l.err != nil || c.Err() != nil { // one that drains would begin all the same
		cancel()
	}
	return ctx, cancel, drains
}

// Drain is for how long a decode leg is drained that was cancelled before its first message.
const Drain = lease

// An Encoded is a response message as it came.
type Encoded struct{ Bytes []byte }

// Unmarshal implements [encoding.CodecV2].
func (r *requestCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if e, ok := v.(*Encoded); ok {
		e.Bytes = data.Materialize()
		return nil
	}
	if resume := r.resume; resume != nil && !resume.moved && resume.output.Load() != nil {
		resume.replies.note(data)
	}
	return r.CodecV2.Unmarshal(data, v)
}

// Decoded decodes a response message.
func (a *Attempts) Decoded(e *Encoded, m any) error {
	return a.call.legs.codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(e.Bytes)}, m)
}

// withoutResults returns options without those that have gRPC write to the application's memory, which is for the
// decode leg.
func withoutResults(opts []grpc.CallOption) []grpc.CallOption {
	return slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool {
		switch o.(type) {
		case grpc.HeaderCallOption, grpc.TrailerCallOption, grpc.PeerCallOption, grpc.OnFinishCallOption:
			return true
		}
		return false
	})
}

// read takes in a response message of the prefill leg.
func (l *legs) read(response []byte) {
	p := &l.prefill
	b := p.reserved.binding
	p.mu.Lock()
	if p.outcome.result.FirstMessage == 0 {
		p.outcome.result.FirstMessage = p.reserved.held.Answered()
	}
	b.dialect(&p.key.request).Usage(&p.outcome.result.Usage, response)
	usage := p.outcome.result.Usage
	p.mu.Unlock()
	answer := l.kv.Answer(response)
	l.mu.Lock()
	l.usage = usage
	if answer != nil && l.until.IsZero() {
		l.transfer.Answer, l.until = answer, time.Now().Add(lease)
	}
	l.mu.Unlock()
	if answer != nil {
		l.settle.Do(func() { close(l.answered) })
	}
}

// ended notes the end of the RPC of the prefill leg. The attempt fails with it, unless the decode leg has what it
// needs.
func (l *legs) ended(err error) {
	left := l.prefill.Context.Err() != nil // it was cancelled, as the decode leg has failed or the call has ended
	if sent, _ := l.attempt(); sent != nil && l.dispute(err) {
		select {
		case <-sent:
		case <-l.prefill.Done():
		case <-time.After(disputeTime):
		}
	}
	l.prefill.End()
	if l.server != nil {
		l.server.Prefilled()
	}
	rooms.free(l.transfer.Room)
	l.mu.Lock()
	failed := err != nil && !left && l.until.IsZero() && !l.over
	if failed {
		l.err = err
	}
	cancel := l.cancel
	l.mu.Unlock()
	l.settle.Do(func() { close(l.answered) })
	if failed && cancel != nil {
		cancel()
	}
}

// failure is the error that the prefill leg failed with; nil = it has not.
func (l *legs) failure() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// patch appends what a leg adds to the request.
func (l *legs) patch(patch []byte, prefill bool) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case prefill:
		return l.kv.PatchPrefill(patch, &l.transfer)
	case l.kv.Sequential() && l.transfer.Answer == nil: // the decode replica computes the prompt itself
		return patch
	}
	return l.kv.PatchDecode(patch, &l.transfer)
}

// Arrived is called when an attempt in two legs has its first response. It returns an error where the prefill leg has
// failed just before, and the attempt with it: the response does not count.
func (a *Attempts) Arrived() error { return a.call.legs.transferred() }

// transferred notes that the decode leg has its first message, unless the prefill leg has failed before.
func (l *legs) transferred() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = l.err == nil
	return l.err
}

// sum adds what the prefill leg reported of the prompt to the usage of the decode leg. The cached tokens are those of
// the prefill leg alone: to the decode replica the whole prompt is cached.
func (l *legs) sum(u policy.Usage) policy.Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	u.PromptTokens = max(u.PromptTokens, l.usage.PromptTokens)
	u.CachedTokens = l.usage.CachedTokens
	return u
}

// avoid has later attempts of a request prefer other replicas than the one that prefilled it, if it may be at fault.
func (l *legs) avoid(q *policy.Request) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, id := part.OfRequest(q), l.replica(); (l.suspect || l.err != nil) && !l.spared && !s.HasTried(id) {
		s.Tried = append(s.Tried, id)
	}
}

// replica is the id of the one that prefills.
func (l *legs) replica() string {
	if l == nil {
		return ""
	}
	return l.prefills.ID
}

// finish waits for the end of both legs' RPCs, after an attempt of c that failed. A prefill leg that has answered ends
// by itself. The decode leg has failed, or was cancelled since the other one has.
func (l *legs) finish(c *Call) {
	if l == nil || l.done == nil {
		return
	}
	if sent, _ := l.attempt(); sent != nil {
		select {
		case <-sent:
		case <-c.Done():
		}
	}
	_, lost := l.attempt()
	if from, _ := l.from(); from != nil || l.dispute(lost) {
		select {
		case <-l.done:
			return
		case <-time.After(disputeTime):
		}
	}
	l.prefill.cancel()
	<-l.done
}

// end ends the prefill leg. Its engine is to free the KV cache that no decode leg has taken over.
func (l *legs) end() {
	p := &l.prefill
	l.mu.Lock()
	unused := !l.over && !l.until.IsZero()
	l.until = time.Time{}
	l.mu.Unlock()
	if unused && p.key.abort != "" { // it has answered, so the binding is set
		if b := p.reserved.binding; b.Abort != nil {
			p.stop(b)
		}
	}
	p.End()
}

// aborts notes that the engine of a leg is asked to stop, and returns what is called when it has answered.
func (l *legs) aborts() (ended func()) {
	if l == nil {
		return func() {}
	}
	done := make(chan struct{})
	l.mu.Lock()
	defer l.mu.Unlock()
	l.aborted = append(l.aborted, done)
	return func() { close(done) }
}

// awaitAborts waits until the engines of the last attempt's legs have stopped: an Abort names the request by its id,
// and would end the next attempt at the same engine as well. It does not wait for long: an engine may be dead.
func (l *legs) awaitAborts(ctx context.Context) {
	l.mu.Lock()
	all := l.aborted
	l.aborted = nil
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for _, done := range all {
		select {
		case <-done:
		case <-ctx.Done():
			return
		}
	}
}

// A legCodec encodes the request of a prefill leg.
type legCodec struct {
	*requestCodec
	leg *Call
}

// Marshal implements [encoding.CodecV2].
func (r *legCodec) Marshal(m any) (mem.BufferSlice, error) {
	out, err := r.encode(m)
	if err != nil { // the decode leg has its first message, or the call has ended
		r.leg.cancel()
		return nil, err
	}
	r.leg.mu.Lock()
	defer r.leg.mu.Unlock()
	return append(slices.Clip(out), mem.SliceBuffer(r.leg.patch(m))), nil
}
