package client

import (
	"context"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/internal/channel"
)

// attemptContext is the context of an attempt: the Call, which alone can be cancelled
// where the first message is watched.
func (k *core) attemptContext(call *channel.Call) context.Context {
	if !k.watched {
		return call
	}
	if k.unanswer != nil {
		k.unanswer()
	}
	ctx, cancel := context.WithCancel(call)
	k.unanswer = cancel
	return ctx
}

// receiveFirst is RecvMsg for a first message that is watched. It returns the stream that
// the call is on now.
func (k *core) receiveFirst(cs grpc.ClientStream, m any) (grpc.ClientStream, error) {
	k.mu.Lock()
	msg, committed := k.msg, k.committed
	k.mu.Unlock()
	if committed || k.tries.broken > 0 {
		k.watched = false
		return cs, cs.RecvMsg(m)
	}
	spare := another(m)
	done := make(chan error, 1)
	go func(cs grpc.ClientStream) { done <- cs.RecvMsg(m) }(cs)
	var beside grpc.ClientStream
	s := slow{
		tries: &k.tries, limit: k.call.Handle().Retries(), first: k.unanswer, into: m, spare: spare,
		receive: func(ctx context.Context, into any) (err error) {
			if beside, err = k.openStream(ctx, msg); err != nil {
				return err
			}
			_ = beside.CloseSend() // its error is RecvMsg's to tell
			return beside.RecvMsg(into)
		},
	}
	s.mine = func(second *channel.Call, made bool) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.committed {
			return false
		}
		k.second = second
		if !made {
			k.phase, k.changed = opening, nil
		} else if beside != nil {
			k.cs = beside
		}
		return true
	}
	how, second, err := s.wait(done)
	switch how {
	case secondCame:
		k.endLate(second)
		if beside != nil {
			cs = beside
		}
	case firstLeft:
		return k.reopen(cs, second, msg, m)
	}
	return cs, err
}

// reopen opens the stream of a second attempt, which takes the place of the first, and
// receives its first message.
func (k *core) reopen(cs grpc.ClientStream, second *channel.Call, msg, m any) (grpc.ClientStream, error) {
	next, err := k.openStream(k.attemptContext(second), msg)
	k.mu.Lock()
	k.phase = opened
	if err == nil {
		k.cs, cs = next, next
	}
	if k.changed != nil {
		close(k.changed)
	}
	closed := k.closed
	k.mu.Unlock()
	k.endLate(second)
	if err != nil {
		return cs, err
	}
	if closed {
		_ = cs.CloseSend() // its error is RecvMsg's to tell
	}
	return cs, cs.RecvMsg(m)
}

// endLate ends the Call of a second attempt where its stream's end came before it was known.
func (k *core) endLate(second *channel.Call) {
	k.mu.Lock()
	ended := k.ended
	k.mu.Unlock()
	if ended {
		second.End()
	}
}
