package server

import (
	"context"
	"crypto/x509"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/auth"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/ratelimit"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
)

// Methods that are treated in their own way.
const (
	healthMethods   = "/grpc.health.v1.Health/"     // anybody's
	channelzMethods = "/grpc.channelz.v1.Channelz/" // of trusted callers
)

// A guard stands before every call: it turns panics into errors, finds out who calls, and keeps each caller within its
// bounds.
type guard struct {
	gate    *gate
	log     *slog.Logger
	refused rate.Sometimes // when refusals are logged
}

func newGuard(g *gate, log *slog.Logger) *guard {
	return &guard{gate: g, log: log, refused: rate.Sometimes{First: 1, Interval: 10 * time.Second}}
}

// options are the interceptors. calls says whether every call is logged: method, caller's address, code and duration.
func (g *guard) options(calls bool) []grpc.ServerOption {
	recovers := recovery.WithRecoveryHandlerContext(func(ctx context.Context, p any) error {
		method, _ := grpc.Method(ctx)
		return panicked(g.log, method, p)
	})
	var all []grpc.ServerOption
	if calls {
		o := logging.WithLogOnEvents(logging.FinishCall)
		all = append(all, grpc.ChainUnaryInterceptor(logging.UnaryServerInterceptor(callLog{g.log}, o)),
			grpc.ChainStreamInterceptor(logging.StreamServerInterceptor(callLog{g.log}, o)))
	}
	return append(all, grpc.InTapHandle(g.tap),
		grpc.ChainUnaryInterceptor(recovery.UnaryServerInterceptor(recovers),
			auth.UnaryServerInterceptor(g.admit), ratelimit.UnaryServerInterceptor(g), g.unary),
		grpc.ChainStreamInterceptor(recovery.StreamServerInterceptor(recovers),
			auth.StreamServerInterceptor(g.admit), ratelimit.StreamServerInterceptor(g), g.stream),
	)
}

// tap turns strangers away before their message is read: gRPC would keep as much as max_message_bytes of each call's first. The
// context that it returns says who calls.
func (g *guard) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if g.gate.table.Load().open || strings.HasPrefix(info.FullMethodName, healthMethods) {
		return ctx, nil
	}
	c, err := g.gate.known(ctx)
	if err != nil {
		g.refusal(addressOf(ctx), info.FullMethodName, err)
		return nil, err
	}
	return context.WithValue(ctx, callerKey{}, c), nil
}

// admit is the [auth.AuthFunc]: tap has found out who calls, and here it is seen to that nobody comes in without.
func (g *guard) admit(ctx context.Context) (context.Context, error) {
	method, _ := grpc.Method(ctx)
	c, found := ctx.Value(callerKey{}).(*caller)
	var err error
	switch {
	case strings.HasPrefix(method, healthMethods):
	case !found && !g.gate.table.Load().open: // it was open a moment ago
		err = status.Error(codes.Unauthenticated, "the server wants to know who calls: call again")
	case found && strings.HasPrefix(method, channelzMethods) && !c.trusted():
		err = status.Error(codes.PermissionDenied, "channelz is for trusted callers")
	}
	if err != nil {
		g.refusal(addressOf(ctx), method, err)
		return nil, err
	}
	return ctx, nil
}

// refusal logs that somebody was refused, now and then.
func (g *guard) refusal(from, method string, err error) {
	g.refused.Do(func() {
		g.log.Warn("warmpath: callers are refused", "last", from, "method", method, "error", status.Convert(err).Message())
	})
}

// certificateOf is what the caller showed and TLS verified, or nil.
func certificateOf(ctx context.Context) *x509.Certificate {
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return nil
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.VerifiedChains) == 0 || len(info.State.VerifiedChains[0]) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

func addressOf(ctx context.Context) string {
	if p, _ := peer.FromContext(ctx); p != nil && p.Addr != nil {
		return p.Addr.String()
	}
	return ""
}

// Limit implements [ratelimit.Limiter].
func (g *guard) Limit(ctx context.Context) error {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c.allow()
	}
	return nil
}

// begin counts a call under way. Its error is a status.
func (g *guard) begin(ctx context.Context) (end func(), err error) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return func() {}, nil
	}
	if most := c.rules.Load().maxCalls; !take(&c.calls, most) {
		return nil, status.Errorf(codes.ResourceExhausted, "the caller %s has max_calls (%d) under way", c.name, most)
	}
	return func() { c.calls.Add(-1) }, nil
}

func (g *guard) unary(ctx context.Context, r any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	end, err := g.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, r)
}

func (g *guard) stream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	end, err := g.begin(stream.Context())
	if err != nil {
		return err
	}
	defer end()
	return next(srv, stream)
}

// panicked logs a panic and returns what the caller is told. What was panicked with is not logged unless it is the
// runtime's: it may have a prompt in it.
func panicked(log *slog.Logger, where string, p any) error {
	cause, ok := p.(runtime.Error)
	attrs := []any{"where", where, "stack", string(debug.Stack())}
	if ok {
		attrs = append(attrs, "panic", cause.Error())
	}
	log.Error("warmpath: a panic was caught", attrs...)
	return status.Error(codes.Internal, "the server has a fault; its log says where")
}

// shielded returns what f returns, or an error if it panics. It is for goroutines that have no interceptor above them.
func shielded(log *slog.Logger, where string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(log, where, p)
		}
	}()
	return f()
}

// callLog writes the middleware's lines.
type callLog struct{ log *slog.Logger }

// Log implements [logging.Logger].
func (l callLog) Log(ctx context.Context, level logging.Level, message string, fields ...any) {
	l.log.Log(ctx, slog.Level(level), "warmpath: "+message, fields...)
}
