package main

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/examples/stubs/fake"
)

// collector is an OTLP receiver.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu   sync.Mutex
	got  []*collectorpb.ExportTraceServiceRequest
	addr string
}

func (c *collector) Export(_ context.Context, q *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, q)
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func startCollector(t *testing.T) *collector {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &collector{addr: lis.Addr().String()}
	s := grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(s, c)
	go func() { _ = s.Serve(lis) }()
	t.Cleanup(s.Stop)
	return c
}

func TestDecisionsArriveAtTheCollector(t *testing.T) {
	target, servers, stop, err := fake.Fleet(1)
	require.NoError(t, err)
	defer stop()
	c := startCollector(t)
	const session, prompt = "a-session-nobody-may-see", "a prompt that nobody may see"
	require.NoError(t, run(t.Context(), target, session, prompt, otlptracegrpc.WithEndpoint(c.addr), otlptracegrpc.WithInsecure()))

	c.mu.Lock()
	defer c.mu.Unlock()
	var span *tracepb.Span
	for _, q := range c.got {
		raw, err := proto.Marshal(q)
		require.NoError(t, err)
		require.NotContains(t, string(raw), session)
		require.NotContains(t, string(raw), prompt)
		for _, r := range q.ResourceSpans {
			for _, s := range r.ScopeSpans {
				require.Len(t, s.Spans, 1)
				span = s.Spans[0]
			}
		}
	}
	require.NotNil(t, span)
	require.Equal(t, "vllm.grpc.engine.VllmEngine/Generate", span.Name)
	got := make(map[string]*commonpb.AnyValue)
	for _, a := range span.Attributes {
		got[a.Key] = a.Value
	}
	for key, want := range map[string]string{
		"warmpath.policy":  "kv_aware",
		"warmpath.reason":  "rendezvous",
		"warmpath.replica": servers[0].Addr(),
	} {
		require.Equal(t, want, got[key].GetStringValue(), key)
	}
	require.EqualValues(t, 7, got["warmpath.prompt_tokens"].GetIntValue())
	require.EqualValues(t, 1, got["warmpath.attempt"].GetIntValue())
	require.Contains(t, got, "warmpath.matched_tokens")
	require.Len(t, got["warmpath.session_hash"].GetStringValue(), 16)
}
