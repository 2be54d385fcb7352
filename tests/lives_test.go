package tests

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// A stream that is no longer read keeps its reservation until its context ends. A stream that is dropped without
// cancelling keeps it until it is collected.
func TestAbandonedStreams(t *testing.T) {
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := s.Send(answer("first")); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		}})
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"power_of_two_choices":{}}`)), m.option)
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)

	ctx, cancel := context.WithCancel(deadline(t))
	s, err := stub.StreamingOutputCall(ctx, prompt("a"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 1, m.ongoing(t))
	cancel()
	eventually(t, "the reservation ends with the context", func() bool { return m.ongoing(t) == 0 })
	runtime.KeepAlive(s)

	const dropped = 50
	func() {
		for i := range dropped {
			s, err := stub.StreamingOutputCall(context.Background(), prompt("b"))
			require.NoError(t, err)
			if i < dropped/2 {
				_, err = s.Recv()
				require.NoError(t, err)
			}
		}
	}()
	eventually(t, "the reservations end when the streams are collected", func() bool {
		runtime.GC()
		return m.ongoing(t) == 0 && m.sum(t, "warmpath.attempts.failed") == 1+dropped
	})
	require.Zero(t, m.sum(t, "warmpath.ejections"), "they are no evidence against the replica")
}

// A client-streaming call that the application drops after CloseSend goes on to its answer.
func TestAbandonedUploadIsWhole(t *testing.T) {
	const messages = 100
	begin, got := make(chan struct{}), make(chan error, 1)
	r := start(t, &replica{upload: func(s grpc.ClientStreamingServer[testpb.StreamingInputCallRequest, testpb.StreamingInputCallResponse]) error {
		<-begin
		for range messages {
			if _, err := s.Recv(); err != nil {
				got <- err
				return err
			}
		}
		_, err := s.Recv()
		got <- err
		return s.SendAndClose(&testpb.StreamingInputCallResponse{AggregatedPayloadSize: messages})
	}})
	m := newMeter(t)
	cc := dial(t, target(r), roundRobin(), m.option)
	connected(t, cc, []*replica{r})
	finished := make(chan error, 1)
	func() {
		s, err := testpb.NewTestServiceClient(cc).StreamingInputCall(context.Background(), grpc.OnFinish(func(err error) { finished <- err }))
		require.NoError(t, err)
		for range messages {
			require.NoError(t, s.Send(&testpb.StreamingInputCallRequest{}))
		}
		require.NoError(t, s.CloseSend())
	}()
	for range 5 {
		runtime.GC()
		runtime.Gosched()
	}
	require.EqualValues(t, 1, m.ongoing(t), "the replica works on it")
	close(begin)
	require.Equal(t, io.EOF, <-got)
	eventually(t, "the reservation ends with the answer", func() bool { return m.ongoing(t) == 0 })
	eventually(t, "and so does the call", func() bool {
		runtime.GC() // the collector may not have found it yet
		return len(finished) == 1
	})
	require.NoError(t, <-finished)
}

func TestThousandStreams(t *testing.T) {
	release := make(chan struct{})
	rs := make([]*replica, 4)
	for i := range rs {
		rs[i] = start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := s.Send(answer("first")); err != nil {
				return err
			}
			<-release
			return s.Send(answer("last"))
		}})
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"round_robin":{}}`)), m.option)
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	var first, wg sync.WaitGroup
	first.Add(1000)
	for range 1000 {
		wg.Go(func() {
			s, err := stub.StreamingOutputCall(deadline(t), prompt("a"))
			if err == nil {
				_, err = s.Recv()
			}
			first.Done()
			for err == nil {
				_, err = s.Recv()
			}
			if err != io.EOF {
				t.Error(err)
			}
		})
	}
	first.Wait()
	require.EqualValues(t, 1000, m.ongoing(t))
	close(release)
	wg.Wait()
	require.Zero(t, m.ongoing(t))
}

// Random calls leave no reservation.
func TestRandomCallLives(t *testing.T) {
	fail := func() error {
		switch rand.IntN(6) {
		case 0:
			return status.Error(codes.Unavailable, "gone")
		case 1:
			return status.Error(codes.ResourceExhausted, "full")
		case 2:
			return status.Error(codes.Internal, "broken")
		}
		return nil
	}
	rs := make([]*replica, 3)
	for i := range rs {
		rs[i] = start(t, &replica{
			stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				for range rand.IntN(4) {
					if err := s.Send(answer("x")); err != nil {
						return err
					}
				}
				return fail()
			},
			unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return &testpb.SimpleResponse{}, fail()
			},
		})
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`, `"max_ongoing_requests":4`)), m.option)
	stub := testpb.NewTestServiceClient(cc)
	// Streams abandoned without a deadline keep their reservation until they are collected.
	ctx, stop := context.WithCancel(deadline(t))
	var collector sync.WaitGroup
	collector.Go(func() {
		for ctx.Err() == nil {
			runtime.GC()
			runtime.Gosched()
		}
	})
	defer collector.Wait()
	defer stop()
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 60 {
				life(t, cc, stub)
			}
		})
	}
	wg.Wait()
	eventually(t, "nothing is reserved", func() bool {
		runtime.GC()
		return m.ongoing(t) == 0 && m.sum(t, "warmpath.queue.length") == 0
	})
}

func life(t *testing.T, cc *grpc.ClientConn, stub testpb.TestServiceClient) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	if rand.IntN(8) != 0 {
		defer cancel()
	} else {
		ctx = context.Background() // abandoned for good: the collector finds it
		cancel()
	}
	text := strings.Repeat("prompt ", rand.IntN(200))
	switch rand.IntN(6) {
	case 0:
		_, _ = stub.UnaryCall(ctx, simple(text))
	case 1: // cancelled before it opens
		s, err := cc.NewStream(ctx, serverStream, streamingMethod)
		if err != nil {
			t.Error(err)
			return
		}
		cancel()
		_ = s.SendMsg(prompt(text))
	case 2: // cancelled while it opens
		go cancel()
		_, _ = stub.StreamingOutputCall(ctx, prompt(text))
	case 3: // never sent
		_, _ = cc.NewStream(ctx, serverStream, streamingMethod)
	case 4:
		s, err := stub.FullDuplexCall(ctx)
		if err != nil {
			return
		}
		_ = s.Send(prompt(text))
		_, _ = s.Recv()
		_ = s.CloseSend()
	default:
		s, err := stub.StreamingOutputCall(ctx, prompt(text))
		for n := rand.IntN(6); err == nil && n > 0; n-- {
			_, err = s.Recv()
		}
		if err != nil && errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
}

// Prompts that extend one that is still under way end one after the other.
func TestPromptsThatExtendOneUnderWay(t *testing.T) {
	short := strings.Repeat("x", 16<<10)
	entered, end := make(chan struct{}), make(chan struct{})
	r := start(t, &replica{unary: func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.Payload.Body) == len(short) {
			close(entered)
			<-end
		}
		return &testpb.SimpleResponse{}, nil
	}})
	cc := dial(t, target(r), client.WithConfig(config(`{"kv_aware":{}}`)))
	call := func(text string) error {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple(text))
		return err
	}
	done := make(chan error, 1)
	go func() { done <- call(short) }()
	<-entered
	for _, more := range []string{"a", "b", "c"} {
		require.NoError(t, call(short+strings.Repeat(more, 16<<10)))
	}
	close(end)
	require.NoError(t, <-done)
}
