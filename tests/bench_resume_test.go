package tests

import (
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// steady is an engine whose messages are encoded once, so that the processor time is mostly the client's.
type steady struct {
	enginepb.UnimplementedVllmEngineServer
}

func (steady) Generate(q *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	var m grpc.PreparedMsg
	if err := m.Encode(s, &enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Chunk{Chunk: &enginepb.GenerateStreamChunk{
		TokenIds: []uint32{7}, PromptTokens: 40, CompletionTokens: 1}}}); err != nil {
		return err
	}
	for range q.GetSamplingParams().GetMaxTokens() {
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
	return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: &enginepb.GenerateComplete{
		FinishReason: "length", PromptTokens: 40, CompletionTokens: 1}}})
}

// BenchmarkResume compares streams of 500 messages that may go on at another replica with streams that may not, and with
// those of plain gRPC, in turns: processor time of client and server together, as the median of the ratios, and memory.
//
//	go test ./tests -run '^$' -bench '^BenchmarkResume$' -benchtime 301x
func BenchmarkResume(b *testing.B) {
	const turn = 4 // streams
	l := listenLoopback(b)
	s := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(s, steady{})
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	plain, err := grpc.NewClient(l.Addr().String(), insecureOption())
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, plain.Close()) })
	stubs := [3]enginepb.VllmEngineClient{enginepb.NewVllmEngineClient(plain)}
	for i, object := range []string{`{"max_resumes":"off"}`, `{}`} {
		stubs[i+1] = enginepb.NewVllmEngineClient(dial(b, "warmpath:///"+l.Addr().String(), client.WithConfig(object)))
	}
	q := engineStream("a", 500)
	run := func(stub enginepb.VllmEngineClient) {
		stream, err := stub.Generate(b.Context(), q, grpc.WaitForReady(true))
		require.NoError(b, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(b, io.EOF, err)
	}
	for range 3 * turn { // the channel reads its first outputs
		for _, stub := range stubs {
			run(stub)
		}
	}
	var spent [3][]float64 // µs a stream
	var memory [3]uint64
	var resume, all []float64 // with resume, ÷ without, and ÷ plain gRPC
	for b.Loop() {
		for k := range stubs {
			i := (k + len(all)) % len(stubs)
			before, from := everAllocated(), processorTime(b)
			for range turn {
				run(stubs[i])
			}
			spent[i] = append(spent[i], float64((processorTime(b)-from).Microseconds())/turn)
			memory[i] += everAllocated() - before
		}
		n := len(all)
		resume, all = append(resume, spent[2][n]/spent[1][n]), append(all, spent[2][n]/spent[0][n])
	}
	for i, name := range []string{"plain", "off", "on"} {
		b.ReportMetric(median(spent[i]), "µs/"+name)
		b.ReportMetric(float64(memory[i])/float64(turn*len(all)), "B/"+name)
	}
	b.ReportMetric(median(resume), "on/off")
	b.ReportMetric(median(all), "on/plain")
}

// everAllocated is how much memory the process has ever allocated, in bytes.
func everAllocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// median sorts the figures.
func median(figures []float64) float64 {
	slices.Sort(figures)
	return figures[len(figures)/2]
}
