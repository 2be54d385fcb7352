package call

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	enginepb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Requests are kept up to a bound of a call and one of the channel, and what ends gives its bytes back, once.
func TestKeepIsBounded(t *testing.T) {
	const method = "/vllm.grpc.engine.VllmEngine/Generate"
	table, err := requestkey.NewTable(dialect.Dialect{Like: method, Resume: true})
	require.NoError(t, err)
	h := NewHandle(nil, nil)
	h.Bind(nil, &Binding{Dialects: table, Config: new(policy.Config{}.WithDefaults())}, nil)
	request := func(n int) proto.Message {
		return &enginepb.GenerateRequest{
			Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: make([]uint32, n)}},
			SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(60_000)},
		}
	}
	keep := func(n int, answer state.Answer) *Resume {
		c := &Call{handle: h}
		c.Attempts.call = c
		c.key.request.Method, c.key.request.Answer = method, answer
		return c.Keep(request(n))
	}
	require.Nil(t, keep(maxKept, state.AnswerMessage), "larger than one may be")
	require.Nil(t, keep(10, state.AnswerWhole))
	require.Nil(t, keep(10, state.AnswerUnseen))
	var all []*Resume
	for r := keep(10, state.AnswerMessage); r != nil; r = keep(10, state.AnswerMessage) {
		all = append(all, r)
		require.LessOrEqual(t, h.resumable.Load(), int64(maxKeptAll))
	}
	require.Greater(t, h.resumable.Load(), int64(maxKeptAll-1<<20))
	for _, r := range all {
		require.True(t, r.Received(&enginepb.GenerateResponse{}))
		r.Forget()
		r.Forget()
		require.True(t, r.Received(&enginepb.GenerateResponse{}))
		require.Nil(t, r.Next(nil))
	}
	require.Zero(t, h.resumable.Load())
	require.NotNil(t, keep(10, state.AnswerMessage))
}
