package client

import (
	"context"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/channel"
)

// stream is the stream interceptor. A server-streaming call is opened by its
// first message; other streams open at once, unless their dialect asks to be
// deferred, and then any first action opens them.
func (c *channels) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	h := c.handle(cc)
	opts, finish := takeOnFinish(opts)
	k := &core{desc: desc, open: open, opts: opts, finish: finish, parent: ctx}
	if ctx.Done() == nil {
		k.life.start(ctx)
		k.ctx = &k.life
	} else {
		k.ctx, k.cancel = context.WithCancel(ctx)
	}
	h.Start(&k.call, k.ctx, method, nil, false)
	if !desc.ClientStreams {
		k.call.AwaitsMessage()
	}
	k.tries = attempts{call: &k.call, cc: cc, method: method}
	if finish != nil {
		k.stop = context.AfterFunc(ctx, func() { k.end(status.FromContextError(ctx.Err()).Err()) })
	}
	if desc.ClientStreams && !h.Defers(method) {
		if _, err := k.begin(nil); err != nil {
			return nil, err
		}
	}
	s := &clientStream{core: k}
	k.setCleanup(runtime.AddCleanup(s, (*core).abandon, k))
	return s, nil
}

// clientStream is what the application holds. All it does is keep itself
// reachable while it is used: when it no longer is, core.abandon ends the call.
type clientStream struct{ core *core }

func (s *clientStream) SendMsg(m any) error {
	defer runtime.KeepAlive(s)
	return s.core.send(m)
}

func (s *clientStream) RecvMsg(m any) error {
	defer runtime.KeepAlive(s)
	return s.core.recv(m)
}

func (s *clientStream) CloseSend() error {
	defer runtime.KeepAlive(s)
	return s.core.closeSend()
}

func (s *clientStream) Header() (metadata.MD, error) {
	defer runtime.KeepAlive(s)
	return s.core.header()
}

func (s *clientStream) Trailer() metadata.MD {
	defer runtime.KeepAlive(s)
	return s.core.trailer()
}

func (s *clientStream) Context() context.Context {
	defer runtime.KeepAlive(s)
	return s.core.context()
}

type phase uint8

const (
	fresh   phase = iota // nothing asked of gRPC yet
	opening              // somebody is opening it
	opened               // cs is set
	failed               // err is set: it could not be opened
)

// core is one streaming call: opening, the attempt loop, the end.
type core struct {
	call   channel.Call
	tries  attempts
	desc   *grpc.StreamDesc
	open   grpc.Streamer
	opts   []grpc.CallOption
	parent context.Context    // the application's
	ctx    context.Context    // cancelled at the end
	cancel context.CancelFunc // nil: of life
	life   lifetime
	finish *onFinish
	stop   func() bool // of the AfterFunc that runs finish
	once   sync.Once   // end

	watched  bool               // whether the first message is watched; set by who opens
	unanswer context.CancelFunc // of the attempt under way, where it is watched

	// From the first message on, for RecvMsg alone: the stream, since no other follows, and
	// whether its messages may tell usage.
	settled grpc.ClientStream
	usage   bool

	// mu guards the fields below. Opening again, in recv, happens under it; it
	// always ends with the context.
	mu        sync.Mutex
	phase     phase
	second    *channel.Call // of the second attempt, where the first message was late
	changed   chan struct{} // closed when phase leaves opening; made by who waits
	cs        grpc.ClientStream
	err       error
	msg       any  // kept for another attempt until committed
	closed    bool // CloseSend was called
	committed bool // the application has seen something of this attempt
	cleanup   runtime.Cleanup
	ended     bool
}

// begin opens the stream with its first message, or without one, if nobody has,
// and reports whether it was the one; else it waits for whoever is at it.
func (k *core) begin(m any) (mine bool, err error) {
	k.mu.Lock()
	if k.phase != fresh {
		k.mu.Unlock()
		_, err := k.wait()
		return false, err
	}
	k.phase = opening
	k.mu.Unlock()

	k.call.SetMessage(m)
	k.watched = !k.desc.ClientStreams && k.tries.watches(k.opts)
	cs, err := k.attempt(m)

	k.mu.Lock()
	k.cs, k.err = cs, err
	k.phase = opened
	if err != nil {
		k.phase = failed
	}
	if !k.desc.ClientStreams {
		k.msg = m
	}
	if k.changed != nil {
		close(k.changed)
	}
	ended := k.ended
	k.mu.Unlock()
	switch {
	case ended: // meanwhile, by its context
		k.call.End()
	case err != nil:
		k.end(err)
	}
	return true, err
}

// attempt asks gRPC for a stream and sends the first message on it, as often as
// the attempt loop allows. What the queue says is final.
func (k *core) attempt(m any) (grpc.ClientStream, error) {
	for {
		call := k.tries.call
		if b := call.Handle().Bound(); b != nil {
			if err := call.Acquire(b); err != nil {
				return nil, err
			}
		}
		cs, err := k.openStream(k.attemptContext(call), m)
		if err == nil {
			return cs, nil
		}
		if err := k.tries.again(k.ctx, err); err != nil {
			return nil, call.Final(err)
		}
	}
}

// openStream asks gRPC for a stream and sends the first message on it.
func (k *core) openStream(ctx context.Context, m any) (grpc.ClientStream, error) {
	cs, err := k.open(ctx, k.desc, k.tries.cc, k.tries.method, k.opts...)
	if err != nil || m == nil {
		return cs, err
	}
	// A stream that broke meanwhile tells its status to RecvMsg; io.EOF says so.
	if err := cs.SendMsg(m); err != nil && err != io.EOF {
		return nil, err
	}
	return cs, nil
}

// wait returns the open stream, or the status that the call ended with.
func (k *core) wait() (grpc.ClientStream, error) {
	k.mu.Lock()
	for k.phase == fresh || k.phase == opening {
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-k.ctx.Done():
			return nil, status.FromContextError(k.ctx.Err()).Err()
		}
		k.mu.Lock()
	}
	defer k.mu.Unlock()
	return k.cs, k.err
}

// ready is wait for an action that opens a deferred bidirectional stream.
func (k *core) ready() (grpc.ClientStream, error) {
	if k.desc.ClientStreams {
		if _, err := k.begin(nil); err != nil {
			return nil, err
		}
	}
	return k.wait()
}

func (k *core) send(m any) error {
	mine, err := k.begin(m)
	if mine || err != nil {
		return err
	}
	cs, err := k.wait()
	if err != nil {
		return err
	}
	return cs.SendMsg(m)
}

func (k *core) closeSend() error {
	k.mu.Lock()
	k.closed = true
	k.mu.Unlock()
	// A server-streaming call that is closed before its message was sent is a
	// mistake of the application; the server answers it as it does without us.
	if _, err := k.begin(nil); err != nil {
		return err
	}
	cs, err := k.wait()
	if err != nil {
		return err
	}
	return cs.CloseSend()
}

func (k *core) recv(m any) error {
	cs := k.settled
	if cs == nil {
		var err error
		if cs, err = k.ready(); err != nil {
			return err
		}
	}
	for {
		var err error
		if k.watched {
			cs, err = k.receiveFirst(cs, m)
		} else {
			err = cs.RecvMsg(m)
		}
		if err == nil {
			k.received(cs, m)
			return nil
		}
		next, retryErr := k.again(cs, err)
		if next == nil {
			k.end(retryErr)
			return retryErr
		}
		cs = next
	}
}

// received notes a response message. The first one ends the attempt loop, if the
// application has not seen the response's header before.
func (k *core) received(cs grpc.ClientStream, m any) {
	call := k.tries.call
	if k.settled == nil {
		k.commit()
		call.FirstMessage()
		call.DropMessage()
		k.watched, k.settled, k.usage = false, cs, call.TellsUsage()
	}
	if k.usage {
		call.ReadUsage(m)
	}
	if !k.desc.ServerStreams {
		k.end(nil)
	}
}

// commit keeps the call on its attempt.
func (k *core) commit() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.committed, k.msg = true, nil
}

// again opens the stream anew after an attempt failed before its first message.
// It returns no stream, and the error for the application, where that may not be.
func (k *core) again(cs grpc.ClientStream, err error) (grpc.ClientStream, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.cs != cs {
		return k.cs, nil
	}
	if err == io.EOF || k.committed || k.desc.ClientStreams {
		return nil, err
	}
	if err := k.tries.again(k.ctx, err); err != nil {
		return nil, err
	}
	next, err := k.attempt(k.msg)
	if k.ended { // meanwhile, by its context
		k.tries.call.End()
	}
	if err != nil {
		return nil, err
	}
	if k.closed {
		_ = next.CloseSend() // its error is RecvMsg's to tell
	}
	k.cs = next
	return next, nil
}

func (k *core) header() (metadata.MD, error) {
	for {
		if _, err := k.ready(); err != nil {
			return nil, nil // as gRPC does: RecvMsg tells the status
		}
		k.mu.Lock()
		if k.phase != opening { // again, after a first message that was late
			break
		}
		k.mu.Unlock()
	}
	k.committed, k.msg = true, nil
	cs := k.cs
	k.mu.Unlock()
	return cs.Header()
}

func (k *core) trailer() metadata.MD {
	k.mu.Lock()
	cs := k.cs
	k.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Trailer()
}

func (k *core) context() context.Context {
	if ctx := k.openContext(); ctx != nil {
		return ctx
	}
	return early{k.parent, k}
}

// openContext returns the context of the open stream, which commits the attempt;
// nil before.
func (k *core) openContext() context.Context {
	k.mu.Lock()
	cs := k.cs
	if k.phase != opened {
		cs = nil
	}
	if cs != nil {
		k.committed, k.msg = true, nil
	}
	k.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Context()
}

// end is the end of the call, once: err is io.EOF or nil on success.
func (k *core) end(err error) {
	k.once.Do(func() {
		if k.stop != nil {
			k.stop()
		}
		k.mu.Lock()
		k.ended = true
		k.cleanup.Stop()
		second := k.second
		k.mu.Unlock()
		if k.cancel != nil {
			k.cancel()
		} else {
			k.life.cancel()
		}
		k.call.End()
		if second != nil {
			second.End()
		}
		if k.finish != nil {
			if err == io.EOF {
				err = nil
			}
			k.finish.run(err)
		}
	})
}

func (k *core) setCleanup(c runtime.Cleanup) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cleanup = c
	if k.ended {
		c.Stop()
	}
}

// abandon ends a call whose stream the application dropped without reading to
// the end or cancelling.
func (k *core) abandon() {
	k.end(status.Error(codes.Canceled, "warmpath: the stream was dropped before its end"))
}
