package tests

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/serviceconfig"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// handover is warmpath under another name. A service config with this name makes gRPC build a second balancer beside
// the first, which serves until the second is connected.
type handover struct{ balancer.Builder }

func (handover) Name() string { return "handover_of_tests" }

func (h handover) ParseConfig(raw json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	return h.Builder.(balancer.ConfigParser).ParseConfig(raw)
}

func init() { balancer.Register(handover{balancer.Get("warmpath")}) }

// occupied returns a replica that keeps calls until release is closed.
func occupied(t *testing.T) (r *replica, entered, release chan struct{}) {
	entered, release = make(chan struct{}, 64), make(chan struct{})
	return start(t, &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		entered <- struct{}{}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return &testpb.SimpleResponse{}, nil
	}}), entered, release
}

// Issue 12.39: calls wait for room before, during and after the handover from one balancer to another.
func TestQueueDuringHandover(t *testing.T) {
	l := listenLoopback(t) // accepts connections, and never becomes ready
	t.Cleanup(func() { _ = l.Close() })
	r, entered, release := occupied(t)
	sc := func(name string) string {
		return `{"loadBalancingConfig":[{"` + name + `":{"policy":{"round_robin":{}},"max_ongoing_requests":1}}]}`
	}
	d := newDirectory("handover", state(sc("warmpath"), r))
	resolver.Register(d) // so that each balancer has the channel's handle before its first pick
	full := make(chan struct{}, 64)
	cc := dial(t, "handover:///x", grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
		err := next(ctx, method, req, reply, cc, o...)
		if err != nil {
			full <- struct{}{}
		}
		return err
	}))
	stub := testpb.NewTestServiceClient(cc)
	errs := make(chan error, 3)
	call := func() { _, err := stub.UnaryCall(deadline(t), simple("x")); errs <- err }
	go call()
	<-entered
	d.set(state(sc("handover_of_tests"), &replica{addr: l.Addr().String()}))
	go call()
	go call()
	<-full // for the picker of the first balancer
	<-full
	close(release)
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	require.EqualValues(t, 3, r.calls.Load())
}

// Issue 12.39: calls that wait for room when the channel is closed end with gRPC's own error, and not as refused
// calls.
func TestQueueDuringClose(t *testing.T) {
	r, entered, _ := occupied(t)
	for range 10 {
		cc := dialled(t, "New", target(r), []client.Option{client.WithConfig(`{"policy":{"round_robin":{}},"max_ongoing_requests":1}`)})
		stub := testpb.NewTestServiceClient(cc)
		const calls = 16
		errs := make(chan error, calls)
		for range calls {
			go func() { _, err := stub.UnaryCall(deadline(t), simple("x")); errs <- err }()
		}
		<-entered
		require.NoError(t, cc.Close())
		for range calls {
			require.Contains(t, []codes.Code{codes.Canceled, codes.Unavailable}, status.Code(<-errs))
		}
	}
}
