package tests

import (
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// Each test covers one pitfall of opening a stream with its first message.

var (
	serverStream = &grpc.StreamDesc{StreamName: "StreamingOutputCall", ServerStreams: true}
	bidiStream   = &grpc.StreamDesc{StreamName: "FullDuplexCall", ServerStreams: true, ClientStreams: true}
)

const duplexMethod = "/grpc.testing.TestService/FullDuplexCall"

func roundRobin() grpc.DialOption { return client.WithConfig(config(`{"round_robin":{}}`)) }

func TestServerStreamOpensWithItsMessage(t *testing.T) {
	h := &beginCounter{}
	r := start(t, &replica{})
	cc := dial(t, target(r), roundRobin(), grpc.WithStatsHandler(h))
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	require.Zero(t, h.begun.Load(), "nothing is asked of gRPC before the message")
	require.NoError(t, s.SendMsg(prompt("a")))
	require.NoError(t, s.CloseSend())
	require.EqualValues(t, 1, h.begun.Load())
	drain(t, s)
}

type beginCounter struct{ begun atomic.Int64 }

func (b *beginCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (b *beginCounter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		b.begun.Add(1)
	}
}
func (b *beginCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (b *beginCounter) HandleConn(context.Context, stats.ConnStats)                       {}

func drain(t testing.TB, s grpc.ClientStream) {
	t.Helper()
	for {
		err := s.RecvMsg(&testpb.StreamingOutputCallResponse{})
		if err == io.EOF {
			return
		}
		require.NoError(t, err)
	}
}

func TestBidirectionalOpensAtOnce(t *testing.T) {
	headers := make(chan struct{})
	r := start(t, &replica{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		if err := s.SendHeader(metadata.Pairs("early", "yes")); err != nil {
			return err
		}
		close(headers)
		_, _ = s.Recv()
		return nil
	}})
	cc := dial(t, target(r), roundRobin())
	s, err := testpb.NewTestServiceClient(cc).FullDuplexCall(deadline(t))
	require.NoError(t, err)
	<-headers // opened before any message
	md, err := s.Header()
	require.NoError(t, err)
	require.Equal(t, []string{"yes"}, md.Get("early"))
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
}

// Issue 12.44: if the dialect defers a stream, its first message or CloseSend opens it. Readers may start earlier,
// and wait for that.
func TestDeferredBidirectionalOpensByItsMessage(t *testing.T) {
	deferred := `{"policy":{"consistent_hash":{}},"dialects":[{"methods":["` + duplexMethod + `"],"session":"3.2","prompt":"3.2","defer_stream":true}]}`
	readers := map[string]func(grpc.ClientStream) error{
		"none":   func(grpc.ClientStream) error { return nil },
		"header": func(s grpc.ClientStream) error { _, err := s.Header(); return err },
		"recv":   func(s grpc.ClientStream) error { return s.RecvMsg(&testpb.StreamingOutputCallResponse{}) },
	}
	openers := map[string]func(grpc.ClientStream) error{
		"send":  func(s grpc.ClientStream) error { return s.SendMsg(prompt("session")) },
		"close": func(s grpc.ClientStream) error { return s.CloseSend() },
	}
	for reader, read := range readers {
		for opener, open := range openers {
			t.Run(reader+"/"+opener, func(t *testing.T) {
				rs := make([]*replica, 3)
				for i := range rs {
					rs[i] = start(t, &replica{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
						return s.Send(answer("first"))
					}})
				}
				h := &beginCounter{}
				cc := dial(t, target(rs...), client.WithConfig(deferred), grpc.WithStatsHandler(h))
				connected(t, cc, rs)
				h.begun.Store(0)
				var d client.Decision
				s, err := cc.NewStream(client.WithDecision(deadline(t), &d), bidiStream, duplexMethod)
				require.NoError(t, err)
				require.Nil(t, s.Trailer())
				done := make(chan error, 1)
				entered := make(chan struct{})
				go func() {
					close(entered)
					done <- read(s)
				}()
				<-entered
				runtime.Gosched()
				require.Zero(t, h.begun.Load())
				require.NoError(t, open(s))
				require.NoError(t, <-done)
				require.EqualValues(t, 1, h.begun.Load())
				_ = s.CloseSend()
				drain(t, s)
				if opener == "send" {
					require.Equal(t, ringOrder(t, rs, "session")[0], d.Replica, "it is routed by its message")
				}
			})
		}
	}
}

func TestReadersWaitForTheMessageOrTheContext(t *testing.T) {
	r := start(t, &replica{})
	cc := dial(t, target(r), roundRobin())

	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	got := make(chan error, 1)
	go func() { got <- s.RecvMsg(&testpb.StreamingOutputCallResponse{}) }()
	require.NoError(t, s.SendMsg(prompt("a")))
	require.NoError(t, <-got)
	drain(t, s)

	ctx, cancel := context.WithCancel(deadline(t))
	s, err = cc.NewStream(ctx, serverStream, streamingMethod)
	require.NoError(t, err)
	go func() { got <- s.RecvMsg(&testpb.StreamingOutputCallResponse{}) }()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-got))
	md, err := s.Header()
	require.NoError(t, err, "as gRPC does, Header leaves the status to RecvMsg")
	require.Nil(t, md)
	require.Equal(t, codes.Canceled, status.Code(s.SendMsg(prompt("late"))))
	require.Zero(t, r.calls.Load()-1)
}

func TestContextBeforeOpening(t *testing.T) {
	type mine struct{}
	cc := dial(t, target(start(t, &replica{})), roundRobin())
	ctx := context.WithValue(deadline(t), mine{}, "value")
	s, err := cc.NewStream(ctx, serverStream, streamingMethod)
	require.NoError(t, err)
	require.Equal(t, "value", s.Context().Value(mine{}))
	require.Nil(t, s.Trailer())
	require.NoError(t, s.SendMsg(prompt("a")))
	require.Equal(t, "value", s.Context().Value(mine{}))
	drain(t, s)
}

// Issue 12.10: contexts derived from a stream's context, and their children, end with the stream, and a
// context.AfterFunc that has run cannot be stopped. The application's own context never ends.
func TestContextsEndWithTheirStream(t *testing.T) {
	cc := dial(t, target(start(t, &replica{})), roundRobin())
	s, err := cc.NewStream(context.Background(), serverStream, streamingMethod)
	require.NoError(t, err)
	ctx := s.Context()
	var derived []context.Context
	for range 3 {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		grandchild, cancel := context.WithTimeout(child, time.Hour)
		defer cancel()
		derived = append(derived, child, grandchild)
	}
	ran := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { close(ran) })
	for _, c := range derived {
		require.NoError(t, c.Err())
	}
	require.NoError(t, s.SendMsg(prompt("a")))
	drain(t, s)
	<-ctx.Done()
	for _, c := range derived {
		<-c.Done()
		require.ErrorIs(t, c.Err(), context.Canceled)
	}
	<-ran
	require.False(t, stop())
}

func TestCloseSendBeforeTheMessage(t *testing.T) {
	cc := dial(t, target(start(t, &replica{})), roundRobin())
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	require.NoError(t, s.CloseSend())
	err = s.RecvMsg(&testpb.StreamingOutputCallResponse{})
	require.Equal(t, codes.Internal, status.Code(err), "the server's status, as without warmpath: %v", err)
}

// Each attempt of a stream whose message was not sent is closed, and interceptors inside warmpath's see it.
func TestCloseSendReachesEveryAttempt(t *testing.T) {
	var opened, closed atomic.Int32
	inner := func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := next(ctx, d, cc, method, o...)
		return endingStream{s, opened.Add(1) == 1, &closed}, err
	}
	rs := replicas(t, 2)
	cc := dial(t, target(rs...), roundRobin(), grpc.WithChainStreamInterceptor(inner))
	connected(t, cc, rs)
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	require.NoError(t, s.CloseSend())
	require.Equal(t, codes.Internal, status.Code(s.RecvMsg(&testpb.StreamingOutputCallResponse{})))
	require.EqualValues(t, 3, opened.Load(), "the broken one, and INTERNAL of both replicas")
	require.EqualValues(t, 3, closed.Load())
}

// endingStream counts CloseSend. If broken is set, the stream ends with UNAVAILABLE, as when its connection breaks.
type endingStream struct {
	grpc.ClientStream
	broken bool
	closed *atomic.Int32
}

func (s endingStream) CloseSend() error {
	s.closed.Add(1)
	return s.ClientStream.CloseSend()
}

func (s endingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if s.broken {
		return status.Error(codes.Unavailable, "broken")
	}
	return err
}

// When the channel is closed, so that no config is in force, a stream that waits for its first message ends.
func TestFirstTokenTimeoutOfAClosedChannel(t *testing.T) {
	release := make(chan struct{})
	r := start(t, &replica{stream: func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		<-release
		return nil
	}})
	defer close(release)
	cc, err := client.New(target(r), insecureOption(), client.WithConfig(`{"policy":{"round_robin":{}},"first_token_timeout":"1h"}`))
	require.NoError(t, err)
	defer cc.Close()
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a"))
	require.NoError(t, err)
	require.NoError(t, cc.Close())
	_, err = s.Recv()
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
}

func TestErrorsOfOpeningAreStatuses(t *testing.T) {
	addr := freeAddr(t)
	cc := dial(t, "warmpath:///"+addr, roundRobin())
	_, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a"))
	require.NotEqual(t, io.EOF, err)
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

func TestOnFinishRunsOnce(t *testing.T) {
	bad := start(t, &replica{stream: func(*testpb.StreamingOutputCallRequest, grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		return status.Error(codes.Unavailable, "not now")
	}, unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return nil, status.Error(codes.Unavailable, "not now")
	}})
	good := start(t, &replica{})
	count := func() (grpc.CallOption, *[]error) {
		var mu sync.Mutex
		var got []error
		return grpc.OnFinish(func(err error) { mu.Lock(); defer mu.Unlock(); got = append(got, err) }), &got
	}
	for name, rs := range map[string][]*replica{"good": {good}, "bad": {bad}, "both": {bad, good}} {
		t.Run(name, func(t *testing.T) {
			cc := dial(t, target(rs...), roundRobin())
			stub := testpb.NewTestServiceClient(cc)
			for range 4 {
				o, got := count()
				s, err := stub.StreamingOutputCall(deadline(t), prompt("a"), o)
				if err == nil {
					for err == nil {
						_, err = s.Recv()
					}
				}
				require.Len(t, *got, 1)
				require.Equal(t, err == io.EOF, (*got)[0] == nil)
				o, got = count()
				_, err = stub.UnaryCall(deadline(t), simple("a"), o)
				require.Equal(t, []error{err}, *got)
			}
		})
	}
	t.Run("never opened", func(t *testing.T) {
		cc := dial(t, target(good), roundRobin())
		ctx, cancel := context.WithCancel(deadline(t))
		done := make(chan error, 2)
		_, err := cc.NewStream(ctx, serverStream, streamingMethod, grpc.OnFinish(func(err error) { done <- err }))
		require.NoError(t, err)
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-done))
		require.Empty(t, done)
	})
	t.Run("cancelled while open", func(t *testing.T) {
		open := make(chan struct{})
		hang := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			close(open)
			<-s.Context().Done()
			return nil
		}})
		cc := dial(t, target(hang), roundRobin())
		ctx, cancel := context.WithCancel(deadline(t))
		done := make(chan error, 2)
		s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a"), grpc.OnFinish(func(err error) { done <- err }))
		require.NoError(t, err)
		defer runtime.KeepAlive(s)
		<-open
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-done))
	})
}

func TestOtherInterceptorsSeeTheirStream(t *testing.T) {
	var order []string
	outer := func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := next(ctx, d, cc, m, o...)
		order = append(order, "outer has a stream")
		return s, err
	}
	inner := func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, m string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
		order = append(order, "inner opens")
		return next(metadata.AppendToOutgoingContext(ctx, "inner", "was here"), d, cc, m, o...)
	}
	seen := make(chan []string, 1)
	r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		seen <- md.Get("inner")
		return nil
	}})
	opts := append([]grpc.DialOption{grpc.WithChainStreamInterceptor(outer)}, client.DialOptions(roundRobin().(client.Option))...)
	opts = append(opts, grpc.WithChainStreamInterceptor(inner), insecureOption())
	cc, err := grpc.NewClient(target(r), opts...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
	require.Equal(t, []string{"was here"}, <-seen)
	require.Equal(t, []string{"outer has a stream", "inner opens"}, order)
}

func TestDeadlineWhileNothingIsConnected(t *testing.T) {
	addr := freeAddr(t)
	cc := dial(t, "warmpath:///"+addr, roundRobin())
	ctx, cancel := context.WithTimeout(deadline(t), 50*time.Millisecond)
	defer cancel()
	_, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a"), grpc.WaitForReady(true))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
}

// The request message is not kept in memory for the whole generation.
func TestMessageIsFreedAfterTheFirstResponse(t *testing.T) {
	r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer("first")); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}})
	cc := dial(t, target(r), client.WithConfig(config(`{"kv_aware":{}}`)))
	connected(t, cc, []*replica{r})
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	freed := make(chan struct{})
	s := func() grpc.ClientStream {
		m := prompt(strings.Repeat("long ", 1<<16))
		runtime.AddCleanup(m, func(c chan struct{}) { close(c) }, freed)
		s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, m)
		require.NoError(t, err)
		return s
	}()
	require.NoError(t, s.RecvMsg(&testpb.StreamingOutputCallResponse{}))
	eventually(t, "the message is collected while the stream goes on", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
	cancel()
	require.Error(t, s.RecvMsg(&testpb.StreamingOutputCallResponse{}))
}

func TestCallOptionsPassThrough(t *testing.T) {
	r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		s.SetTrailer(metadata.Pairs("end", "t"))
		return s.SendHeader(metadata.Pairs("begin", "h"))
	}})
	cc := dial(t, target(r), roundRobin())
	var p peer.Peer
	var header, trailer metadata.MD
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a"), grpc.Peer(&p), grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	_, err = s.Recv()
	require.Equal(t, io.EOF, err)
	require.Equal(t, r.addr, p.Addr.String())
	require.Equal(t, []string{"h"}, header.Get("begin"))
	require.Equal(t, []string{"t"}, trailer.Get("end"))
	require.Equal(t, []string{"t"}, s.Trailer().Get("end"))
}

func TestSendAndReceiveConcurrently(t *testing.T) {
	cc := dial(t, target(replicas(t, 3)...), roundRobin())
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
			if err != nil {
				t.Error(err)
				return
			}
			wg.Go(func() {
				if err := s.SendMsg(prompt("a")); err != nil {
					t.Error(err)
				}
				_ = s.CloseSend()
			})
			for {
				if err := s.RecvMsg(&testpb.StreamingOutputCallResponse{}); err != nil {
					if err != io.EOF {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	wg.Wait()
}
