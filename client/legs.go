package client

import (
	"context"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/call"
)

// sender sends the prefill leg of a unary call.
type sender struct {
	invoke grpc.UnaryInvoker
	conn   *grpc.ClientConn
	method string
}

// Send implements call.Sender.
func (s sender) Send(ctx context.Context, msg any, opts []grpc.CallOption, each func([]byte)) error {
	var reply call.Encoded
	err := s.invoke(ctx, s.method, msg, &reply, s.conn, opts...)
	if err == nil {
		each(reply.Bytes)
	}
	return err
}

// Send implements call.Sender: it sends the prefill leg of a streaming call.
func (k *core) Send(ctx context.Context, msg any, opts []grpc.CallOption, each func([]byte)) error {
	cs, err := k.request(ctx, msg, opts)
	if err != nil {
		return err
	}
	for {
		var response call.Encoded
		if err := cs.RecvMsg(&response); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		each(response.Bytes)
	}
}

// decode returns the context of an attempt. In two legs it first sends the prefill leg, and drains is as
// [call.Attempts.Decode] reports it.
func (k *core) decode(at *attempt) (ctx context.Context, drains bool, err error) {
	ctx = k.call.Scope
	switch tries := &k.call.Attempts; {
	case at.way.Limit > 0:
		ctx, at.cancel = context.WithCancel(ctx)
	case at.way.Split:
		if err = tries.Prefill(k); err == nil {
			ctx, at.cancel, drains = tries.Decode(true)
		}
	}
	return ctx, drains, err
}

// request opens a stream with a request message, beside the one of the call's attempt.
func (k *core) request(ctx context.Context, msg any, opts []grpc.CallOption) (grpc.ClientStream, error) {
	cs, err := k.open(ctx, k.desc, k.conn, k.method, opts...)
	if err != nil {
		return nil, err
	}
	if err = cs.SendMsg(msg); err == nil {
		err = cs.CloseSend()
	}
	if err == io.EOF { // RecvMsg has the status
		err = nil
	}
	return cs, err
}

// A drained is the first message of a decode leg. An engine may not survive the end of the leg during the transfer, so
// that a call that is cancelled leaves it only then.
type drained struct {
	at   attempt
	come chan struct{} // closed when the fields below are set
	msg  call.Encoded
	err  error
}

// drain begins to receive the first message of an attempt, which it ends once the call has ended and that has come.
func (k *core) drain(at attempt) *drained {
	d := &drained{at: at, come: make(chan struct{})}
	go func() {
		d.err = at.cs.RecvMsg(&d.msg)
		close(d.come)
	}()
	context.AfterFunc(k.call.Context, func() {
		select {
		case <-d.come:
		case <-time.After(call.Drain):
		}
		at.cancel()
	})
	return d
}

// await receives something of the answer: m is nil for a header. The error is that of the attempt.
func (d *drained) await(k *core, receive func(grpc.ClientStream, any) error, m any) error {
	select {
	case <-d.come:
	case <-k.call.Done():
		return k.ended()
	}
	switch {
	case m == nil:
		return receive(d.at.cs, nil)
	case d.err != nil:
		return d.err
	}
	if err := k.call.Attempts.Decoded(&d.msg, m); err != nil {
		k.settle(d.at) // it is an answer all the same
		return status.Errorf(codes.Internal, "warmpath: the first message cannot be decoded: %v", err)
	}
	return nil
}
