package tests

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Only a service config, no interceptor: sessions in metadata work.
func TestBareSessions(t *testing.T) {
	rs := replicas(t, 4)
	for _, policy := range []string{"consistent_hash", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithNoProxy(),
				grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":{"`+policy+`":{}}}}]}`))
			require.NoError(t, err)
			defer func() { require.NoError(t, cc.Close()) }()
			settled(t, cc, rs)
			used := make(map[string]bool)
			for i := range 20 {
				s := fmt.Sprint("user ", i)
				ctx := metadata.AppendToOutgoingContext(deadline(t), "session_id", s)
				first := where(t, ctx, cc, "")
				used[first] = true
				if policy == "consistent_hash" {
					require.Equal(t, ringOrder(t, rs, s)[0], first)
				}
				for range 3 {
					require.Equal(t, first, where(t, ctx, cc, ""))
				}
			}
			require.Greater(t, len(used), 1)
		})
	}
}

func TestBarePromptPolicyIsLoggedOnce(t *testing.T) {
	var log logged
	old := slog.Default()
	slog.SetDefault(log.logger())
	defer slog.SetDefault(old)
	rs := replicas(t, 3)
	cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithNoProxy(),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{}}]}`))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	for range 20 {
		where(t, deadline(t), cc, "x")
	}
	require.Equal(t, 1, strings.Count(log.String(), "without the interceptors"), log.String())
}

func TestBareFull(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 1)
	r := start(t, &replica{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		entered <- struct{}{}
		<-release
		return &testpb.SimpleResponse{}, nil
	}})
	for _, policy := range []string{"round_robin", "power_of_two_choices", "consistent_hash", "kv_aware"} {
		cc, err := grpc.NewClient(target(r), insecureOption(), grpc.WithNoProxy(),
			grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":{"`+policy+`":{}},"max_ongoing_requests":1}}]}`))
		require.NoError(t, err)
		stub := testpb.NewTestServiceClient(cc)
		done := make(chan error, 1)
		go func() { _, err := stub.UnaryCall(deadline(t), simple("")); done <- err }()
		<-entered
		_, err = stub.UnaryCall(deadline(t), simple(""))
		require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
		release <- struct{}{}
		require.NoError(t, <-done)
		require.NoError(t, cc.Close())
	}
}

// When the first call with an interceptor restores a kept Router, calls under way on the old Router, bare ones too,
// never wait for a picker that does not come.
func TestRoutersChangeUnderBarePicks(t *testing.T) {
	rs := replicas(t, 3)
	dir := newDirectory("mixed", state("", rs...))
	sc := func(i int) string {
		return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}},"max_queued_requests":%d}}]}`, 1+i%2)
	}
	cc, err := grpc.NewClient("mixed:///x", insecureOption(), grpc.WithResolvers(dir), grpc.WithDefaultServiceConfig(sc(0)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	stub := testpb.NewTestServiceClient(cc)
	calls := startLoad(t, 8, func(int, int) {
		if _, err := stub.UnaryCall(deadlineOf(time.Minute), simple("")); err != nil {
			t.Error(err)
		}
	})
	for i := range 50 {
		calls.advance(20)
		dir.set(state(sc(i), rs...))
	}
}
