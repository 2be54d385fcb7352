package tests

import (
	"io"
	"runtime"
	"testing"
	"time"

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

// BenchmarkResume compares streams of 500 messages that may go on at another replica with streams that may not, one
// after the other: processor time of client and server together, and memory.
func BenchmarkResume(b *testing.B) {
	l := listenLoopback(b)
	s := grpc.NewServer()
	enginepb.RegisterVllmEngineServer(s, steady{})
	go func() { _ = s.Serve(l) }()
	b.Cleanup(s.Stop)
	var stubs [2]enginepb.VllmEngineClient
	for i, object := range []string{`{"max_resumes":"off"}`, `{}`} {
		stubs[i] = enginepb.NewVllmEngineClient(dial(b, "warmpath:///"+l.Addr().String(), client.WithConfig(object)))
	}
	run := func(stub enginepb.VllmEngineClient, q *enginepb.GenerateRequest) {
		stream, err := stub.Generate(b.Context(), q, grpc.WaitForReady(true))
		require.NoError(b, err)
		for err == nil {
			_, err = stream.Recv()
		}
		require.Equal(b, io.EOF, err)
	}
	q, n := engineStream("a", 500), 0
	for _, stub := range stubs {
		run(stub, q)
	}
	var spent [2]time.Duration
	var bytes [2]uint64
	for b.Loop() {
		for i, stub := range stubs {
			cpu, memory := processorTime(b), everAllocated()
			run(stub, q)
			spent[i] += processorTime(b) - cpu
			bytes[i] += everAllocated() - memory
		}
		n++
	}
	b.ReportMetric(float64(spent[0].Microseconds())/float64(n), "µs/off")
	b.ReportMetric(float64(spent[1].Microseconds())/float64(n), "µs/on")
	b.ReportMetric(100*(float64(spent[1])/float64(spent[0])-1), "%time")
	b.ReportMetric(float64(bytes[0])/float64(n), "B/off")
	b.ReportMetric(float64(bytes[1])/float64(n), "B/on")
}

// everAllocated is how much memory the process has ever everAllocated, in bytes.
func everAllocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}
