package server

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// Services with their own rule.
const (
	healthMethods   = "/grpc.health.v1.Health/"     // need no principal
	channelzMethods = "/grpc.channelz.v1.Channelz/" // for trusted principals
)

// interceptors of every call: they turn panics into errors, put the call's principal into its context, and keep each
// principal within its bounds.
type interceptors struct {
	authenticator *authenticator
	log           *slog.Logger
	refused       rate.Sometimes // when refusals are logged
}

func newInterceptors(a *authenticator, log *slog.Logger) *interceptors {
	return &interceptors{authenticator: a, log: log, refused: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
}

// options are the interceptors. With calls every call is logged: method, address, code and duration.
func (x *interceptors) options(calls bool) []grpc.ServerOption {
	recovers := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		method, _ := grpc.Method(ctx)
		return panicked(x.log, method, p)
	})
	var all []grpc.ServerOption
	if calls {
		line := logging.LoggerFunc(func(ctx context.Context, level logging.Level, message string, fields ...any) {
			x.log.Log(ctx, slog.Level(level), "warmpath: "+message, fields...)
		})
		o := logging.WithLogOnEvents(logging.FinishCall)
		all = append(all,
			grpc.ChainUnaryInterceptor(logging.UnaryServerInterceptor(line, o)),
			grpc.ChainStreamInterceptor(logging.StreamServerInterceptor(line, o)))
	}
	return append(all, grpc.InTapHandle(x.tap),
		grpc.ChainUnaryInterceptor(
			recovery.UnaryServerInterceptor(recovers), ratelimit.UnaryServerInterceptor(x), x.unary),
		grpc.ChainStreamInterceptor(
			recovery.StreamServerInterceptor(recovers), ratelimit.StreamServerInterceptor(x), x.stream),
	)
}

// tap authenticates a call before its first message is read: gRPC would keep up to maxMessageBytes of each refused
// call. The context that it returns has the principal.
func (x *interceptors) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if x.authenticator.table.Load().open || strings.HasPrefix(info.FullMethodName, healthMethods) {
		return ctx, nil
	}
	p, err := x.authenticator.authenticate(ctx)
	if err == nil && strings.HasPrefix(info.FullMethodName, channelzMethods) && !p.trusted() {
		err = status.Error(codes.PermissionDenied, "channelz is for trusted principals")
	}
	if err != nil {
		x.refusal(addressOf(ctx), info.FullMethodName, err)
		return nil, err
	}
	return context.WithValue(ctx, principalKey{}, p), nil
}

// refusal logs a refused call, now and then.
func (x *interceptors) refusal(from, method string, err error) {
	x.refused.Do(func() {
		x.log.Warn("warmpath: calls are refused", "last", from, "method", method, "error", status.Convert(err).Message())
	})
}

func addressOf(ctx context.Context) string {
	if p, _ := peer.FromContext(ctx); p != nil && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// Limit implements [ratelimit.Limiter].
func (x *interceptors) Limit(ctx context.Context) error {
	if p, ok := ctx.Value(principalKey{}).(*principal); ok {
		return p.allow()
	}
	return nil
}

// begin counts a call under way. Its error is a status.
func (x *interceptors) begin(ctx context.Context) (end func(), err error) {
	p, ok := ctx.Value(principalKey{}).(*principal)
	if !ok {
		return func() {}, nil
	}
	if most := p.rules.Load().maxCalls; !take(&p.calls, most) {
		return nil, status.Errorf(codes.ResourceExhausted, "the principal %s has %d calls under way, which are half of max_connections", p.name, most)
	}
	return func() { p.calls.Add(-1) }, nil
}

func (x *interceptors) unary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	end, err := x.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, r)
}

func (x *interceptors) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
	next grpc.StreamHandler) error {
	end, err := x.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	return next(srv, stream)
}

// http is the HTTP endpoint's counterpart of the interceptors: the header Authorization or the certificate identifies the
// principal, which is kept within its bounds and put into the context, and a panic becomes an error.
func (x *interceptors) http(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := shielded(x.log, r.URL.Path, func() error {
			ctx, end, err := x.admitHTTP(r)
			if err != nil {
				return err
			}
			defer end()
			next.ServeHTTP(w, r.WithContext(ctx))
			return nil
		})
		if err != nil {
			httpendpoint.Deny(w, err)
		}
	})
}

func (x *interceptors) admitHTTP(r *http.Request) (ctx context.Context, end func(), err error) {
	if x.authenticator.table.Load().open {
		return r.Context(), func() {}, nil
	}
	p, err := x.authenticator.identify(r.Header.Values("Authorization"), verified(r.TLS))
	if err != nil {
		x.refusal(r.RemoteAddr, r.URL.Path, err)
		return nil, nil, err
	}
	if err := p.allow(); err != nil {
		return nil, nil, err
	}
	ctx = context.WithValue(r.Context(), principalKey{}, p)
	end, err = x.begin(ctx)
	return ctx, end, err
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
