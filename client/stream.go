package client

import (
	"context"
	"runtime"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// stream is the stream interceptor. A server-streaming call is opened by its
// first message; other streams open at once, unless their dialect asks to be
// deferred, and then their first message, or CloseSend, opens them.
func (c *channels) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	h := c.handle(cc)
	if h.Within(ctx) {
		return open(ctx, desc, cc, method, opts...)
	}
	opts, finish := takeOnFinish(opts)
	if desc.ClientStreams { // it is never tried again, and may be long
		opts = slices.DeleteFunc(slices.Clone(opts), func(o grpc.CallOption) bool { _, ok := o.(retryBufferOption); return ok })
	}
	k := &core{desc: desc, open: open, opts: opts, finish: finish}
	if t := timeout(cc, method); t >= 0 {
		k.ctx, k.cancel = context.WithTimeout(ctx, t)
	} else {
		k.ctx, k.cancel = context.WithCancel(ctx)
	}
	h.Start(&k.call, k.ctx, method, nil, false)
	if !desc.ClientStreams {
		k.call.AwaitsMessage()
	}
	k.tries = attempts{call: &k.call, cc: cc, method: method}
	if desc.ClientStreams && !h.Defers(method) {
		if _, err := k.begin(nil, false); err != nil {
			return nil, err
		}
	}
	s := &clientStream{core: k}
	k.arm(s)
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
