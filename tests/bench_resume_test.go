package tests

import (
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/warmpath/warmpath/client"
	enginepb "github.com/warmpath/warmpath/internal/lab/enginesim/enginepb/vllm/grpc/engine"
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

// BenchmarkResume compares streams of 500 messages that may go on at another replica with streams that may not, in pairs
// of turns: processor time of client and server together, as the median of the pairs' ratios, and memory.
func BenchmarkResume(b *testing.B) {
	const turn = 4 // streams
	l := listenLoopback(b)
	s := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(s, steady{})
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	var stubs [2]enginepb.VllmEngineClient
	for i, object := range []string{`{"max_resumes":"off"}`, `{}`} {
		stubs[i] = enginepb.NewVllmEngineClient(dial(b, "warmpath:///"+l.Addr().String(), client.WithConfig(object)))
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
	for range 2 * turn { // the channel reads its first outputs
		run(stubs[0])
		run(stubs[1])
	}
	var spent [2][]float64 // µs a stream
	var memory [2]uint64
	var ratios []float64
	for b.Loop() {
		for k := range stubs {
			i := (k + len(ratios)) % 2
			before, from := everAllocated(), processorTime(b)
			for range turn {
				run(stubs[i])
			}
			spent[i] = append(spent[i], float64((processorTime(b)-from).Microseconds())/turn)
			memory[i] += everAllocated() - before
		}
		n := len(ratios)
		ratios = append(ratios, spent[1][n]/spent[0][n])
	}
	for i, name := range []string{"off", "on"} {
		b.ReportMetric(median(spent[i]), "µs/"+name)
		b.ReportMetric(float64(memory[i])/float64(turn*len(ratios)), "B/"+name)
	}
	b.ReportMetric(100*(median(ratios)-1), "%time")
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
