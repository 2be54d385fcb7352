package real

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// longCall begins an output of 15,000 tokens, and returns when the first of them is here.
func longCall(ctx context.Context, t *testing.T, stub enginepb.VllmEngineClient) enginepb.VllmEngine_GenerateClient {
	t.Helper()
	stream, err := stub.Generate(ctx, &enginepb.GenerateRequest{
		RequestId:      newID(),
		Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: conversations(1, 7)[0].system}},
		SamplingParams: &enginepb.SamplingParams{Temperature: new(float32(0)), MaxTokens: new(uint32(15_000))},
		Stream:         true,
	})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	return stream
}

// An engine stops to compute for a call that its application cancels, and for a stream that is dropped.
func TestEnginesStopForCallsThatEnd(t *testing.T) {
	engines := shared(t)
	stub := enginepb.NewVllmEngineClient(dial(t, target(engines)))
	running := func() (all int) {
		for _, e := range engines {
			n, err := e.ongoing(t.Context())
			require.NoError(t, err)
			all += n
		}
		return all
	}
	ends := func(t *testing.T, each func()) {
		t.Helper()
		begin := time.Now()
		require.Eventually(t, func() bool { each(); return running() == 0 }, time.Minute, 10*time.Millisecond)
		t.Logf("it ended within %v", time.Since(begin).Round(10*time.Millisecond))
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		_ = longCall(ctx, t, stub)
		require.Equal(t, 1, running())
		cancel()
		ends(t, func() {})
	})
	t.Run("past its deadline", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		stream := longCall(ctx, t, stub)
		for err := error(nil); err == nil; {
			_, err = stream.Recv()
		}
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		ends(t, func() {})
	})
	t.Run("dropped", func(t *testing.T) {
		_ = longCall(t.Context(), t, stub)
		ends(t, runtime.GC)
	})
}
