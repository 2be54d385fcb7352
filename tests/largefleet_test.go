package tests

import (
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/balancer"
	"github.com/warmpath/warmpath/internal/fleet"
)

// In a fleet too large for one connection each, only picked replicas are connected, and every session reaches its
// first replica in rendezvous order.
func TestLargeFleetConnectsOnDemand(t *testing.T) {
	rs := replicas(t, 6)
	_, port, err := net.SplitHostPort(freeAddr(t))
	require.NoError(t, err)
	all := make([]*replica, 0, 1100)
	all = append(all, rs...)
	for i := len(all); i < cap(all); i++ { // loopback addresses without a listener
		all = append(all, &replica{addr: fmt.Sprintf("127.1.%d.%d:%s", i/250, i%250+1, port)})
	}
	require.Greater(t, len(all), balancer.EagerConnections)
	live := make(map[string]*replica)
	for _, r := range rs {
		live[r.addr] = r
	}
	// Sessions whose first replica is up, and some whose first replica is down.
	var home, dead []string
	for i := 0; len(home) < 6 || len(dead) < 3; i++ {
		require.Less(t, i, 20000)
		s := fmt.Sprint("user ", i)
		if live[ringFirst(t, all, s)] != nil {
			home = append(home, s)
		} else if len(dead) < 3 {
			dead = append(dead, s)
		}
	}
	mr := newDirectory("large", state("", all...))
	h := &conns{}
	m := newMeter(t)
	cc := dial(t, "large:///x", grpc.WithResolvers(mr), m.option, grpc.WithStatsHandler(h), client.WithConfig(config(`{"consistent_hash":{}}`)))
	for _, s := range home {
		for range 3 {
			require.Equal(t, ringFirst(t, all, s), where(t, client.WithSession(deadline(t), s), cc, ""))
		}
	}
	require.EqualValues(t, 3*len(home), m.sum(t, "warmpath.decisions"), "one decision a call")
	require.LessOrEqual(t, h.begun.Load(), int64(len(rs)), "no other replica was connected")
	for _, s := range dead {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(client.WithSession(deadline(t), s), simple(""))
		require.Contains(t, []codes.Code{codes.OK, codes.Unavailable}, status.Code(err), "%v", err)
	}
	require.Zero(t, m.ongoing(t))
	require.Equal(t, connectivity.Ready, cc.GetState())

	// When the fleet shrinks below the threshold, all replicas are connected. Then it grows again.
	mr.set(state("", rs...))
	connected(t, cc, rs)
	mr.set(state("", all...))
	for _, s := range home {
		require.Equal(t, ringFirst(t, all, s), where(t, client.WithSession(deadline(t), s), cc, ""))
	}
	require.EqualValues(t, len(rs), h.begun.Load(), "connections that were open stayed")
	require.Zero(t, m.ongoing(t))
}

// Each call waits for the connection of its own replica. A policy without a key does not open one connection after
// another.
func TestLargeFleetRoundRobin(t *testing.T) {
	rs := replicas(t, 8)

	s := state("", rs...)
	for i := range balancer.EagerConnections { // as many again that are draining
		s.Endpoints = append(s.Endpoints, fleet.Endpoint(policy.Attributes{ID: fmt.Sprint("d", i), Address: fmt.Sprintf("127.2.%d.%d:9", i/250, i%250+1), Draining: true}))
	}

	mr := newDirectory("wander", s)
	h := &conns{}
	cc := dial(t, "wander:///x", grpc.WithResolvers(mr), grpc.WithStatsHandler(h), roundRobin())
	for i := range len(rs) {
		where(t, deadline(t), cc, "")
		require.EqualValues(t, i+1, h.begun.Load(), "one connection a call")
	}
}
