package grpcserver

import (
	"context"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/lab/enginesim"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// openStream begins a long request and waits for its first token.
func openStream(ctx context.Context, t testing.TB, cc *grpc.ClientConn, id string) grpc.ServerStreamingClient[enginepb.GenerateResponse] {
	t.Helper()
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, engineRequest(id, tokens(0, 64), 10_000, true))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	return stream
}

// ended reads a stream to its end.
func ended(stream grpc.ServerStreamingClient[enginepb.GenerateResponse]) (last *enginepb.GenerateResponse, err error) {
	for {
		m, err := stream.Recv()
		if err != nil {
			return last, err
		}
		last = m
	}
}

func TestRejection(t *testing.T) {
	s, cc := start(t, Config{MaxOngoing: 1, Speed: 10})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	openStream(ctx, t, cc, "first")
	g := generate(t.Context(), cc, engineRequest("second", tokens(0, 8), 1, true))
	require.Equal(t, codes.ResourceExhausted, status.Code(g.err))
	var r warmpathv1.Rejection
	require.Len(t, g.trailer.Get(warmpathv1.TrailerRejection), 1)
	require.NoError(t, proto.Unmarshal([]byte(g.trailer.Get(warmpathv1.TrailerRejection)[0]), &r))
	require.EqualValues(t, 1, r.Ongoing)
	require.EqualValues(t, 1, r.MaxOngoing)
	_, err := vllmpb.NewInferenceClient(cc).Generate(t.Context(), &vllmpb.GenerateRequest{Prompt: &vllmpb.GenerateRequest_Text{Text: "x"}})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, 2, s.Stats().Rejected)
	require.Equal(t, 1, s.Stats().Engine.Submitted)
}

func TestCancelAborts(t *testing.T) {
	s, cc := start(t, Config{Speed: 10})
	ctx, cancel := context.WithCancel(t.Context())
	stream := openStream(ctx, t, cc, "r")
	require.Equal(t, 1, s.Stats().Load.Running)
	cancel()
	_, err := ended(stream)
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Eventually(t, func() bool {
		st := s.Stats()
		return st.Engine.Aborted == 1 && st.Load.UsedTokens == 0 && st.Ongoing == 0
	}, 30*time.Second, time.Millisecond)
}

func TestAbortRPC(t *testing.T) {
	s, cc := start(t, Config{Speed: 10})
	a, b := openStream(t.Context(), t, cc, "same"), openStream(t.Context(), t, cc, "same")
	_, err := enginepb.NewVllmEngineClient(cc).Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{"unknown", "same"}})
	require.NoError(t, err)
	require.Zero(t, s.Stats().Load.UsedTokens)
	for _, stream := range []grpc.ServerStreamingClient[enginepb.GenerateResponse]{a, b} {
		last, err := ended(stream)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, "abort", last.GetComplete().GetFinishReason())
	}
	require.Equal(t, 2, s.Stats().Engine.Aborted)
}

func TestEarlyHeaders(t *testing.T) {
	// At this speed the first token is hours away.
	_, cc := start(t, Config{EarlyHeaders: true, Speed: 1e-6})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, engineRequest("r", tokens(0, 8), 1, true))
	require.NoError(t, err)
	_, err = stream.Header()
	require.NoError(t, err)
}

func TestStopLetsCallsEnd(t *testing.T) {
	s, cc := start(t, Config{Speed: 10})
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(t.Context(), engineRequest("r", tokens(0, 64), 20, true))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	s.Stop(t.Context())
	last, err := ended(stream)
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 1, last.GetComplete().GetCompletionTokens(), "the last delta")
}

func TestStopCutsWhenTheContextEnds(t *testing.T) {
	s, cc := start(t, Config{})
	stream := openStream(t.Context(), t, cc, "r")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Stop(ctx)
	_, err := ended(stream)
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestKill(t *testing.T) {
	s, cc := start(t, Config{})
	stream := openStream(t.Context(), t, cc, "r")
	s.Kill()
	_, err := ended(stream)
	require.Equal(t, codes.Unavailable, status.Code(err))
	s.Kill()
}

func TestStartRefuses(t *testing.T) {
	for _, c := range []Config{{Engine: enginesim.Config{Preset: "x"}}, {MaxOngoing: -1}, {Speed: -1}} {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		_, err = Start(lis, c)
		require.Error(t, err)
		_, err = lis.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	}
}

// Many clients at once, some of which cancel: everything ends and nothing stays allocated.
func TestManyCalls(t *testing.T) {
	s, cc := start(t, Config{Speed: 200, Engine: enginesim.Config{KVTokens: 8192, MaxSequences: 16}})
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			ctx := t.Context()
			if i%3 == 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Duration(i)*time.Millisecond)
				defer cancel()
			}
			g := generate(ctx, cc, engineRequest(strconv.Itoa(i), tokens(0, 100+20*i), 50, i%2 == 0))
			if g.err != nil && i%3 != 0 {
				t.Errorf("%d: %v", i, g.err)
			}
		})
	}
	all.Wait()
	require.Eventually(t, func() bool { return s.Stats().Ongoing == 0 }, 30*time.Second, time.Millisecond)
	st := s.Stats()
	require.Equal(t, st.Engine.Submitted, st.Engine.Finished+st.Engine.Aborted)
	require.Zero(t, st.Load.UsedTokens)
}

func TestIgnoreCancelGoesOnUntilAborted(t *testing.T) {
	s, cc := start(t, Config{Speed: 10, IgnoreCancel: true})
	ctx, cancel := context.WithCancel(t.Context())
	stream := openStream(ctx, t, cc, "r")
	cancel()
	_, err := ended(stream)
	require.Equal(t, codes.Canceled, status.Code(err))
	have := s.Stats().Engine.OutputTokens
	require.Eventually(t, func() bool { return s.Stats().Engine.OutputTokens > have }, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, s.Stats().Load.Running)
	_, err = enginepb.NewVllmEngineClient(cc).Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{"r"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		st := s.Stats()
		return st.Engine.Aborted == 1 && st.Load.UsedTokens == 0 && st.Ongoing == 0
	}, 30*time.Second, time.Millisecond)

	ctx, cancel = context.WithCancel(t.Context())
	openStream(ctx, t, cc, "killed")
	cancel()
	s.Kill()
	require.Zero(t, s.Stats().Ongoing)
}
