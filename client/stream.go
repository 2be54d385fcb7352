package client

import (
	"context"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/router/state"
)

// stream is the stream interceptor. A server-streaming call is opened by its
// first message; other streams open at once, unless their dialect or call.Defer
// asks to be deferred, and then their first message, or CloseSend, opens them.
func (c *channels) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	h, answer := c.handle(cc), state.AnswerMessage // the replica has all it needs for the first message
	if desc.ClientStreams {
		answer = state.AnswerUnseen
	}
	o := newOwner()
	k := o.core
	if !h.Start(&k.call, ctx, cc, method, answer, opts) {
		owners.Put(o)
		return open(ctx, desc, cc, method, opts...)
	}
	k.desc, k.open, k.conn, k.method = desc, open, cc, method
	s, tries := new(clientStream), &k.call.Attempts
	s.owner.Store(o)
	if tries.Finishes() {
		context.AfterFunc(k.call.Context, func() { k.end(k.ended()) })
	}
	if desc.ClientStreams { // it is never tried again, and may be long
		tries.Each = slices.DeleteFunc(slices.Clone(tries.Each), isRetryBuffer)
		if !tries.Defers && !h.Defers(method) {
			if _, _, err := k.begin(nil, false); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// An owner has the core of a call. The application's stream alone refers to it, so that the finalizer runs when the
// stream is dropped.
type owner struct{ *core }

// owners are those of no call. They are used again: to allocate a core and to set a finalizer for each call costs more
// than to choose the replica.
var owners sync.Pool

// noOwner has no core.
var noOwner = new(owner)

func newOwner() *owner {
	o, ok := owners.Get().(*owner)
	if !ok {
		o = &owner{new(core)}
		runtime.SetFinalizer(o, (*owner).abandon)
	}
	return o
}

// free has the owner used again, and the memory of its call, which has ended, if nothing else refers to that.
func (o *owner) free() {
	if kept, detached := o.call.Detach(); detached {
		*o.core = core{}
		o.call.Keep(kept)
	} else {
		o.core = new(core)
	}
	owners.Put(o)
}

// core is one streaming call; a unary one uses the field call alone. At most one goroutine makes attempts at a time:
// the one that moved phase to opening. It holds no lock meanwhile.
type core struct {
	call   call.Call
	desc   *grpc.StreamDesc
	open   grpc.Streamer
	conn   *grpc.ClientConn
	method string
	once   sync.Once // end

	// answered is set from the first response message of an attempt on; usage is whether messages may carry token counts.
	// RecvMsg alone uses both.
	answered, usage bool

	// mu guards the fields below. Nothing waits under it.
	mu      sync.Mutex
	phase   phase
	changed chan struct{} // closed when phase leaves opening; made by the first goroutine that waits
	at      attempt
	err     error // of phase failed
	msg     any   // until phase settled
	has     bool  // there is a msg; it may be nil
	closed  bool  // CloseSend was called

	ending atomic.Pointer[ending] // written with mu held
}

// ending is what Context returned before the stream was open; nil = nothing.
type ending struct {
	context.Context
	end context.CancelFunc
}

type phase uint8

const (
	fresh   phase = iota // gRPC is asked for nothing yet
	opening              // one goroutine makes an attempt, or waits to make one
	opened               // at is the stream of an attempt that another may follow
	settled              // no other attempt follows at: the application has something of it, or sends several messages
	failed               // err is set
)

// attempt is the stream of one attempt.
type attempt struct {
	n      int // 1 for the first
	cs     grpc.ClientStream
	way    call.Way
	cancel context.CancelFunc
	// drained is the first message of an attempt that is not to be cancelled before; nil = it may be.
	drained *drained
}

// clientStream is what the application holds. Its methods keep it reachable. When it no longer is, abandon ends the
// call: gRPC by itself would keep stream, goroutine and the work of the replica for as long as the context.
type clientStream struct {
	owner  atomic.Pointer[owner] // noOwner once the call has succeeded: its memory may be used again
	inside atomic.Int32          // methods between enter and exit, which may use the core
	over   grpc.ClientStream     // that of the call which has succeeded; set before owner is noOwner
}

// enter returns the core until exit, nil once the call has succeeded.
func (s *clientStream) enter() *core {
	s.inside.Add(1)
	return s.owner.Load().core
}

// exit follows enter.
func (s *clientStream) exit() { s.inside.Add(-1) }

func (s *clientStream) SendMsg(m any) error {
	k := s.enter()
	defer s.exit()
	if k == nil {
		return s.over.SendMsg(m)
	}
	at, mine, err := k.begin(m, true)
	if !mine && err == nil {
		err = at.cs.SendMsg(m)
	}
	if err != nil && err != io.EOF { // the status of the call
		k.end(err)
	}
	return err
}

// CloseSend closes every attempt of the call. It opens a stream whose message was not sent: where that is a mistake
// of the application, the server answers it as it does without us.
func (s *clientStream) CloseSend() error {
	k := s.enter()
	defer s.exit()
	if k == nil {
		return s.over.CloseSend()
	}
	k.mu.Lock()
	k.closed = true
	phase, at := k.phase, k.at
	k.mu.Unlock()
	switch phase {
	case opening:
		return nil // the goroutine that opens it closes it
	case opened, settled:
		return at.cs.CloseSend()
	}
	at, mine, err := k.begin(nil, false)
	if mine || err != nil {
		return err
	}
	return at.cs.CloseSend()
}

// RecvMsg does not enter: one goroutine at a time calls it, and it alone has the core used again.
func (s *clientStream) RecvMsg(m any) error {
	defer runtime.KeepAlive(s)
	k := s.owner.Load().core
	if k == nil {
		return s.over.RecvMsg(m)
	}
	if !k.answered {
		if err := k.first(grpc.ClientStream.RecvMsg, m); err != nil {
			return err
		}
		k.answered, k.usage = true, k.call.FirstMessage()
	} else if err := k.at.cs.RecvMsg(m); err != nil && (k.call.Resume == nil || k.elsewhere(m, &err)) {
		return s.ends(err)
	}
	if resume := k.call.Resume; resume != nil && !resume.Received(m) {
		return s.RecvMsg(m)
	}
	if k.usage {
		k.call.ReadUsage(m)
	}
	if !k.desc.ServerStreams {
		return s.ends(nil)
	}
	return nil
}

// ends ends the call with what its last attempt ended with. Where that is success, the stream needs nothing more of the
// owner, which is used again unless another method, or the end of the context, may still come to its core.
func (s *clientStream) ends(err error) error {
	o := s.owner.Load()
	k := o.core
	if k.call.Resume != nil {
		k.call.Resume.Over(err)
	}
	k.end(err)
	if err == nil || err == io.EOF {
		s.over = k.at.cs
		s.owner.Store(noOwner)
		if s.inside.Load() == 0 && !k.call.Attempts.Finishes() {
			o.free()
			return err
		}
	}
	runtime.SetFinalizer(o, nil)
	return err
}

// Header returns the header of the first attempt that has one, or of the one that the call ended with. Where there is
// none it returns nothing, as gRPC does, and RecvMsg returns the status.
func (s *clientStream) Header() (md metadata.MD, _ error) {
	k := s.enter()
	defer s.exit()
	if k == nil {
		return s.over.Header()
	}
	err := k.first(func(cs grpc.ClientStream, _ any) (err error) {
		if md, err = cs.Header(); err == nil && md == nil {
			err = k.call.Attempts.LastError() // the attempt has ended
		}
		return err
	}, nil)
	if cs := k.last(); err != nil && cs != nil {
		md, _ = cs.Header()
	}
	return md, nil
}

func (s *clientStream) Trailer() metadata.MD {
	k := s.enter()
	defer s.exit()
	if k == nil {
		return s.over.Trailer()
	}
	if cs := k.last(); cs != nil {
		return cs.Trailer()
	}
	return nil
}

// last is the stream of the last attempt that has one, else nil.
func (k *core) last() grpc.ClientStream {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at.cs
}

// Context returns the context of the open stream, which settles the call on its attempt. Before, it is one
// that ends with the call.
func (s *clientStream) Context() context.Context {
	k := s.enter()
	defer s.exit()
	if k == nil {
		return s.over.Context()
	}
	k.mu.Lock()
	at, phase := k.at, k.phase
	k.mu.Unlock()
	if phase == opened && k.settle(at) || phase == settled {
		return at.cs.Context()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.ending.Load()
	if e == nil {
		e = new(ending)
		e.Context, e.end = context.WithCancel(k.call.Context)
		k.ending.Store(e)
	}
	if k.phase == failed {
		e.end()
	}
	return e.Context
}

// begin opens the stream, with its first message if has is set, unless another goroutine does or did. It
// reports whether it opened it, and waits for the other goroutine where it did not.
func (k *core) begin(m any, has bool) (at attempt, mine bool, err error) {
	k.mu.Lock()
	if k.phase != fresh {
		defer k.mu.Unlock()
		at, err = k.wait()
		return at, false, err
	}
	k.phase, k.msg, k.has = opening, m, has
	k.mu.Unlock()
	k.call.Attempts.Sends(m)
	at, err = k.attempt(nil)
	return at, true, err
}

// attempt asks gRPC for a stream and sends the first message on it, as often as the attempt loop allows. The
// goroutine that moved phase to opening calls it; failure is the error of the attempt before.
func (k *core) attempt(failure error) (at attempt, err error) {
	at = k.at
	tries := &k.call.Attempts
	err = tries.Run(failure, func(way call.Way) error {
		at = attempt{n: at.n + 1, way: way}
		ctx, drains, err := k.decode(&at)
		if err != nil {
			return err
		}
		at.cs, err = k.open(ctx, k.desc, k.conn, k.method, tries.Each...)
		if err == nil && k.has {
			if resume := k.call.Resume; resume != nil {
				resume.Keep(k.msg)
			}
			err = at.cs.SendMsg(k.msg)
		}
		if err == io.EOF { // the status of a stream that broke meanwhile is RecvMsg's to return
			return nil
		}
		if err != nil && at.cancel != nil {
			at.cancel()
		}
		if err == nil && drains {
			at.drained = k.drain(at)
		}
		return err
	})
	k.leave(at, err)
	return at, err
}

// leave ends phase opening with the stream of an attempt, or the call with its error.
func (k *core) leave(at attempt, err error) {
	k.mu.Lock()
	switch {
	case err != nil:
		k.phase, k.err = failed, err
	case k.desc.ClientStreams:
		k.phase, k.at, k.msg = settled, at, nil
	default:
		k.phase, k.at = opened, at
	}
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	closes := k.closed && err == nil
	k.mu.Unlock()
	if err != nil {
		k.end(err)
	}
	if k.call.Context.Err() != nil { // it may have ended meanwhile
		k.call.End()
	}
	if closes {
		_ = at.cs.CloseSend() // its error is RecvMsg's to return
	}
}

// wait returns the stream once no attempt is being made, or the status that the call ended with. Called with mu held,
// which it releases meanwhile.
func (k *core) wait() (attempt, error) {
	for k.phase <= opening {
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-k.call.Done():
		}
		k.mu.Lock()
		if k.phase <= opening && k.call.Err() != nil {
			return attempt{}, k.ended()
		}
	}
	return k.at, k.err
}

// first has receive wait for something of an attempt's answer, with m, for one attempt after the other until it returns
// nil, which settles the call on the attempt. The error is that of the call, which has ended.
func (k *core) first(receive func(cs grpc.ClientStream, m any) error, m any) error {
	k.mu.Lock()
	at, err := k.wait()
	k.mu.Unlock()
	for err == nil {
		switch {
		case at.drained != nil:
			err = at.drained.await(k, receive, m)
		case at.way.Limit == 0:
			err = receive(at.cs, m)
		default:
			err = k.await(at, receive, m)
		}
		if err == nil && at.way.Split {
			err = k.arrived(at)
		}
		if err == nil && k.settle(at) {
			return nil
		}
		at, err = k.next(at, err)
	}
	k.end(err)
	return err
}

// settle keeps the call on the attempt. It returns false where another one takes its place.
func (k *core) settle(at attempt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now, err := k.wait(); err != nil || now.n != at.n {
		return k.call.Err() != nil && k.at.n == at.n
	}
	k.phase, k.msg = settled, nil
	return true
}

// ended is the status of a call whose context has ended.
func (k *core) ended() error { return status.FromContextError(k.call.Err()).Err() }

// end is the end of the call, once: err is io.EOF or nil on success.
func (k *core) end(err error) {
	k.once.Do(func() {
		k.call.End()
		if e := k.ending.Load(); e != nil {
			e.end()
		}
		if err == io.EOF {
			err = nil
		}
		k.call.Attempts.Finish(err)
	})
}

// abandon ends a call whose stream the application dropped without reading to the end or cancelling. A request of
// several messages that is complete is not cut off: its one answer is awaited, and dropped.
func (o *owner) abandon() {
	k := o.core
	if k.conn == nil { // it was not in use
		return
	}
	k.mu.Lock()
	complete := k.closed && !k.desc.ServerStreams
	k.mu.Unlock()
	go func() { // the application's functions in Finish must not hold up other finalizers
		if complete {
			s := new(clientStream)
			s.owner.Store(o)
			s.enter() // so that the owner, which has no finalizer any more, is not used again
			_ = s.RecvMsg(new(emptypb.Empty))
			return
		}
		if cs := k.last(); cs != nil && !k.desc.ClientStreams {
			k.call.Attempts.Drop()
			_ = cs.SendMsg(new(emptypb.Empty)) // one message too many: gRPC ends the stream
		}
		k.end(call.ErrDropped)
	}()
}
