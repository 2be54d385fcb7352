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
	answer := policy.AnswerMessage // the replica has all it needs for the first message
	if desc.ClientStreams {        // it is never tried again, and may be long
		opts = slices.DeleteFunc(slices.Clone(opts), isA[retryBufferOption])
		answer = policy.AnswerUnseen
	}
	k := &core{desc: desc, open: open, conn: cc, method: method, opts: opts, finish: finish}
	// That of the service config bounds the whole call, the queue and all attempts.
	if t := cc.GetMethodConfig(method).Timeout; t != nil && *t >= 0 {
		k.ctx, k.cancel = context.WithTimeout(ctx, *t)
	} else {
		k.ctx, k.cancel = context.WithCancel(ctx)
	}
	h.Start(&k.call, k.ctx, cc, method, nil, answer)
	if desc.ClientStreams && !h.Defers(method) {
		if _, _, err := k.begin(nil, false); err != nil {
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
	finish []func(error)
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

type phase uint8

const (
	fresh   phase = iota // gRPC is asked for nothing yet
	opening              // one goroutine makes an attempt, or waits to make one
	opened               // at is set
	failed               // err is set: there is no other attempt
)

// attempt is the stream of one attempt.
type attempt struct {
	n      int // 1 for the first
	cs     grpc.ClientStream
	cancel context.CancelFunc // of an attempt whose first message is awaited for a limited time, else nil
}

// clientStream is what the application holds. Its methods keep it reachable: when it no longer is, core.abandon ends the
// call.
type clientStream struct{ core *core }

func (s *clientStream) SendMsg(m any) error {
	defer runtime.KeepAlive(s)
	at, mine, err := s.core.begin(m, true)
	if !mine && err == nil {
		err = at.cs.SendMsg(m)
	}
	if err != nil && err != io.EOF { // the status of the call
		s.core.end(err)
	}
	return err
}

// CloseSend closes every attempt of the call. It opens a stream whose message was not sent: where that is a mistake of the
// application, the server answers it as it does without us.
func (s *clientStream) CloseSend() error {
	defer runtime.KeepAlive(s)
	k := s.core
	k.mu.Lock()
	k.closed = true
	opens := k.phase == opening
	k.mu.Unlock()
	if opens {
		return nil // the goroutine that opens it closes it
	}
	at, mine, err := k.begin(nil, false)
	if mine || err != nil {
		return err
	}
	return at.cs.CloseSend()
}

func (s *clientStream) RecvMsg(m any) error {
	defer runtime.KeepAlive(s)
	k := s.core
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

// Header returns the header of the first attempt that has one. Where the call ends without a header it returns
// nothing, as gRPC does, and RecvMsg returns the status.
func (s *clientStream) Header() (metadata.MD, error) {
	defer runtime.KeepAlive(s)
	k := s.core
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

func (s *clientStream) Trailer() metadata.MD {
	defer runtime.KeepAlive(s)
	s.core.mu.Lock()
	cs := s.core.at.cs
	s.core.mu.Unlock()
	if cs == nil {
		return nil
	}
	return cs.Trailer()
}

// Context returns the context of the open stream, which commits the call to its attempt. Before, it is one
// that ends with the call.
func (s *clientStream) Context() context.Context {
	defer runtime.KeepAlive(s)
	k := s.core
	k.mu.Lock()
	at, open := k.at, k.phase == opened
	if open {
		k.committed, k.msg = true, nil
	}
	k.mu.Unlock()
	if !open {
		return k.ctx
	}
	return at.cs.Context()
}

// begin opens the stream, with its first message if has is set, unless another goroutine does or did. It
// reports whether it opened it, and waits for the other goroutine where it did not.
func (k *core) begin(m any, has bool) (at attempt, mine bool, err error) {
	k.mu.Lock()
	if k.phase != fresh {
		k.mu.Unlock()
		at, err = k.wait()
		return at, false, err
	}
	k.phase = opening
	if !k.desc.ClientStreams {
		k.msg, k.has = m, has
	}
	if k.has {
		k.opts = k.call.Attempts.Sends(m, k.opts)
	}
	k.mu.Unlock()

	k.call.SetMessage(m)
	at, err = k.attempt(m, has)
	k.settle(at, err)
	if err != nil {
		k.end(err)
	}
	return at, true, err
}

// attempt asks gRPC for a stream and sends the first message on it, as often as the attempt loop allows.
func (k *core) attempt(m any, has bool) (attempt, error) {
	for {
		if err := k.call.Attempts.Reserve(k.ctx); err != nil {
			return attempt{}, err
		}
		next := attempt{n: k.call.Attempts.Begun}
		ctx := context.Context(&k.call)
		if k.call.Attempts.Limited() && !k.desc.ClientStreams {
			ctx, next.cancel = context.WithCancel(ctx)
		}
		var err error
		next.cs, err = k.open(ctx, k.desc, k.conn, k.method, k.call.Attempts.Ranked(k.opts)...)
		if err == nil && has {
			err = next.cs.SendMsg(m)
		}
		if err == nil || err == io.EOF { // the status of a stream that broke meanwhile is RecvMsg's to return
			return next, nil
		}
		if next.cancel != nil {
			next.cancel()
		}
		if err := k.call.Attempts.Again(k.ctx, err); err != nil {
			return attempt{}, err
		}
	}
}

// settle ends phase opening with the stream of an attempt, or the error of the call.
func (k *core) settle(next attempt, err error) {
	k.mu.Lock()
	if k.phase, k.err = opened, err; err != nil {
		k.phase = failed
	} else if next.cs != nil {
		k.at = next
	}
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
	ended, closed, cs := k.ended, k.closed, k.at.cs
	k.mu.Unlock()
	if ended { // meanwhile, by its context
		k.call.End()
	}
	if closed && err == nil {
		_ = cs.CloseSend() // its error is RecvMsg's to return
	}
}

// lockSettled locks mu once no attempt is being made. It returns false, without the lock, where the context ends first.
func (k *core) lockSettled() bool {
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
			return false
		}
		k.mu.Lock()
	}
	return true
}

// wait returns the open stream, or the status that the call ended with.
func (k *core) wait() (attempt, error) {
	if !k.lockSettled() {
		return attempt{}, status.FromContextError(k.ctx.Err()).Err()
	}
	defer k.mu.Unlock()
	return k.at, k.err
}

// commit keeps the call on the attempt. It returns false where another one has taken its place.
func (k *core) commit(at attempt) bool {
	if !k.lockSettled() {
		return true
	}
	defer k.mu.Unlock()
	if k.phase == failed || k.at.n != at.n {
		return false
	}
	k.committed, k.msg = true, nil
	return true
}

// claim makes this goroutine the one that replaces the attempt.
func (k *core) claim(at attempt) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.phase != opened || k.at.n != at.n || k.committed || k.desc.ClientStreams {
		return false
	}
	k.phase = opening
	return true
}

// again replaces an attempt that failed before its first message. It returns the error of the call where
// the attempt is not replaced.
func (k *core) again(at attempt, err error) (attempt, error) {
	if err == io.EOF {
		return at, err
	}
	if err != call.ErrLate && !k.claim(at) { // a late attempt is claimed already
		now, failure := k.wait()
		switch {
		case failure != nil:
			return now, failure
		case now.n == at.n:
			return at, err // the call is committed to it
		}
		return now, nil
	}
	var next attempt
	if err = k.call.Attempts.Again(k.ctx, err); err == nil {
		next, err = k.attempt(k.msg, k.has)
	}
	k.settle(next, err)
	return next, err
}

// receive receives the first message of an attempt.
func (k *core) receive(at attempt, m any) error {
	if at.cancel == nil {
		return at.cs.RecvMsg(m)
	}
	return k.first(at, func() error { return at.cs.RecvMsg(m) })
}

// first runs receive, which waits for something of the attempt. Where nothing comes within first_token_timeout,
// and another replica can take the call, it cancels the attempt, claims it, and returns call.ErrLate.
func (k *core) first(at attempt, receive func() error) error {
	if at.cancel == nil {
		return receive()
	}
	return k.call.Attempts.Await(at.cancel, receive, func() (move, ever bool) {
		if !k.claim(at) {
			return false, false
		}
		if move, ever = k.call.Attempts.Move(); !move {
			k.settle(attempt{}, nil)
		}
		return move, ever
	})
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
		if err == io.EOF {
			err = nil
		}
		for _, finish := range k.finish {
			finish(err)
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

// takeOnFinish splits the OnFinish options off: gRPC would run them after every attempt, the application wants them
// once.
func takeOnFinish(opts []grpc.CallOption) (rest []grpc.CallOption, finish []func(error)) {
	for _, o := range opts {
		if f, ok := o.(grpc.OnFinishCallOption); ok {
			finish = append(finish, f.OnFinish)
		}
	}
	if finish == nil {
		return opts, nil
	}
	return slices.DeleteFunc(slices.Clone(opts), isA[grpc.OnFinishCallOption]), finish
}

// isA reports whether an option is a T.
func isA[T grpc.CallOption](o grpc.CallOption) bool {
	_, ok := o.(T)
	return ok
}
