package client

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/call"
)

// unary is the unary interceptor: the message is at hand, so the key is taken and a replica reserved before gRPC is
// asked to invoke.
func (c *channels) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) (err error) {
	h := c.handle(cc)
	if h.Within(ctx) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if t := timeout(cc, method); t >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t)
		defer cancel()
	}
	rpc := h.NewCall(ctx, method, req, routing.AnswerWhole)
	defer rpc.End()
	tries := &rpc.Attempts
	tries.On(cc, method)
	opts, finish := takeOnFinish(opts)
	opts = tries.Sends(req, opts)
	defer tries.Last()
	if finish != nil {
		defer func() { finish.run(err) }()
	}
	for {
		if err := tries.Reserve(ctx); err != nil {
			return err
		}
		var err error
		opts := tries.Ranked(opts)
		if tries.Limited() {
			err = invokeLimited(rpc, method, req, reply, cc, invoke, opts)
		} else {
			err = invoke(rpc, method, req, reply, cc, opts...)
		}
		if err == nil {
			if rpc.FirstMessage() {
				rpc.ReadUsage(reply)
			}
			return nil
		}
		if err := tries.Again(ctx, err); err != nil {
			return err
		}
	}
}

// invokeLimited is invoke for an attempt for whose answer the call waits until first_token_timeout.
func invokeLimited(
	rpc *call.Call, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts []grpc.CallOption,
) error {
	ctx, cancel := context.WithCancel(rpc)
	defer cancel()
	answered := false
	err := rpc.Attempts.Await(cancel, func() error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		answered = err == nil
		return err
	}, rpc.Attempts.Move)
	if answered { // in the moment in which it was cancelled
		return nil
	}
	return err
}

// timeout is that of the service config for a method, which bounds the whole call, the queue and all attempts; negative
// = none.
func timeout(cc *grpc.ClientConn, method string) time.Duration {
	if t := cc.GetMethodConfig(method).Timeout; t != nil {
		return *t
	}
	return -1
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
