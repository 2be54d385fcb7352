package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/lab/enginesim"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/workload"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves an engine on loopback and connects to it.
func start(t testing.TB, c Config) (*Server, *grpc.ClientConn) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, err := Start(lis, c)
	require.NoError(t, err)
	t.Cleanup(s.Kill)
	cc, err := grpc.NewClient(s.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(MaxMessage)))
	require.NoError(t, err)
	t.Cleanup(func() { cc.Close() })
	return s, cc
}

func tokens(from, n int) []uint32 {
	ts := make([]uint32, n)
	for i := range ts {
		ts[i] = uint32(from + i)
	}
	return ts
}

func engineRequest(id string, ids []uint32, output uint32, stream bool) *enginepb.GenerateRequest {
	return &enginepb.GenerateRequest{
		RequestId: id, Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: ids}},
		SamplingParams: &enginepb.SamplingParams{MaxTokens: &output}, Stream: stream,
	}
}

type generated struct {
	chunks   []*enginepb.GenerateStreamChunk
	complete *enginepb.GenerateComplete
	trailer  metadata.MD
	err      error
}

func generate(ctx context.Context, cc *grpc.ClientConn, r *enginepb.GenerateRequest) (g generated) {
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, r)
	if err != nil {
		return generated{err: err}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			g.trailer = stream.Trailer()
			if !errors.Is(err, io.EOF) {
				g.err = err
			}
			return g
		}
		if c := m.GetChunk(); c != nil {
			g.chunks = append(g.chunks, c)
		} else {
			g.complete = m.GetComplete()
		}
	}
}

func figure(t testing.TB, md metadata.MD, name string) float64 {
	t.Helper()
	require.Len(t, md.Get(name), 1, name)
	f, err := strconv.ParseFloat(md.Get(name)[0], 64)
	require.NoError(t, err)
	return f
}

func TestVllmEngineGenerate(t *testing.T) {
	_, cc := start(t, Config{Virtual: true})
	g := generate(t.Context(), cc, engineRequest("one", tokens(0, 100), 40, true))
	require.NoError(t, g.err)
	require.Len(t, g.chunks, 40)
	seed := workload.OutputSeed("one")
	for i, c := range g.chunks {
		require.Equal(t, []uint32{workload.Token(seed, i)}, c.TokenIds)
		require.EqualValues(t, 1, c.CompletionTokens)
		require.EqualValues(t, 100, c.PromptTokens)
	}
	require.Equal(t, "length", g.complete.FinishReason)
	require.EqualValues(t, 100, g.complete.PromptTokens)
	require.EqualValues(t, 1, g.complete.CompletionTokens, "the last delta")
	require.Zero(t, g.complete.CachedTokens)
	require.Equal(t, g.chunks[39].TokenIds, g.complete.OutputIds)
	require.InDelta(t, 16.6+3.94+0.01, figure(t, g.trailer, TrailerTTFT), 0.01)
	require.Greater(t, figure(t, g.trailer, TrailerE2E), 40*16.6)
	require.EqualValues(t, 100, figure(t, g.trailer, TrailerComputed))

	// The next turn: prompt, answer, a question.
	next := tokens(0, 100)
	for _, c := range g.chunks {
		next = append(next, c.TokenIds...)
	}
	next = append(next, tokens(5000, 20)...)
	g = generate(t.Context(), cc, engineRequest("two", next, 5, false))
	require.NoError(t, g.err)
	require.Empty(t, g.chunks, "stream is false")
	require.EqualValues(t, 5, g.complete.CompletionTokens)
	require.Len(t, g.complete.OutputIds, 5)
	require.EqualValues(t, 128, g.complete.CachedTokens)
	require.EqualValues(t, 128, figure(t, g.trailer, TrailerCached))
	require.EqualValues(t, 32, figure(t, g.trailer, TrailerComputed))
}

func TestInference(t *testing.T) {
	_, cc := start(t, Config{Virtual: true, ServedModel: "m"})
	client := vllmpb.NewInferenceClient(cc)
	prompt := "What does a request find in the cache? Whole blocks of sixteen tokens, which is sixty-four bytes."
	req := &vllmpb.GenerateRequest{
		RequestId: "text", Model: "m", Prompt: &vllmpb.GenerateRequest_Text{Text: prompt},
		Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: 30},
	}
	var trailer metadata.MD
	whole, err := client.Generate(t.Context(), req, grpc.Trailer(&trailer))
	require.NoError(t, err)
	require.EqualValues(t, (len(prompt)+3)/4, whole.PromptInfo.NumPromptTokens)
	require.EqualValues(t, 30, whole.Outputs.FinishInfo.NumOutputTokens)
	require.Equal(t, vllmpb.FinishInfo_FINISH_REASON_LENGTH, whole.Outputs.FinishInfo.FinishReason)
	require.Len(t, whole.Outputs.Text, 120)
	require.EqualValues(t, 0, figure(t, trailer, TrailerCached))

	stream, err := client.GenerateStream(t.Context(), req)
	require.NoError(t, err)
	text, n, last := "", 0, (*vllmpb.FinishInfo)(nil)
	for first := true; ; first = false {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.Equal(t, first, m.PromptInfo != nil)
		require.Nil(t, last)
		text, n, last = text+m.Outputs.Text, n+int(m.Outputs.NumTokens), m.Outputs.FinishInfo
	}
	require.Equal(t, whole.Outputs.Text, text, "the same id gives the same answer")
	require.Equal(t, 30, n)
	require.EqualValues(t, 30, last.NumOutputTokens)
	require.EqualValues(t, 16, figure(t, stream.Trailer(), TrailerCached))

	// The same prompt as token ids finds the same blocks; a salt or an adapter hides them.
	adapter := "a"
	for _, c := range []struct {
		name   string
		kv     *vllmpb.KvParams
		lora   *string
		cached float64
	}{
		{"plain", nil, nil, 16},
		{"bypass", &vllmpb.KvParams{BypassPrefixCache: true}, nil, 0},
		{"salt", &vllmpb.KvParams{CacheSalt: "s"}, nil, 0},
		{"adapter", nil, &adapter, 0},
		{"salt again", &vllmpb.KvParams{CacheSalt: "s"}, nil, 16},
	} {
		ids := &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: workload.TextTokens(prompt)}}
		_, err := client.Generate(t.Context(), &vllmpb.GenerateRequest{Prompt: ids, Kv: c.kv, LoraName: c.lora}, grpc.Trailer(&trailer))
		require.NoError(t, err)
		require.Equal(t, c.cached, figure(t, trailer, TrailerCached), c.name)
	}
}

func TestRefusals(t *testing.T) {
	_, cc := start(t, Config{Virtual: true, ServedModel: "m", Engine: enginesim.Config{MaxModelLen: 100}})
	inference := vllmpb.NewInferenceClient(cc)
	text := func(model string) *vllmpb.GenerateRequest {
		return &vllmpb.GenerateRequest{Model: model, Prompt: &vllmpb.GenerateRequest_Text{Text: "hello"}}
	}
	rank := func(v string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), warmpathv1.MetadataDataParallelRank, v)
	}
	call := func(ctx context.Context, r *vllmpb.GenerateRequest) error {
		_, err := inference.Generate(ctx, r)
		return err
	}
	bad := engineRequest("r", tokens(0, 4), 1, true)
	bad.DataParallelRank = proto.Int32(1)
	for _, c := range []struct {
		name string
		err  error
		want codes.Code
	}{
		{"fine", call(rank("0"), text("m")), codes.OK},
		{"other model", call(t.Context(), text("x")), codes.NotFound},
		{"no prompt", call(t.Context(), &vllmpb.GenerateRequest{}), codes.InvalidArgument},
		{"rank that is none", call(rank("x"), text("m")), codes.InvalidArgument},
		{"negative rank", call(rank("-1"), text("m")), codes.InvalidArgument},
		{"rank that does not exist", call(rank("3"), text("m")), codes.InvalidArgument},
		{"rank in the request", generate(t.Context(), cc, bad).err, codes.InvalidArgument},
		{"too long", generate(t.Context(), cc, engineRequest("r", tokens(0, 99), 2, true)).err, codes.InvalidArgument},
		{"no output", generate(t.Context(), cc, engineRequest("r", tokens(0, 9), 0, true)).err, codes.InvalidArgument},
		{"no input", generate(t.Context(), cc, &enginepb.GenerateRequest{}).err, codes.InvalidArgument},
	} {
		require.Equal(t, c.want, status.Code(c.err), "%s: %v", c.name, c.err)
	}
}

func TestInfo(t *testing.T) {
	_, cc := start(t, Config{Speed: 10, ServedModel: "m", Engine: enginesim.Config{MaxModelLen: 50_000}})
	client := enginepb.NewVllmEngineClient(cc)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	openStream(ctx, t, cc, "r")
	loads, err := client.GetLoads(t.Context(), &enginepb.GetLoadsRequest{})
	require.NoError(t, err)
	require.Len(t, loads.Loads, 1)
	l := loads.Loads[0]
	require.EqualValues(t, 1, l.NumRunningReqs)
	require.EqualValues(t, 1, l.NumTotalReqs)
	require.GreaterOrEqual(t, l.NumUsedTokens, int32(64))
	require.EqualValues(t, 281_600, l.MaxTotalNumTokens)
	require.Positive(t, l.TokenUsage)
	require.Positive(t, l.GenThroughput)
	require.Positive(t, l.Utilization)
	_, err = client.GetLoads(t.Context(), &enginepb.GetLoadsRequest{DpRank: proto.Int32(1)})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	for _, name := range []string{"", "vllm.Inference", "vllm.grpc.engine.VllmEngine"} {
		r, err := healthpb.NewHealthClient(cc).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, r.Status)
	}
	refl, err := reflectionpb.NewServerReflectionClient(cc).ServerReflectionInfo(ctx)
	require.NoError(t, err)
	require.NoError(t, refl.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}))
	names, err := refl.Recv()
	require.NoError(t, err)
	require.Contains(t, fmt.Sprint(names.GetListServicesResponse()), "vllm.grpc.engine.VllmEngine")
}

func TestLargePrompt(t *testing.T) {
	_, cc := start(t, Config{Virtual: true, Engine: enginesim.Config{Preset: "2xh100-8b"}})
	g := generate(t.Context(), cc, engineRequest("r", workload.TextTokens(string(make([]byte, 6<<20))), 1, false))
	require.NoError(t, g.err, "a message of more than 4 MiB")
	require.EqualValues(t, 6<<18, g.complete.PromptTokens)
}
