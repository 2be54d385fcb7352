package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/internal/channel"
)

// invoke makes one attempt of a unary call whose first message is watched, and a second
// one where that does not come in time.
func (a *attempts) invoke(req, reply any, invoke grpc.UnaryInvoker, opts []grpc.CallOption) error {
	tries := *a // a stays on its caller's stack
	do := func(ctx context.Context, into any) error {
		return invoke(ctx, tries.method, req, into, tries.cc, opts...)
	}
	ctx, cancel := context.WithCancel(tries.call)
	defer cancel()
	s := slow{
		tries: &tries, limit: tries.call.Handle().Retries(), first: cancel, into: reply, spare: another(reply),
		receive: do, mine: func(*channel.Call, bool) bool { return true },
	}
	done := make(chan error, 1)
	go func() { done <- do(ctx, reply) }()
	how, second, err := s.wait(done)
	if s.end != nil {
		defer s.end()
	}
	*a = tries
	if how == firstLeft {
		return do(second, reply)
	}
	return err
}
