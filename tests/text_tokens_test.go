package tests

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// A speller is an engine with models of which a token is so many bytes of text. The request id is the model. It caches
// all prompts, in blocks of 16 tokens, and answers no prompt that begins with "hold" before the call ends.
type speller struct {
	enginepb.UnimplementedVllmEngineServer
	bytesPerToken map[string]int
	held          chan struct{}

	mu   sync.Mutex // guards seen
	seen map[string][]string
}

func (e *speller) Generate(q *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	if strings.HasPrefix(q.GetText(), "hold") {
		e.held <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	}
	prompt, cached := len(q.GetTokenized().GetInputIds()), 0
	if per := e.bytesPerToken[q.RequestId]; q.GetText() != "" {
		e.mu.Lock()
		for _, old := range e.seen[q.RequestId] {
			same := 0
			for same < min(len(old), len(q.GetText())) && old[same] == q.GetText()[same] {
				same++
			}
			cached = max(cached, same/per/16*16)
		}
		e.seen[q.RequestId] = append(e.seen[q.RequestId], q.GetText())
		e.mu.Unlock()
		prompt = (len(q.GetText()) + per - 1) / per
	}
	return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: &enginepb.GenerateComplete{
		FinishReason: "length", PromptTokens: uint32(prompt), CachedTokens: uint32(cached), CompletionTokens: 1}}})
}

// How many bytes of text a token is, is learned of each model from usage: lengths, what is expected to be cached, the
// load and the metrics are in the engine's tokens.
func TestTextIsCountedInTheEnginesTokens(t *testing.T) {
	e := &speller{bytesPerToken: map[string]int{"a": 3, "b": 6}, held: make(chan struct{}), seen: map[string][]string{}}
	l := listenLoopback(t)
	s := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(s, e)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	m := newMeter(t)
	cc := dial(t, "warmpath:///"+l.Addr().String(), m.option, client.WithConfig(config(`{"kv_aware":{}}`)),
		client.WithDialects(dialect.Dialect{Methods: []string{enginepb.VllmEngine_Generate_FullMethodName},
			Like: enginepb.VllmEngine_Generate_FullMethodName, Model: "1"}))
	stub := enginepb.NewVllmEngineClient(cc)
	call := func(q *enginepb.GenerateRequest) (d client.Decision) {
		stream, err := stub.Generate(client.WithDecision(deadline(t), &d), q, grpc.WaitForReady(true))
		require.NoError(t, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(t, io.EOF, err)
		return d
	}
	conversation := map[string]string{}
	for turn := range 12 {
		for model, per := range e.bytesPerToken {
			conversation[model] += strings.Repeat(fmt.Sprintf("%s, turn %d: some words. ", model, turn), 60)
			text := conversation[model]
			d := call(&enginepb.GenerateRequest{RequestId: model, Input: &enginepb.GenerateRequest_Text{Text: text}})
			if turn == 0 {
				require.Equal(t, (len(text)+3)/4, d.PromptTokens, "nothing is measured yet")
				continue
			}
			require.InDelta(t, len(text)/per, d.PromptTokens, 2, "%s %d", model, turn)
			require.InDelta(t, d.Usage.CachedTokens, d.MatchedTokens, 32, "%s %d: within a block of 64 bytes and one of 16 tokens", model, turn)
			require.Greater(t, d.MatchedTokens, d.PromptTokens/3)
		}
	}
	prompt, cached := m.sum(t, "warmpath.prompt_tokens"), m.sum(t, "warmpath.cached_tokens.measured")
	require.InEpsilon(t, cached, m.sum(t, "warmpath.cached_tokens.predicted"), 0.05)
	asked := 0
	for model, texts := range e.seen {
		for _, text := range texts {
			asked += (len(text) + e.bytesPerToken[model] - 1) / e.bytesPerToken[model]
		}
	}
	require.EqualValues(t, asked, prompt)

	ids := promptIDs(400)
	d := call(&enginepb.GenerateRequest{RequestId: "a", Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}}})
	require.Equal(t, len(ids), d.PromptTokens, "token ids are counted")

	text := strings.Repeat("hold", 3000)
	_, err := stub.Generate(deadline(t), &enginepb.GenerateRequest{RequestId: "a", Input: &enginepb.GenerateRequest_Text{Text: text}})
	require.NoError(t, err)
	<-e.held
	d = call(&enginepb.GenerateRequest{RequestId: "a", Input: &enginepb.GenerateRequest_Text{Text: "short"}})
	require.InDelta(t, len(text)/3+policy.RequestCost, d.Load, 10, "the load is in the engine's tokens")
}
