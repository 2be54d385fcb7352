package server

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	otelcodes "go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/warmpath/warmpath/internal/httpendpoint"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// Services with their own rule.
const (
	healthMethods   = "/grpc.health.v1.Health/"     // need no principal
	channelzMethods = "/grpc.channelz.v1.Channelz/" // for trusted principals
)

// interceptors of every call turn panics into errors, put the call's principal into its context, and keep each
// principal within its bounds. At level debug every call is logged: method, address, code and duration.
func (a *authenticator) interceptors() []grpc.ServerOption {
	recovers := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		method, _ := grpc.Method(ctx)
		return panicked(a.log, method, p)
	})
	var all []grpc.ServerOption
	if a.log.Enabled(context.Background(), slog.LevelDebug) {
		line := logging.LoggerFunc(func(ctx context.Context, _ logging.Level, message string, fields ...any) {
			a.log.DebugContext(ctx, "warmpath: "+message, fields...)
		})
		o := logging.WithLogOnEvents(logging.FinishCall)
		all = append(all,
			grpc.ChainUnaryInterceptor(logging.UnaryServerInterceptor(line, o)),
			grpc.ChainStreamInterceptor(logging.StreamServerInterceptor(line, o)))
	}
	return append(all, grpc.InTapHandle(a.tap),
		grpc.ChainUnaryInterceptor(recovery.UnaryServerInterceptor(recovers), unary),
		grpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(recovers), stream),
	)
}

// tap authenticates a call before its first message is read: gRPC would keep up to maxMessageBytes of each refused
// call. The context that it returns has the principal.
func (a *authenticator) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if a.table.Load().open || strings.HasPrefix(info.FullMethodName, healthMethods) {
		return ctx, nil
	}
	p, err := a.authenticate(ctx)
	if err == nil && strings.HasPrefix(info.FullMethodName, channelzMethods) && !p.trusted() {
		err = status.Error(codes.PermissionDenied, "channelz is for trusted principals")
	}
	if err != nil {
		a.refusal(addressOf(ctx), info.FullMethodName, err)
		return nil, err
	}
	return context.WithValue(ctx, principalKey{}, p), nil
}

// refusal logs a refused call, now and then.
func (a *authenticator) refusal(from, method string, err error) {
	a.refused.Do(func() {
		a.log.Warn("warmpath: calls are refused", "last", from, "method", method, "error", status.Convert(err).Message())
	})
}

func addressOf(ctx context.Context) string {
	if p, _ := peer.FromContext(ctx); p != nil && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// begin takes a call off its principal's rate, and counts it as under way. Its error is a status.
func begin(ctx context.Context) (end func(), err error) {
	p, ok := ctx.Value(principalKey{}).(*principal)
	if !ok {
		return func() {}, nil
	}
	if err := p.allow(); err != nil {
		return nil, err
	}
	if most := p.rules.Load().maxCalls; !take(&p.calls, most) {
		return nil, status.Errorf(codes.ResourceExhausted,
			"the principal %s has %d calls under way: half of max_connections", p.name, most)
	}
	return func() { p.calls.Add(-1) }, nil
}

func unary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	end, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, r)
}

func stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	next grpc.StreamHandler) error {
	end, err := begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	return next(srv, stream)
}

// http is the HTTP endpoint's counterpart of the interceptors: the header Authorization or the certificate identifies
// the principal, which is kept within its bounds and put into the context, and a panic becomes an error. deny answers a
// request that is refused, or that panics.
func (a *authenticator) http(next http.Handler, deny func(http.ResponseWriter, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := shielded(a.log, r.URL.Path, func() error {
			p, err := a.identify(r.Header.Values("Authorization"), verified(r.TLS))
			if err != nil {
				a.refusal(r.RemoteAddr, r.URL.Path, err)
				return err
			}
			ctx := context.WithValue(r.Context(), principalKey{}, p)
			end, err := begin(ctx)
			if err != nil {
				return err
			}
			defer end()
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		if err != nil {
			deny(w, err)
		}
	})
}

// panicked logs a panic and returns the status of the call. The panic's value is logged only if it is the runtime's:
// any other may contain a prompt.
func panicked(log *slog.Logger, where string, p any) error {
	cause, ok := p.(runtime.Error)
	attrs := []any{"where", where, "stack", string(debug.Stack())}
	if ok {
		attrs = append(attrs, "panic", cause.Error())
	}
	log.Error("warmpath: a panic was caught", attrs...)
	return status.Error(codes.Internal, "the server has a fault; its log has the place")
}

// shielded returns the error of f, or one for its panic. It is for goroutines without an interceptor.
func shielded(log *slog.Logger, where string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(log, where, p)
		}
	}()
	return f()
}

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
