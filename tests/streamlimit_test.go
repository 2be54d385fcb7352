package tests

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/fleet"
)

// holding is a replica whose calls with a body wait until the test releases them.
type holding struct {
	*replica
	inside atomic.Int64
	most   atomic.Int64
	leave  chan struct{}
}

func startHolding(t *testing.T, opts ...grpc.ServerOption) *holding {
	t.Helper()
	h := &holding{leave: make(chan struct{})}
	h.replica = &replica{unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.GetPayload().GetBody()) == 0 {
			return &testpb.SimpleResponse{Username: h.addr}, nil
		}
		n := h.inside.Add(1)
		defer h.inside.Add(-1)
		for m := h.most.Load(); n > m && !h.most.CompareAndSwap(m, n); m = h.most.Load() {
		}
		select {
		case <-h.leave:
			return &testpb.SimpleResponse{Username: h.addr}, nil
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}}
	h.serve(listenLoopback(t), opts...)
	t.Cleanup(func() { h.server.Stop() })
	return h
}

// When the bound of the policy, or of the replica, equals the server's stream limit, as many calls as fit are served
// at once. The others wait in the queue, not in the connection.
func TestStreamLimitIsMaxOngoing(t *testing.T) {
	const limit, more = 2, 5
	for name, c := range map[string]struct {
		config string
		own    int
	}{"of the policy": {`"max_ongoing_requests":2`, 0}, "of the replica": {`"max_ongoing_requests":9`, limit}} {
		t.Run(name, func(t *testing.T) {
			h := startHolding(t, grpc.MaxConcurrentStreams(limit))
			list := state("")
			list.Endpoints = append(list.Endpoints, fleet.Endpoint(policy.Attributes{ID: h.addr, Address: h.addr, MaxOngoing: c.own}))
			dir := newDirectory("limited", list)
			m := newMeter(t)
			cc := dial(t, "limited:///x", grpc.WithResolvers(dir), m.option, client.WithConfig(config(`{"round_robin":{}}`, c.config)))
			connected(t, cc, []*replica{h.replica})
			var calls sync.WaitGroup
			for range limit + more {
				calls.Go(func() {
					if _, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a")); err != nil {
						t.Error(err)
					}
				})
			}
			eventually(t, "all that fit are served at once", func() bool { return h.inside.Load() == limit })
			eventually(t, "the others wait", func() bool { return m.sum(t, "warmpath.queue.length") == more })
			close(h.leave)
			calls.Wait()
			require.EqualValues(t, limit, h.most.Load())
			require.Zero(t, m.ongoing(t))
		})
	}
}

// Calls without interceptors cannot wait: calls above the limit are refused at once.
func TestStreamLimitWithoutInterceptors(t *testing.T) {
	h := startHolding(t, grpc.MaxConcurrentStreams(2))
	dir := newDirectory("limited", state("", h.replica))
	cc, err := grpc.NewClient("limited:///x", insecureOption(), grpc.WithResolvers(dir), grpc.WithDefaultServiceConfig(
		`{"loadBalancingConfig":[{"warmpath":{"policy":{"power_of_two_choices":{}},"max_ongoing_requests":2}}]}`))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	_, err = stub.UnaryCall(deadline(t), simple(""), grpc.WaitForReady(true))
	require.NoError(t, err)
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if _, err := stub.UnaryCall(deadline(t), simple("a")); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "both are served at once", func() bool { return h.inside.Load() == 2 })
	_, err = stub.UnaryCall(deadline(t), simple("a"))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	close(h.leave)
	calls.Wait()
}
