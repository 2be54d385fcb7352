package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// both returns a function that blocks until two calls have entered it.
func both() func() {
	var come sync.WaitGroup
	come.Add(2)
	return func() {
		come.Done()
		come.Wait()
	}
}

// Issue 12.35: an interceptor inside warmpath's may send a call twice at once. Each attempt has its own pick and
// reservation, and the Decision is that of the first pick.
func TestSentTwiceAtOnce(t *testing.T) {
	for _, policy := range []string{"round_robin", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			meet := func() {}
			rs := make([]*replica, 2)
			for i := range rs {
				r := &replica{}
				r.unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					meet()
					return &testpb.SimpleResponse{Username: r.addr}, nil
				}
				rs[i] = start(t, r)
			}
			m := newMeter(t)
			twice := false
			cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"`+policy+`":{}}`)),
				grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
					if !twice {
						return next(ctx, method, req, reply, cc, o...)
					}
					mirrored := make(chan error)
					go func() { mirrored <- next(ctx, method, req, new(testpb.SimpleResponse), cc, o...) }()
					return errors.Join(next(ctx, method, req, reply, cc, o...), <-mirrored)
				}))
			connected(t, cc, rs)
			twice = true
			for range 5 {
				meet = both()
				before := rs[0].calls.Load() + rs[1].calls.Load()
				require.Contains(t, []string{rs[0].addr, rs[1].addr}, asked(t, cc, "a prompt").Replica)
				require.EqualValues(t, 2, rs[0].calls.Load()+rs[1].calls.Load()-before)
			}
			eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
		})
	}
}

// Issue 12.35: the application's own second attempt answers while the first hangs, or is cancelled, or both fail.
func TestHedgeOfTheApplication(t *testing.T) {
	fail := false
	held := make(chan struct{}, 4)
	serve := func(ctx context.Context, first bool) error {
		switch {
		case first:
			held <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		case fail:
			return status.Error(codes.Internal, "broken")
		}
		return nil
	}
	rs := []*replica{{}, {}}
	for i, r := range rs {
		r.unary = func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if len(q.Payload.GetBody()) == 0 {
				return &testpb.SimpleResponse{Username: r.addr}, nil
			}
			return &testpb.SimpleResponse{Username: r.addr}, serve(ctx, i == 0)
		}
		start(t, r)
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"round_robin":{}}`, `"max_attempts":1`)),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if len(req.(*testpb.SimpleRequest).Payload.GetBody()) == 0 {
				return next(ctx, method, req, reply, cc, o...)
			}
			ctx, cancel := context.WithCancel(ctx)
			defer cancel() // and not awaited
			go func() { _ = next(client.WithPin(ctx, rs[0].addr), method, req, new(testpb.SimpleResponse), cc, o...) }()
			<-held
			return next(client.WithPin(ctx, rs[1].addr), method, req, reply, cc, o...)
		}))
	connected(t, cc, rs)
	require.Equal(t, rs[1].addr, where(t, deadline(t), cc, "x"))
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
	fail = true
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("x"))
	require.Equal(t, codes.Internal, status.Code(err), "%v", err)
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
}

// Issue 12.35: so may an interceptor of streams, also if it sends after the call has ended.
func TestMirroredStream(t *testing.T) {
	rs := replicas(t, 2)
	m := newMeter(t)
	mirrored := make(chan error, 2)
	drain := func(s grpc.ClientStream, err error) error {
		for err == nil {
			err = s.RecvMsg(new(testpb.StreamingOutputCallResponse))
		}
		return err
	}
	ended := make(chan struct{})
	cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"kv_aware":{}}`)),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			send := func(ctx context.Context) error {
				s, err := next(ctx, d, cc, method, o...)
				if err == nil {
					err = errors.Join(s.SendMsg(prompt("x")), s.CloseSend())
				}
				return drain(s, err)
			}
			go func() { mirrored <- send(ctx) }()
			go func() {
				<-ended
				mirrored <- send(context.WithoutCancel(ctx))
			}()
			return next(ctx, d, cc, method, o...)
		}))
	connected(t, cc, rs)
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("x"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	first := <-mirrored
	require.ErrorIs(t, first, io.EOF)
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF)
	close(ended)
	require.ErrorIs(t, <-mirrored, io.EOF)
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
	require.EqualValues(t, 3, rs[0].calls.Load()+rs[1].calls.Load())
}

// An interceptor may keep the context of an attempt, and send the request again after the call, whose memory is another
// call's by then. Not that of a call with a timeout, or before the resolver's first result, which ends with the call.
func TestSentAgainAfterTheEnd(t *testing.T) {
	rs := replicas(t, 4)
	m := newMeter(t)
	var again sync.WaitGroup
	var begun atomic.Bool
	cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"kv_aware":{}}`)),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			err := next(ctx, method, req, reply, cc, o...)
			first := reply.(*testpb.SimpleResponse).Username
			if !begun.Load() {
				return err
			}
			again.Go(func() {
				for range 2 {
					var second testpb.SimpleResponse
					if err := next(ctx, method, req, &second, cc, o...); err != nil || second.Username != first {
						t.Errorf("sent again: %v, to %s in the place of %s", err, second.Username, first)
					}
				}
			})
			return err
		}))
	connected(t, cc, rs)
	begun.Store(true)
	var calls sync.WaitGroup
	for i := range 16 {
		calls.Go(func() {
			for k := range 30 {
				var d client.Decision
				pin := rs[(i+k)%len(rs)].addr
				ctx := client.WithPin(client.WithDecision(deadline(t), &d), pin)
				reply, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple(fmt.Sprint(i, k)))
				if err != nil || reply.Username != pin {
					t.Errorf("%v, %s in the place of %s", err, reply.GetUsername(), pin)
				}
			}
		})
	}
	calls.Wait()
	again.Wait()
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
}
