package tests

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// Issue 12.9: if only a look-aside server may decide, a target without a server is refused.
func TestCentralWithoutAServer(t *testing.T) {
	rs := replicas(t, 1)
	closed := client.WithConfig(`{"mode":"central_only"}`)
	for _, at := range []string{target(rs...), "dns:///" + rs[0].addr, rs[0].addr} {
		_, err := client.New(at, insecureOption(), closed)
		require.ErrorContains(t, err, "central_only", at)
		require.ErrorContains(t, err, "warmpath://server:port/deployment", at)
	}
	for _, good := range []string{
		`{"mode":"central"}`,
		`{"mode":"central_only","percentage":"off"}`,
	} {
		where(t, deadline(t), dial(t, target(rs...), client.WithConfig(good)), "x")
	}
	dial(t, "warmpath://127.0.0.1:1/chat", closed)

	rs[0].calls.Store(0)
	// grpc.NewClient does not show its target to the options: the calls are refused.
	cc, err := grpc.NewClient(target(rs...), append(client.DialOptions(closed), insecureOption(), grpc.WithNoProxy())...)
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	_, err = testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("x"))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	require.ErrorContains(t, err, "central_only")
	require.Zero(t, rs[0].calls.Load())
}

// Issue 12.39: the list of DialOptions among the options of New is refused, since it would reserve each call twice.
func TestDialOptionsInsideNew(t *testing.T) {
	_, err := client.New("warmpath:///127.0.0.1:1", append(client.DialOptions(), insecureOption())...)
	require.ErrorContains(t, err, "client.DialOptions")
}

// Issue 12.39: the id of a replica with several addresses does not depend on their order.
func TestOrderOfAddresses(t *testing.T) {
	r := replicas(t, 1)[0]
	ep := func(addrs ...string) (u update) {
		var e resolver.Endpoint
		for _, a := range addrs {
			e.Addresses = append(e.Addresses, resolver.Address{Addr: a})
		}
		u.Endpoints = []resolver.Endpoint{e}
		return u
	}
	closed := "127.0.0.1:1"
	d := newDirectory("order", ep(r.addr, closed))
	cc := dial(t, "order:///x", grpc.WithResolvers(d))
	first := asked(t, cc, "x")
	d.set(ep(closed, r.addr))
	require.Equal(t, first.Replica, asked(t, cc, "x").Replica)
}
