package tests

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/client"
)

// A route that an interceptor after warmpath's sets takes effect, and neither the message nor the reservation is
// lost.
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
		require.Equal(t, policy.ReasonRing, d.Reason)
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

// Options combine in any order.
func TestOptionsAddUp(t *testing.T) {
	rs := replicas(t, 2)
	own := client.WithDialects(dialect.Dialect{Methods: []string{unaryMethod}, Prompt: "3.2"})
	base := client.WithConfig(`{"policy":{"round_robin":{}},"max_attempts":1}`)
	affinity := client.WithPolicy(kvaware.Config{})
	for _, opts := range [][]grpc.DialOption{{own, base, affinity}, {affinity, own, base}, {base, affinity, own}} {
		cc := dial(t, target(rs...), opts...)
		var d client.Decision
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithDecision(deadline(t), &d), simple(strings.Repeat("x", 400)))
		require.NoError(t, err)
		require.Equal(t, "kv_aware", d.Policy)
		require.Equal(t, 100, d.PromptTokens)
	}
	_, err := client.New(target(rs...), insecureOption(), client.WithConfig(`{"policy":{"nonsense":{}}}`))
	require.ErrorContains(t, err, "nonsense")
	_, err = client.New(target(rs...), insecureOption(), client.WithDialects(dialect.Dialect{Methods: []string{"no"}}))
	require.ErrorContains(t, err, "methods")
}

// Issue 12.52: the Decision of a call that was never sent has Place -1, also if an earlier call has filled it.
func TestDecisionsAreOfOneCall(t *testing.T) {
	rs := replicas(t, 2)
	stub := testpb.NewTestServiceClient(dial(t, target(rs...)))
	unsent := client.Decision{Place: -1, Usage: policy.Usage{PromptTokens: -1, OutputTokens: -1, CachedTokens: -1}}
	var d client.Decision
	ctx := client.WithDecision(deadline(t), &d)
	_, err := stub.UnaryCall(ctx, simple("x"))
	require.NoError(t, err)
	require.NotEmpty(t, d.Replica)
	_, err = stub.UnaryCall(client.WithPin(ctx, "nobody"), simple("x"))
	require.Error(t, err)
	require.Equal(t, unsent, d)
	_, err = read(stub.StreamingOutputCall(ctx, prompt("x")))
	require.NoError(t, err)
	require.NotEmpty(t, d.Replica)
	_, err = stub.StreamingOutputCall(client.WithExclude(ctx, rs[0].addr, rs[1].addr), prompt("x"))
	require.Error(t, err)
	require.Equal(t, unsent, d)
	d = client.Decision{}
	_ = client.WithDecision(context.Background(), &d)
	require.Equal(t, unsent, d, "before the call, too")
}

// Without the interceptors too, the error of a call that no replica may serve names the reason.
func TestBareCallWithoutEligibleReplica(t *testing.T) {
	rs := replicas(t, 2)
	cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithNoProxy(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}}}}]}`))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	_, err = testpb.NewTestServiceClient(cc).UnaryCall(client.WithExclude(deadline(t), rs[0].addr, rs[1].addr), simple("x"))
	require.ErrorContains(t, err, "no replica of the fleet may serve the request: of 2, 2 excluded by the call")
}

// The error of an empty fleet names the fleet file. A call with WaitForReady waits for a replica.
func TestEmptyFleet(t *testing.T) {
	rs := replicas(t, 1)
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	write := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(path+".new", path))
	}
	write("replicas: []")
	stub := testpb.NewTestServiceClient(dial(t, "warmpath-file://"+path))
	empty := func() bool {
		_, err := stub.UnaryCall(deadline(t), simple("x"))
		return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "the fleet is empty: warmpath-file://"+path+" names no replica")
	}
	require.True(t, empty())
	write("replicas: [{address: '" + rs[0].addr + "'}]")
	_, err := stub.UnaryCall(deadline(t), simple("x"), grpc.WaitForReady(true))
	require.NoError(t, err)
	write("replicas: []")
	eventually(t, "the fleet is empty again", empty)
}

// Messages about a fleet file also go to the channel's logger.
func TestLoggerOfAFleetFile(t *testing.T) {
	rs := replicas(t, 1)
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fleet.yaml")
			require.NoError(t, os.WriteFile(path, []byte("replicas: [{address: '"+rs[0].addr+"'}]"), 0o600))
			var log logged
			var cc *grpc.ClientConn
			if how == "New" {
				cc = dial(t, "warmpath-file://"+path, client.WithLogger(log.logger()))
			} else {
				var err error
				cc, err = grpc.NewClient("warmpath-file://"+path, append(client.DialOptions(client.WithLogger(log.logger())), insecureOption(), grpc.WithNoProxy())...)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cc.Close()) })
			}
			_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("x"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, []byte("replica: []"), 0o600))
			eventually(t, "the line", func() bool { return strings.Contains(log.String(), "the fleet file is broken") })
		})
	}
}
