package server

import (
	"context"
	"net/http"
	"strings"

	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// traceContext is W3C's, as HAProxy, Python and Go send it.
var traceContext propagation.TraceContext

// span begins the span of one pick, which continues the trace of traceparent, else that of the call's metadata. Over
// HTTP it is the span of the request, which ends there.
func (s *Server) span(ctx context.Context, traceparent string) (context.Context, func(error)) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		return ctx, func(err error) { failed(span, err) }
	}
	var carrier propagation.MapCarrier
	if traceparent != "" {
		carrier = propagation.MapCarrier{"traceparent": traceparent}
	} else if v := metadata.ValueFromIncomingContext(ctx, "traceparent"); len(v) > 0 {
		more := metadata.ValueFromIncomingContext(ctx, "tracestate")
		carrier = propagation.MapCarrier{"traceparent": v[0], "tracestate": strings.Join(more, ",")}
	}
	if carrier != nil {
		ctx = traceContext.Extract(ctx, carrier)
	}
	ctx, span := s.tracer.Start(ctx, warmpathv1.RoutingService_ChooseReplica_FullMethodName[1:],
		trace.WithSpanKind(trace.SpanKindServer))
	return ctx, func(err error) {
		failed(span, err)
		span.End()
	}
}

func failed(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(otelcodes.Error, status.Convert(err).Message())
	}
}

// traced makes the spans of picks over HTTP.
func (s *Server) traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := traceContext.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, "POST "+httpendpoint.RoutePath, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}
