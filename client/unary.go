package client

import (
	"context"

	"google.golang.org/grpc"
)

// unary is the unary interceptor: the message is at hand, so the key is taken
// and a replica booked before gRPC is asked to invoke.
func (c *channels) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
	h := c.handle(cc)
	call := h.NewCall(ctx, method, req, true)
	defer call.End()
	opts, finish := takeOnFinish(opts)
	if finish != nil {
		defer func() { finish.run(err) }()
	}
	tries := attempts{call: call, cc: cc, method: method}
	for {
		if b := h.Bound(); b != nil {
			if err := call.Acquire(b); err != nil {
				return err
			}
		}
		err := invoke(call, method, req, reply, cc, opts...)
		if err == nil {
			call.FirstMessage()
			call.ReadUsage(reply)
			return nil
		}
		if !tries.again(ctx, err) {
			return err
		}
	}
}

// onFinish are the grpc.OnFinish options of a call: gRPC would run them after
// every attempt, the application wants them once.
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
