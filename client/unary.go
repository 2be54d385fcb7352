package client

import (
	"context"

	"google.golang.org/grpc"
)

// unary is the unary interceptor: the message is at hand, so the key is taken
// and a replica booked before gRPC is asked to invoke.
func (c *channels) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
	h := c.handle(cc)
	if h.Within(ctx) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if t := timeout(cc, method); t >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t)
		defer cancel()
	}
	tries := attempts{call: h.NewCall(ctx, method, req, true), cc: cc, method: method}
	defer tries.call.End()
	opts, finish := takeOnFinish(opts)
	opts = tries.sends(req, opts)
	defer tries.last()
	if finish != nil {
		defer func() { finish.run(err) }()
	}
	for {
		if err := tries.book(ctx); err != nil {
			return err
		}
		var err error
		opts := tries.ranked(opts)
		if tries.limited() {
			err = tries.invokeLimited(req, reply, invoke, opts)
		} else {
			err = invoke(tries.call, method, req, reply, cc, opts...)
		}
		if err == nil {
			tries.call.FirstMessage()
			tries.call.ReadUsage(reply)
			return nil
		}
		if err := tries.again(ctx, err); err != nil {
			return err
		}
	}
}

// invokeLimited is invoke for an attempt whose answer is awaited for first_token_timeout.
func (a *attempts) invokeLimited(req, reply any, invoke grpc.UnaryInvoker, opts []grpc.CallOption) error {
	tries := *a // a stays on its caller's stack
	ctx, cancel := context.WithCancel(tries.call)
	defer cancel()
	answered := false
	err := tries.await(cancel, func() error {
		err := invoke(ctx, tries.method, req, reply, tries.cc, opts...)
		answered = err == nil
		return err
	}, tries.move)
	if answered { // in the moment in which it was cancelled
		return nil
	}
	return err
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
