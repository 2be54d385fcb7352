package tests

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/client"
)

// channelOf dials a channel of one of three kinds; bare has the balancer and no interceptors.
func channelOf(t *testing.T, kind, object string, rs []*replica) *grpc.ClientConn {
	t.Helper()
	if kind != "bare" {
		cc := dialled(t, kind, target(rs...), []client.Option{client.WithConfig(object)})
		t.Cleanup(func() { require.NoError(t, cc.Close()) })
		return cc
	}
	cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithNoProxy(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":`+object+`}]}`))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cc.Close()) })
	return cc
}

// Issue 12.34: the context of an attempt carries nothing of its call to another channel, and the other channel does
// not change the first one. Values that the application sets in this context take effect.
func TestCallsBelongToTheirChannel(t *testing.T) {
	for _, kind := range []string{"New", "DialOptions"} {
		for _, other := range []string{"New", "DialOptions", "bare"} {
			t.Run(kind+" to "+other, func(t *testing.T) { crossing(t, kind, other) })
		}
	}
}

func crossing(t *testing.T, kind, other string) {
	hold, held := make(chan struct{}), make(chan struct{}, 2)
	first := start(t, &replica{unary: func(ctx context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if string(q.Payload.GetBody()) == "hold" {
			held <- struct{}{}
			<-hold
		}
		return &testpb.SimpleResponse{}, nil
	}})
	rs := replicas(t, 3)
	auth := testpb.NewTestServiceClient(channelOf(t, other, config(`{"round_robin":{}}`), rs))
	eventually(t, "connections to all", func() bool {
		_, err := auth.UnaryCall(deadline(t), simple(""))
		require.NoError(t, err)
		return rs[0].calls.Load() > 0 && rs[1].calls.Load() > 0 && rs[2].calls.Load() > 0
	})
	pinned := rs[1]
	visit := func(ctx context.Context) {
		at := make(map[string]bool)
		for range 3 {
			reply, err := auth.UnaryCall(ctx, simple("x"))
			require.NoError(t, err)
			at[reply.Username] = true
		}
		require.Len(t, at, 3, "by turns")
		reply, err := auth.UnaryCall(client.WithPin(ctx, pinned.addr), simple("x"))
		require.NoError(t, err)
		require.Equal(t, pinned.addr, reply.Username)
	}
	cc := dialled(t, kind, target(first), []client.Option{client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`))},
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if string(req.(*testpb.SimpleRequest).Payload.GetBody()) != "hold" {
				visit(ctx)
			}
			return next(ctx, method, req, reply, cc, o...)
		}))
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)

	var d client.Decision
	ctx := client.WithExclude(client.WithSession(client.WithPin(client.WithDecision(deadline(t), &d), first.addr), "s"), rs[0].addr)
	_, err := stub.UnaryCall(ctx, simple("x"), grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, first.addr, d.Replica)
	require.EqualValues(t, "pinned", d.Reason)

	s, err := stub.StreamingOutputCall(ctx, prompt("x"))
	require.NoError(t, err)
	_, err = s.Recv()
	require.NoError(t, err)
	visit(s.Context())
	_, err = s.Recv()
	require.Error(t, err)
	require.Equal(t, first.addr, d.Replica)

	// The first channel still has its queue.
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { _, err := stub.UnaryCall(deadline(t), simple("hold")); errs <- err }()
	}
	<-held
	close(hold)
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
}

// Issue 12.34: a call with the context of another call on the same channel keeps its session, and does not write its
// Decision.
func TestCallWithinACall(t *testing.T) {
	rs := replicas(t, 4)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	for _, session := range []string{"a", "b", "c"} {
		var d client.Decision
		s, err := stub.StreamingOutputCall(client.WithSession(client.WithDecision(deadline(t), &d), session), prompt("x"))
		require.NoError(t, err)
		_, err = s.Recv()
		require.NoError(t, err)
		home := d.Replica
		require.Equal(t, home, where(t, s.Context(), cc, "y"))
		away := rs[0].addr
		if away == home {
			away = rs[1].addr
		}
		require.Equal(t, away, where(t, client.WithPin(s.Context(), away), cc, "y"))
		require.Equal(t, home, d.Replica)
	}
}

// Issue 12.39: with two lists of DialOptions on one channel, each call is reserved once.
func TestTwoListsOfDialOptions(t *testing.T) {
	rs := replicas(t, 1)
	m := newMeter(t)
	object := client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`))
	opts := append(client.DialOptions(object, m.option.(client.Option)), client.DialOptions(object, m.option.(client.Option))...)
	cc, err := grpc.NewClient(target(rs...), append(opts, insecureOption(), grpc.WithNoProxy())...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	for range 3 {
		var d client.Decision
		ctx := client.WithPin(client.WithDecision(deadline(t), &d), rs[0].addr)
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("x"), grpc.WaitForReady(true))
		require.NoError(t, err)
		require.EqualValues(t, "pinned", d.Reason)
		_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("x")))
		require.NoError(t, err)
	}
	require.EqualValues(t, 6, m.sum(t, "warmpath.decisions"))
	require.Zero(t, m.ongoing(t))
}
