package client

import (
	"context"
	"io"
	"runtime"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
)

// stream is the stream interceptor. A server-streaming call is opened by its
// first message; other streams open at once, unless their dialect asks to be
// deferred, and then their first message, or CloseSend, opens them.
func (c *channels) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	h := c.handle(cc)
	if h.Within(ctx) {
		return open(ctx, desc, cc, method, opts...)
	}
	opts, finish := takeOnFinish(opts)
	if desc.ClientStreams { // it is never tried again, and may be long
		opts = slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool {
			_, ok := o.(retryBufferOption)
			return ok
		})
	}
	k := &core{desc: desc, open: open, conn: cc, method: method, opts: opts, finish: finish}
	// That of the service config bounds the whole call, the queue and all attempts.
	if t := cc.GetMethodConfig(method).Timeout; t != nil && *t >= 0 {
		k.ctx, k.cancel = context.WithTimeout(ctx, *t)
	} else {
		k.ctx, k.cancel = context.WithCancel(ctx)
	}
	var answer policy.Answer
	if !desc.ClientStreams { // the replica has all it needs for the first message
		answer = policy.AnswerMessage
	}
	h.Start(&k.call, k.ctx, method, nil, answer)
	k.call.Attempts.On(cc, method)
	if desc.ClientStreams && !h.Defers(method) {
		if _, err := k.begin(nil, false); err != nil {
			return nil, err
		}
	}
	s := &clientStream{core: k}
	k.arm(s)
	return s, nil
}

// core is one streaming call. At most one goroutine makes attempts at a
// time: the one that moved phase to opening. It holds no lock meanwhile.
type core struct {
	call   call.Call
	desc   *grpc.StreamDesc
	open   grpc.Streamer
	conn   *grpc.ClientConn
	method string
	opts   []grpc.CallOption
	ctx    context.Context // ends with the application's, and with the call
	cancel context.CancelFunc
	finish *onFinish
	once   sync.Once // end

	// settled is the stream from the first message on, when no other attempt follows; usage is whether its
	// messages may carry token counts. RecvMsg alone uses both.
	settled grpc.ClientStream
	usage   bool

	// mu guards the fields below. Nothing waits under it.
	mu        sync.Mutex
	phase     phase
	changed   chan struct{} // closed when phase leaves opening; made by the first goroutine that waits
	at        attempt
	err       error // of phase failed
	msg       any   // of a call that may have another attempt, until it is committed
	has       bool  // there is a msg; it may be nil
	closed    bool  // CloseSend was called
	committed bool  // the application has something of the attempt: no other follows
	cleanup   runtime.Cleanup
	stop      func() bool // of the AfterFunc that ends the call with its context; nil = none
	ended     bool
}

// attempt is the stream of one attempt.
type attempt struct {
	n      int // 1 for the first
	cs     grpc.ClientStream
	cancel context.CancelFunc // of an attempt whose first message is awaited for a limited time, else nil
}

func (k *core) send(m any) error {
	mine, err := k.begin(m, true)
	if !mine && err == nil {
		var at attempt
		if at, err = k.wait(); err == nil {
			err = at.cs.SendMsg(m)
		}
	}
	if err != nil && err != io.EOF { // the status of the call
		k.end(err)
	}
	return err
}

func (k *core) closeSend() error {
	k.mu.Lock()
	k.closed = true
	opens := k.phase == opening
	k.mu.Unlock()
	if opens {
		return nil // the goroutine that opens it closes it
	}
	// A server-streaming call that is closed before its message was sent is a
	// mistake of the application; the server answers it as it does without us.
	if mine, err := k.begin(nil, false); mine || err != nil {
		return err
	}
	at, err := k.wait()
	if err != nil {
		return err
	}
	return at.cs.CloseSend()
}

func (k *core) recv(m any) error {
	if k.settled != nil {
		return k.received(k.settled.RecvMsg(m), m)
	}
	at, err := k.wait()
	for err == nil {
		if err = k.receive(at, m); err != nil {
			at, err = k.again(at, err)
			continue
		}
		if k.commit(at) {
			k.settled, k.usage = at.cs, k.call.FirstMessage()
			k.call.DropMessage()
			k.call.Attempts.Last()
			return k.received(nil, m)
		}
		at, err = k.wait()
	}
	k.end(err)
	return err
}

func (k *core) receive(at attempt, m any) error {
	if at.cancel == nil {
		return at.cs.RecvMsg(m)
	}
	return k.first(at, func() error { return at.cs.RecvMsg(m) })
}

// received notes a response message, or the end of the stream.
func (k *core) received(err error, m any) error {
	switch {
	case err != nil:
		k.end(err)
		return err
	case k.usage:
		k.call.ReadUsage(m)
	}
	if !k.desc.ServerStreams {
		k.end(nil)
	}
	return nil
}

// header returns the header of the first attempt that has one. Where the call ends without a header it returns
// nothing, as gRPC does, and RecvMsg returns the status.
func (k *core) header() (metadata.MD, error) {
	at, err := k.wait()
	for err == nil {
		var md metadata.MD
		err = k.first(at, func() (err error) {
			if md, err = at.cs.Header(); err == nil && md == nil {
				err = k.call.Attempts.LastError() // the attempt has ended
			}
			return err
		})
		switch {
		case err != nil:
			at, err = k.again(at, err)
		case k.commit(at):
			return md, nil
		default:
			at, err = k.wait()
		}
	}
	k.end(err)
	return nil, nil
}

func (k *core) trailer() metadata.MD {
	k.mu.Lock()
	cs := k.at.cs
	k.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Trailer()
}

// context returns the context of the open stream, which commits the call to its attempt. Before, it is one
// that ends with the call.
func (k *core) context() context.Context {
	k.mu.Lock()
	if k.phase != opened {
		k.mu.Unlock()
		return k.ctx
	}
	k.committed, k.msg = true, nil
	cs := k.at.cs
	k.mu.Unlock()
	return cs.Context()
}

// end is the end of the call, once: err is io.EOF or nil on success.
func (k *core) end(err error) {
	k.once.Do(func() {
		k.mu.Lock()
		k.ended = true
		k.disarm()
		k.call.Attempts.Last()
		k.mu.Unlock()
		k.cancel()
		k.call.End()
		if k.finish != nil {
			if err == io.EOF {
				err = nil
			}
			k.finish.run(err)
		}
	})
}

// arm ends the call when the application drops its stream s, and, for its OnFinish options, when the context ends.
func (k *core) arm(s *clientStream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cleanup = runtime.AddCleanup(s, (*core).abandon, k)
	if k.finish != nil {
		k.stop = context.AfterFunc(k.ctx, func() { k.end(status.FromContextError(k.ctx.Err()).Err()) })
	}
	if k.ended {
		k.disarm()
	}
}

// disarm undoes arm. Called with mu held.
func (k *core) disarm() {
	k.cleanup.Stop()
	if k.stop != nil {
		k.stop()
	}
}

// abandon ends a call whose stream the application dropped without reading to
// the end or cancelling.
func (k *core) abandon() {
	k.end(status.Error(codes.Canceled, "warmpath: the stream was dropped before its end"))
}

// onFinish are the grpc.OnFinish options of a call: gRPC would run them after every attempt, the application wants them
// once.
type onFinish struct {
	funcs []func(error)
}

func (f *onFinish) run(err error) {
	for _, fn := range f.funcs {
		fn(err)
	}
}

// takeOnFinish splits the OnFinish options off; nil where there are none.
func takeOnFinish(opts []grpc.CallOption) ([]grpc.CallOption, *onFinish) {
	var found *onFinish
	for _, o := range opts {
		if f, ok := o.(grpc.OnFinishCallOption); ok {
			if found == nil {
				found = &onFinish{}
			}
			found.funcs = append(found.funcs, f.OnFinish)
		}
	}
	if found == nil {
		return opts, nil
	}
	rest := make([]grpc.CallOption, 0, len(opts))
	for _, o := range opts {
		if _, ok := o.(grpc.OnFinishCallOption); !ok {
			rest = append(rest, o)
		}
	}
	return rest, found
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
