package faultproxy

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo answers a streaming call with as many messages as it requests; the last waits until the test lets it go.
type echo struct {
	testpb.UnimplementedTestServiceServer
	calls, ended atomic.Int64
	last         chan struct{} // closed, or gives one last message
}

func (e *echo) UnaryCall(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	e.calls.Add(1)
	return &testpb.SimpleResponse{}, nil
}

func (e *echo) StreamingOutputCall(q *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
	e.calls.Add(1)
	defer e.ended.Add(1)
	for i, p := range q.GetResponseParameters() {
		if i == len(q.GetResponseParameters())-1 {
			select {
			case <-e.last:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
		if err := s.Send(&testpb.StreamingOutputCallResponse{Payload: &testpb.Payload{Body: make([]byte, p.GetSize())}}); err != nil {
			return err
		}
	}
	return nil
}

// rig is a server, a proxy in front of it, and a channel to the proxy.
type rig struct {
	*echo
	proxy *Proxy
	stub  testpb.TestServiceClient
	ctx   context.Context
}

func start(t *testing.T, opts ...grpc.DialOption) *rig {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &rig{echo: &echo{last: make(chan struct{})}}
	s := grpc.NewServer()
	testpb.RegisterTestServiceServer(s, r.echo)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	r.proxy, err = Listen(t.Context(), lis.Addr().String())
	require.NoError(t, err)
	t.Cleanup(r.proxy.Close)
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: 10 * time.Second}),
	}, opts...)
	cc, err := grpc.NewClient("passthrough:///"+r.proxy.Addr(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	r.stub = testpb.NewTestServiceClient(cc)
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return r
}

// open begins a stream of n messages and reads all but the last.
func (r *rig) open(t *testing.T, n, size int) grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse] {
	t.Helper()
	q := &testpb.StreamingOutputCallRequest{}
	for range n {
		q.ResponseParameters = append(q.ResponseParameters, &testpb.ResponseParameters{Size: int32(size)})
	}
	s, err := r.stub.StreamingOutputCall(r.ctx, q, grpc.WaitForReady(true))
	require.NoError(t, err)
	for range n - 1 {
		m, err := s.Recv()
		require.NoError(t, err)
		require.Len(t, m.GetPayload().GetBody(), size)
	}
	return s
}

func (r *rig) unary() error {
	_, err := r.stub.UnaryCall(r.ctx, &testpb.SimpleRequest{}, grpc.WaitForReady(true))
	return err
}

func rest(s grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]) (n int, err error) {
	for {
		if _, err := s.Recv(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		n++
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, 20*time.Second, time.Millisecond, what)
}

func TestWithoutFaults(t *testing.T) {
	r := start(t)
	close(r.last)
	s := r.open(t, 50, 40<<10) // more than a frame each
	n, err := rest(s)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, r.unary())
	require.Equal(t, 1, r.proxy.Conns())
	require.Equal(t, 1, r.proxy.Accepted())
}

func TestResetMidStream(t *testing.T) {
	for name, do := range map[string]func(*Proxy){"reset": (*Proxy).Reset, "drop": (*Proxy).Drop} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			s := r.open(t, 3, 1)
			do(r.proxy)
			_, err := rest(s)
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			eventually(t, "the server sees the end", func() bool { return r.ended.Load() == 1 })
			require.NoError(t, r.unary(), "over a new connection")
			require.Equal(t, 2, r.proxy.Accepted())
		})
	}
}

func TestServerEndsAndMoves(t *testing.T) {
	r, other := start(t), start(t)
	r.proxy.SetServer("127.0.0.1:1")
	_, err := r.stub.UnaryCall(r.ctx, &testpb.SimpleRequest{})
	require.Equal(t, codes.Unavailable, status.Code(err))
	other.proxy.mu.Lock()
	addr := other.proxy.server
	other.proxy.mu.Unlock()
	r.proxy.SetServer(addr)
	require.NoError(t, r.unary())
	require.EqualValues(t, 1, other.calls.Load())
}

func TestGoAway(t *testing.T) {
	r := start(t)
	s := r.open(t, 2, 1)
	r.proxy.GoAway()
	for range 10 {
		require.NoError(t, r.unary(), "over a new connection")
	}
	require.Equal(t, 2, r.proxy.Accepted())
	require.Equal(t, 2, r.proxy.Conns())
	close(r.last)
	n, err := rest(s)
	require.NoError(t, err, "the stream under way ends normally")
	require.Equal(t, 1, n)
	eventually(t, "the first connection ends with it", func() bool { return r.proxy.Conns() == 1 })
}

func TestBlackhole(t *testing.T) {
	r := start(t)
	close(r.last)
	require.NoError(t, r.unary())
	r.proxy.Set(Fault{Blackhole: true})
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := r.stub.UnaryCall(ctx, &testpb.SimpleRequest{})
		ended <- err
	}()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-ended), "the client ended it itself")
	require.EqualValues(t, 1, r.calls.Load())
	r.proxy.Set(Fault{})
	require.NoError(t, r.unary())
	require.Equal(t, 1, r.proxy.Accepted(), "over the same connection")
}

func TestHalfOpen(t *testing.T) {
	r := start(t)
	s := r.open(t, 2, 1)
	r.proxy.HalfOpen()
	eventually(t, "the server has lost it", func() bool { return r.ended.Load() == 1 })
	got := make(chan error, 1)
	go func() {
		_, err := rest(s)
		got <- err
	}()
	require.Empty(t, got, "the client has no answer")
	r.proxy.Drop()
	require.Equal(t, codes.Unavailable, status.Code(<-got))
	require.NoError(t, r.unary())
}

// Flow control reaches the server: it cannot send what the windows do not hold.
func TestSlowReader(t *testing.T) {
	r := start(t)
	close(r.last)
	require.NoError(t, r.unary())
	r.proxy.Set(Fault{BytesPerSecond: 1})
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	q := &testpb.StreamingOutputCallRequest{}
	for range 64 {
		q.ResponseParameters = append(q.ResponseParameters, &testpb.ResponseParameters{Size: 64 << 10})
	}
	_, err := r.stub.StreamingOutputCall(ctx, q)
	require.NoError(t, err)
	require.Zero(t, r.ended.Load())
	cancel()
	r.proxy.Drop()
	r.proxy.Set(Fault{})
	eventually(t, "calls succeed again", func() bool { return r.unary() == nil })
}

func TestDelay(t *testing.T) {
	r := start(t)
	close(r.last)
	const late = 20 * time.Millisecond
	r.proxy.Set(Fault{Delay: late})
	begun := time.Now()
	n, err := rest(r.open(t, 40, 1))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.GreaterOrEqual(t, time.Since(begun), late)
}

func TestCloseEndsWhatIsHeld(t *testing.T) {
	r := start(t)
	s := r.open(t, 2, 1)
	r.proxy.Set(Fault{Blackhole: true})
	r.proxy.Close()
	_, err := rest(s)
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = net.Dial("tcp", r.proxy.Addr())
	require.Error(t, err)
}
