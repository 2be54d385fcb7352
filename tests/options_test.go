package tests

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/client"
)

// What an interceptor that runs after ours says of a call counts, and neither the
// message nor the booking is lost.
func TestRouteSetByAChainedInterceptor(t *testing.T) {
	rs := replicas(t, 4)
	m := newMeter(t)
	session := "s"
	pin := func(ctx context.Context) context.Context {
		if session == "" {
			return ctx
		}
		return client.WithSession(ctx, session)
	}
	cc := dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`)), m.option,
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			return next(pin(ctx), method, req, reply, cc, o...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			return next(pin(ctx), d, cc, method, o...)
		}))
	session = ""
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for _, session = range []string{"a", "b", "c", "d", "e"} {
		want := ringOrder(t, rs, session)[0]
		var d client.Decision
		reply, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple("x"))
		require.NoError(t, err)
		require.Equal(t, want, reply.Username)
		require.Equal(t, want, d.Replica)
		require.Equal(t, routing.ReasonRing, d.Reason)
		s, err := stub.StreamingOutputCall(deadline(t), prompt("x"))
		require.NoError(t, err)
		first, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, want, string(first.Payload.Body))
		_, err = s.Recv()
		require.Equal(t, io.EOF, err)
	}
	require.Zero(t, m.ongoing(t))
}

// Options add up in any order.
func TestOptionsAddUp(t *testing.T) {
	rs := replicas(t, 2)
	own := client.WithDialects(dialect.Dialect{Methods: []string{unaryMethod}, Prompt: "3.2"})
	base := client.WithConfig(`{"policy":{"round_robin":{}},"max_attempts":1}`)
	affinity := client.WithPolicy("prefix_cache_affinity", nil)
	for _, opts := range [][]grpc.DialOption{{own, base, affinity}, {affinity, own, base}, {base, affinity, own}} {
		cc := dial(t, target(rs...), opts...)
		var d client.Decision
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple(strings.Repeat("x", 400)))
		require.NoError(t, err)
		require.Equal(t, "prefix_cache_affinity", d.Policy)
		require.Equal(t, 100, d.PromptTokens)
	}
	_, err := client.New(target(rs...), insecureOption(), client.WithPolicy("nonsense", nil))
	require.ErrorContains(t, err, "nonsense")
	_, err = client.New(target(rs...), insecureOption(), client.WithDialects(dialect.Dialect{Methods: []string{"no"}}))
	require.ErrorContains(t, err, "methods")
}
