package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/router/state"
)

// unary is the unary interceptor: the message is at hand, so the key is taken and a replica reserved before gRPC is
// asked to invoke.
func (c *channels) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	o := newOwner()
	rpc := &o.call
	if !c.handle(cc).Start(rpc, ctx, cc, method, state.AnswerWhole, opts) {
		owners.Put(o)
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	defer o.free()
	defer rpc.End()
	tries := &rpc.Attempts
	tries.Sends(req)
	err := tries.Run(nil, func(way call.Way) error {
		if way.Split {
			if err := tries.Prefill(sender{invoke, cc, method}); err != nil {
				return err
			}
			decode, cancel, _ := tries.Decode(false)
			defer cancel()
			return invoke(decode, method, req, reply, cc, tries.Each...)
		}
		if way.Limit == 0 {
			return invoke(rpc.Scope, method, req, reply, cc, tries.Each...)
		}
		attempt, cancel := context.WithCancel(rpc.Scope)
		defer cancel()
		answered := false
		err := tries.Await(way.Limit, cancel, func() error {
			err := invoke(attempt, method, req, reply, cc, tries.Each...)
			answered = err == nil
			return err
		}, tries.Move)
		if answered { // in the moment in which it was cancelled
			return nil
		}
		return err
	})
	if err == nil && rpc.FirstMessage() {
		rpc.ReadUsage(reply)
	}
	tries.Finish(err)
	return err
}
