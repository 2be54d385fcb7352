package tests

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/server"
)

// traceparent is the trace context of a caller, and trace its id.
const (
	traced      = "0af7651916cd43dd8448eb211c80319c"
	traceparent = "00-" + traced + "-b7ad6b7169203331-01"
)

// Issue 12.24: in mode central the trace of a Go client's call continues in the look-aside server.
func TestTraceOfAGoClient(t *testing.T) {
	recorded := tracetest.NewInMemoryExporter()
	rs := replicas(t, 1)
	s, err := server.New(deployed(t, centralised(`{round_robin: {}}`, rs)), server.Options{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSyncer(recorded))})
	require.NoError(t, err)
	lis := listenLoopback(t)
	served := make(chan error, 1)
	go func() { served <- s.Serve(lis) }()
	t.Cleanup(func() {
		s.Close()
		require.NoError(t, <-served)
	})
	cc := dial(t, "warmpath://"+lis.Addr().String()+"/chat")
	untilCentral(t, cc)
	id, err := trace.TraceIDFromHex(traced)
	require.NoError(t, err)
	ctx := trace.ContextWithRemoteSpanContext(deadline(t), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled,
	}))
	_, err = testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"))
	require.NoError(t, err)
	eventually(t, "the span has ended", func() bool { // so may that of a call before
		return slices.ContainsFunc(recorded.GetSpans(), func(s tracetest.SpanStub) bool { return s.SpanContext.TraceID() == id })
	})
}

// Issue 12.24: the HAProxy example passes the trace context on with its request.
func TestTraceOfHAProxy(t *testing.T) {
	router := newFakeServer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"replica_id":"r0"}`)) })
	f := startHAProxy(t, router.addr(), router.addr(), httpReplicas(t))
	require.Equal(t, http.StatusOK, f.post(strings.NewReader(chat("x")), "Traceparent", traceparent, "Tracestate", "a=b").code)
	asked := router.asked()[0]
	require.Equal(t, traceparent, asked.Get("Traceparent"))
	require.Equal(t, "a=b", asked.Get("Tracestate"))
}

// Issue 12.24: the interceptors of the Python example pass it on in the metadata.
func TestTraceOfPython(t *testing.T) {
	const program = `
import asyncio, sys, grpc, inference_pb2 as pb, warmpath
from warmpath import aio
server, kind = sys.argv[1:]
request, metadata = pb.GenerateRequest(text="x", stopping={"max_new_tokens": 1}), [("traceparent", "` + traceparent + `")]
method = "/vllm.Inference/GenerateStream", pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString
def sync():
    router = warmpath.Router(grpc.insecure_channel(server), ask_timeout=60)
    channel = grpc.intercept_channel(grpc.insecure_channel("127.0.0.1:1"), *router.interceptors)
    list(channel.unary_stream(*method)(request, timeout=60, metadata=metadata))
    router.close()
async def asynchronous():
    router = aio.Router(grpc.aio.insecure_channel(server), ask_timeout=60)
    async with grpc.aio.insecure_channel("127.0.0.1:1", interceptors=router.interceptors) as channel:
        async for _ in channel.unary_stream(*method)(request, timeout=60, metadata=metadata):
            pass
    await router.close()
sync() if kind == "sync" else asyncio.run(asynchronous())
`
	for _, kind := range []string{"sync", "asyncio"} {
		engines, _ := inferenceEngines(t, 1)
		r, at := record(t, "round_robin: {}", engines...)
		runPython(t, nil, "-c", program, at, kind)
		require.Equal(t, []string{traceparent}, r.traces, kind)
	}
}
