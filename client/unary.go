package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
)

// unary is the unary interceptor: the message is at hand, so the key is taken and a replica reserved before gRPC is
// asked to invoke.
func (c *channels) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) (err error) {
	h := c.handle(cc)
	if h.Within(ctx) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	// That of the service config bounds the whole call, the queue and all attempts.
	if t := cc.GetMethodConfig(method).Timeout; t != nil && *t >= 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, *t)
		defer cancel()
	}
	rpc := new(call.Call)
	h.Start(rpc, ctx, cc, method, req, policy.AnswerWhole)
	defer rpc.End()
	tries := &rpc.Attempts
	opts, finish := takeOnFinish(opts)
	opts = tries.Sends(req, opts)
	defer tries.Last()
	if finish != nil {
		defer func() {
			for _, finish := range finish {
				finish(err)
			}
		}()
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
