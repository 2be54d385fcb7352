package tests

import (
	"context"
	"fmt"
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

// Closing the channel ends the calls that wait for room and the open streams, and leaves nothing running.
func TestCloseWithCallsUnderWay(t *testing.T) {
	entered := make(chan struct{}, 1)
	r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer("first")); err != nil {
			return err
		}
		entered <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	}})
	m := newMeter(t)
	cc, err := client.New(target(r), insecureOption(), client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`)), m.option)
	require.NoError(t, err)
	stub := testpb.NewTestServiceClient(cc)
	s, err := stub.StreamingOutputCall(deadline(t), prompt(""))
	require.NoError(t, err)
	<-entered
	_, err = s.Recv()
	require.NoError(t, err)
	const waiting = 10
	errs := make(chan error, waiting)
	for i := range waiting {
		go func() {
			if i%2 == 0 {
				_, err := stub.UnaryCall(deadline(t), simple(""))
				errs <- err
				return
			}
			_, err := read(stub.StreamingOutputCall(deadline(t), prompt("")))
			errs <- err
		}()
	}
	eventually(t, "they wait", func() bool { return m.sum(t, "warmpath.queue.length") == waiting })
	require.NoError(t, cc.Close())
	for range waiting {
		require.Equal(t, codes.Canceled, status.Code(<-errs))
	}
	_, err = s.Recv()
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
}

// between is an interceptor that runs after a replica was reserved and before gRPC opens a stream.
func between(do func(ctx context.Context) error) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, a any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if err := do(ctx); err != nil {
				return err
			}
			return next(ctx, method, q, a, cc, o...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := do(ctx); err != nil {
				return nil, err
			}
			return next(ctx, d, cc, method, o...)
		}),
	}
}

// A replica that leaves the fleet between reservation and send does not block the call, although no further picker
// comes.
func TestReplicaLeavesBetweenReserveAndPick(t *testing.T) {
	rs := replicas(t, 2)
	dir := newDirectory("leaving", state("", rs...))
	var leave atomic.Bool
	m := newMeter(t)
	opts := append(between(func(ctx context.Context) error {
		if leave.CompareAndSwap(true, false) {
			dir.set(state("", rs[1]))
		}
		return nil
	}), grpc.WithResolvers(dir), m.option, client.WithConfig(config(`{"consistent_hash":{}}`)))
	cc := dial(t, "leaving:///x", opts...)
	stub := testpb.NewTestServiceClient(cc)
	session := sessionAt(t, rs, len(rs)-1, rs[1].addr)
	for i := range 6 {
		dir.set(state("", rs...))
		connected(t, cc, rs)
		require.Equal(t, rs[0].addr, where(t, client.WithSession(deadline(t), session), cc, ""))
		leave.Store(true)
		var err error
		if i%2 == 0 {
			_, err = stub.UnaryCall(client.WithSession(deadline(t), session), simple(""))
		} else {
			_, err = read(stub.StreamingOutputCall(client.WithSession(deadline(t), session), prompt("")))
		}
		require.NoError(t, err)
		require.False(t, leave.Load())
		require.Zero(t, m.ongoing(t))
	}
}

// hooked is a context that runs a function when its metadata is read: while the request key is built, just before a
// replica is reserved.
type hooked struct {
	context.Context
	do func()
}

func (h hooked) Value(k any) any {
	if fmt.Sprintf("%T", k) == "metadata.mdOutgoingKey" {
		h.do()
	}
	return h.Context.Value(k)
}

// A call that ends, and runs grpc.OnFinish, while a replica is being reserved for it leaves no reservation.
func TestCancelledWhileReserving(t *testing.T) {
	r := start(t, &replica{})
	m := newMeter(t)
	cc := dial(t, target(r), m.option, client.WithConfig(config(`{"consistent_hash":{}}`)))
	connected(t, cc, []*replica{r})
	for range 20 {
		ctx, cancel := context.WithCancel(deadline(t))
		finished := make(chan error, 1)
		hook := sync.OnceFunc(func() {
			cancel()
			finished <- <-finished // OnFinish runs once; the error is kept for the check below
		})
		_, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(hooked{ctx, hook}, prompt(""),
			grpc.OnFinish(func(err error) { finished <- err }))
		require.Equal(t, codes.Canceled, status.Code(err))
		require.Equal(t, codes.Canceled, status.Code(<-finished))
		require.Zero(t, m.ongoing(t))
	}
}
