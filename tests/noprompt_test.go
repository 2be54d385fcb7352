package tests

import (
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// refusedFor checks the error of a call without a prompt.
func refusedFor(t *testing.T, method string, err error) {
	t.Helper()
	require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "require_prompt is set, and the request of "+method+" has no prompt")
	require.ErrorContains(t, err, "dialects")
}

func TestRequirePrompt(t *testing.T) {
	rs := replicas(t, 2)
	none := `{"methods":["/grpc.testing.TestService/EmptyCall"]}`
	text := `{"policy":{"kv_aware":{}},"require_prompt":true,"dialects":` + dialects[:len(dialects)-1] + "," + none + "]}"
	cc := dial(t, target(rs...), client.WithConfig(text))
	stub := testpb.NewTestServiceClient(cc)
	stream := func(ctx context.Context, q *testpb.StreamingOutputCallRequest) error {
		s, err := stub.StreamingOutputCall(ctx, q)
		if err != nil {
			return err
		}
		for err == nil {
			_, err = s.Recv()
		}
		if err == io.EOF {
			return nil
		}
		return err
	}

	// The first call starts before the channel has a balancer.
	_, err := stub.UnaryCall(deadline(t), simple(""), grpc.WaitForReady(true))
	refusedFor(t, unaryMethod, err)
	_, err = stub.UnaryCall(deadline(t), simple("a prompt"))
	require.NoError(t, err)
	for _, r := range rs {
		r.calls.Store(0)
	}

	_, err = stub.UnaryCall(deadline(t), simple(""))
	refusedFor(t, unaryMethod, err)
	refusedFor(t, streamingMethod, stream(deadline(t), prompt("")))
	refusedFor(t, streamingMethod, stream(client.WithSession(deadline(t), "a session is no prompt"), prompt("")))
	_, err = stub.FullDuplexCall(deadline(t))
	refusedFor(t, duplexMethod, err)
	for _, r := range rs {
		require.Zero(t, r.calls.Load(), "no attempt is made")
	}

	require.NoError(t, stream(deadline(t), prompt("a prompt")))
	_, err = stub.EmptyCall(deadline(t), &testpb.Empty{}) // its dialect has no prompt
	require.Equal(t, codes.Unimplemented, status.Code(err))
}

func TestRequirePromptOfAStreamThatComesFirst(t *testing.T) {
	rs := replicas(t, 1)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`, `"require_prompt":true`)))
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt(""))
	if err == nil {
		_, err = s.Recv()
	}
	refusedFor(t, streamingMethod, err)
}

// A policy that does not look at prompts needs none, and health checks never do.
func TestRequirePromptHasItsLimits(t *testing.T) {
	rs := replicas(t, 1)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"round_robin":{}}`, `"require_prompt":true`)))
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple(""))
	require.NoError(t, err)

	withHealth := grpc.NewServer()
	healthpb.RegisterHealthServer(withHealth, health.NewServer())
	l := listenLoopback(t)
	go func() { _ = withHealth.Serve(l) }()
	t.Cleanup(withHealth.Stop)
	cc = dial(t, "warmpath:///"+l.Addr().String(), client.WithConfig(config(`{"kv_aware":{}}`, `"require_prompt":true`)))
	_, err = healthpb.NewHealthClient(cc).Check(deadline(t), &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
}
