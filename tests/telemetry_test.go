package tests

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	experimental "google.golang.org/grpc/experimental/opentelemetry"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/stats/opentelemetry"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
)

func recorder(t testing.TB) (*tracetest.SpanRecorder, *sdktrace.TracerProvider) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	t.Cleanup(func() { _ = tp.Shutdown(context.Background()) })
	return rec, tp
}

// decided returns the spans, and the events of spans, that carry a decision.
func decided(spans []sdktrace.ReadOnlySpan) (onSpans, inEvents []map[attribute.Key]attribute.Value) {
	read := func(kvs []attribute.KeyValue) map[attribute.Key]attribute.Value {
		m := make(map[attribute.Key]attribute.Value)
		for _, kv := range kvs {
			m[kv.Key] = kv.Value
		}
		return m
	}
	for _, s := range spans {
		if m := read(s.Attributes()); m[telemetry.KeyReplica].AsString() != "" {
			onSpans = append(onSpans, m)
		}
		for _, e := range s.Events() {
			if e.Name == telemetry.EventName {
				inEvents = append(inEvents, read(e.Attributes))
			}
		}
	}
	return onSpans, inEvents
}

// A call that fails on one replica and succeeds on another leaves a decision for each attempt, on the attempt's own
// span. Without a tracer for attempts, the application's span has two events.
func TestDecisionsOnSpans(t *testing.T) {
	for _, tracer := range []string{"otelgrpc", "grpc", "none"} {
		t.Run(tracer, func(t *testing.T) {
			rec, tp := recorder(t)
			opts := []grpc.DialOption{client.WithConfig(config(`{"consistent_hash":{}}`))}
			switch tracer {
			case "otelgrpc":
				opts = append(opts, grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(tp))))
			case "grpc":
				opts = append(opts, opentelemetry.DialOption(opentelemetry.Options{TraceOptions: experimental.TraceOptions{
					TracerProvider: tp, TextMapPropagator: propagation.TraceContext{}}}))
			}
			var failing atomic.Bool
			fail := func() error {
				if failing.Load() {
					return status.Error(codes.Unavailable, "x")
				}
				return nil
			}
			rs := []*replica{start(t, &replica{}), start(t, answering(true, fail))}
			cc := dial(t, target(rs...), opts...)
			connectedExcept(t, cc, rs)
			session := sessionAt(t, rs, len(rs)-1, rs[0].addr)
			for _, kind := range []string{"unary", "stream"} {
				failing.Store(true)
				rec.Reset()
				ctx, span := tp.Tracer("app").Start(deadline(t), "request")
				ctx = client.WithSession(ctx, session)
				if kind == "unary" {
					_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"))
					require.NoError(t, err)
				} else {
					_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("x")))
					require.NoError(t, err)
				}
				span.End()
				failing.Store(false)
				var got, none []map[attribute.Key]attribute.Value
				eventually(t, "the spans end", func() bool {
					got, none = decided(rec.Ended())
					if tracer == "none" {
						got, none = none, got
					}
					return len(got) >= 2
				})
				require.Len(t, got, 2, "%s", kind)
				require.Empty(t, none)
				slices.SortFunc(got, func(a, b map[attribute.Key]attribute.Value) int {
					return int(a[telemetry.KeyAttempt].AsInt64() - b[telemetry.KeyAttempt].AsInt64())
				})
				require.Equal(t, rs[1].addr, got[0][telemetry.KeyReplica].AsString())
				require.Equal(t, "ring", got[0][telemetry.KeyReason].AsString())
				require.EqualValues(t, 1, got[0][telemetry.KeyAttempt].AsInt64())
				require.Equal(t, rs[0].addr, got[1][telemetry.KeyReplica].AsString())
				require.Equal(t, "retry", got[1][telemetry.KeyReason].AsString())
				require.EqualValues(t, 2, got[1][telemetry.KeyAttempt].AsInt64())
				for _, d := range got {
					require.Equal(t, "consistent_hash", d[telemetry.KeyPolicy].AsString())
					require.Len(t, d[telemetry.KeySessionHash].AsString(), 16)
					require.Contains(t, d, telemetry.KeyPlace)
					require.Contains(t, d, telemetry.KeyLoad)
				}
			}
		})
	}
}

// cutOff is a stream that an interceptor ends after its first message, and leaves open.
type cutOff struct {
	grpc.ClientStream
	answered bool
}

func (s *cutOff) RecvMsg(m any) error {
	if s.answered {
		return io.EOF
	}
	s.answered = true
	return s.ClientStream.RecvMsg(m)
}

// The usage in a Decision is complete when the call ends, and is not written later, when gRPC ends a stream that an
// interceptor inside has left open.
func TestUsageOfAStreamLeftOpen(t *testing.T) {
	rs := replicas(t, 1)
	rs[0].stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer(`{"usage":{"prompt_tokens":100}}`)); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
	m := newMeter(t)
	cc := dial(t, target(rs...), m.option, client.WithConfig(
		`{"dialects":[{"methods":["`+streamingMethod+`"],"prompt":"3.2","usage":{"json":"1.2"}}]}`),
		opening(func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			return &cutOff{ClientStream: s}, err
		}))
	var d client.Decision
	ctx, cancel := context.WithCancel(client.WithDecision(deadline(t), &d))
	defer cancel()
	_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("x")))
	require.NoError(t, err)
	require.Equal(t, 100, d.Usage.PromptTokens)
	cancel()
	eventually(t, "the end of the stream", func() bool {
		return m.sum(t, "warmpath.replica.ongoing") == 0 && d.Usage.PromptTokens == 100
	})
}

// The cached tokens that the replica reports are counted beside the predicted ones.
func TestMetrics(t *testing.T) {
	usage := `{"usage":{"prompt_tokens":100,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":64}}}`
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := s.Send(answer("{}")); err != nil {
				return err
			}
			return s.Send(answer(usage))
		}, unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			return &testpb.SimpleResponse{Payload: &testpb.Payload{Body: []byte(usage)}}, nil
		}})
	}
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			m := newMeter(t)
			cc := dialled(t, how, target(rs...), []client.Option{m.option.(client.Option), client.WithConfig(
				`{"dialects":[{"methods":["` + unaryMethod + `","` + streamingMethod + `"],"prompt":"3.2","usage":{"json":"1.2"}}]}`)})
			defer func() { require.NoError(t, cc.Close()) }()
			stub := testpb.NewTestServiceClient(cc)
			text := strings.Repeat("four", 100)
			var d client.Decision
			const each = 3
			for range each {
				_, err := read(stub.StreamingOutputCall(client.WithDecision(deadline(t), &d), prompt(text)))
				require.NoError(t, err)
				require.Equal(t, 64, d.Usage.CachedTokens)
				_, err = stub.UnaryCall(client.WithDecision(deadline(t), &d), simple(text))
				require.NoError(t, err)
				require.Equal(t, 64, d.Usage.CachedTokens)
				require.Equal(t, 5, d.Usage.OutputTokens)
			}
			policy := telemetry.KeyPolicy.String("kv_aware")
			require.EqualValues(t, 2*each, m.sum(t, "warmpath.decisions", policy))
			require.EqualValues(t, 2*each*64, m.sum(t, "warmpath.cached_tokens.measured", policy))
			require.EqualValues(t, 2*each*100, m.sum(t, "warmpath.prompt_tokens", policy))
			require.Positive(t, m.sum(t, "warmpath.cached_tokens.predicted", policy))
			require.Positive(t, m.sum(t, "warmpath.index.bytes", policy))
			require.Zero(t, m.sum(t, "warmpath.replica.ongoing", policy))
			var rm metricdata.ResourceMetrics
			require.NoError(t, m.reader.Collect(context.Background(), &rm))
			require.Contains(t, fmt.Sprint(rm), "warmpath.pick.duration")
		})
	}
}

// Neither the prompt nor the session leaves the process in spans, metrics or logs.
func TestNothingPrivateIsExported(t *testing.T) {
	const secretPrompt, secretSession = "the-secret-prompt", "the-secret-session"
	var log logged
	old := slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(old)
	rec, tp := recorder(t)
	m := newMeter(t)
	var failing atomic.Int64
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, answering(false, func() error {
			if failing.Add(1)%3 == 0 {
				return status.Error(codes.Unavailable, "x")
			}
			return nil
		}))
	}
	for _, policy := range []string{"consistent_hash", "kv_aware", "power_of_two_choices"} {
		cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"`+policy+`":{}}`, `"max_ongoing_requests":1`, `"max_queued_requests":2`)),
			grpc.WithStatsHandler(otelgrpc.NewClientHandler(otelgrpc.WithTracerProvider(tp))))
		stub := testpb.NewTestServiceClient(cc)
		errs := make(chan error, 32)
		for i := range cap(errs) {
			go func() {
				ctx := client.WithSession(deadlineOf(time.Minute), secretSession)
				text := strings.Repeat(secretPrompt, 20+i)
				var err error
				if i%2 == 0 {
					_, err = stub.UnaryCall(ctx, simple(text))
				} else {
					_, err = read(stub.StreamingOutputCall(ctx, prompt(text)))
				}
				errs <- err
			}()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				require.NotContains(t, err.Error(), secretPrompt)
				require.NotContains(t, err.Error(), secretSession)
			}
		}
	}
	var spans strings.Builder
	for _, s := range tracetest.SpanStubsFromReadOnlySpans(rec.Ended()) {
		fmt.Fprintf(&spans, "%+v\n", s)
	}
	require.Contains(t, spans.String(), "warmpath.replica")
	var rm metricdata.ResourceMetrics
	require.NoError(t, m.reader.Collect(context.Background(), &rm))
	metrics := fmt.Sprintf("%+v", rm)
	require.Contains(t, metrics, "warmpath.decisions")
	for _, exported := range []string{spans.String(), metrics, log.String()} {
		require.NotContains(t, exported, secretPrompt)
		require.NotContains(t, exported, secretSession)
	}
}
