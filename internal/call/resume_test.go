package call

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	enginepb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/internal/requestkey"
)

// Requests are kept up to a bound of a call and one of the channel, and what ends gives its bytes back, once.
func TestKeepIsBounded(t *testing.T) {
	const method = "/vllm.grpc.engine.VllmEngine/Generate"
	table, err := requestkey.NewTable(dialect.Dialect{Like: method})
	require.NoError(t, err)
	h := NewHandle(nil, nil)
	h.Bind(nil, &Binding{Dialects: table, Config: new(policy.Config{}.WithDefaults())}, nil)
	request := func(n int) proto.Message {
		return &enginepb.GenerateRequest{
			Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: make([]uint32, n)}},
			SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(60_000)},
		}
	}
	keep := func(n int) *Resume {
		r := &Resume{call: &Call{Scope: &Scope{handle: h}}}
		r.call.Attempts.call = r.call
		r.call.key.request.Method = method
		r.Keep(request(n))
		return r
	}
	kept := func(r *Resume) bool { return r.output.Load() != nil }
	require.False(t, kept(keep(maxKept)), "larger than one may be")
	var all []*Resume
	for r := keep(10); kept(r); r = keep(10) {
		all = append(all, r)
		require.LessOrEqual(t, h.resumable.Load(), int64(maxKeptAll))
	}
	require.Greater(t, h.resumable.Load(), int64(maxKeptAll-1<<20))
	for _, r := range all {
		require.True(t, r.Received(&enginepb.GenerateResponse{}))
		r.forget()
		r.forget()
		require.True(t, r.Received(&enginepb.GenerateResponse{}))
		next, _ := r.Next(nil)
		require.Nil(t, next)
	}
	require.Zero(t, h.resumable.Load())
	require.True(t, kept(keep(10)))
}
