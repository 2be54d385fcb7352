package tests

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health" // client-side health checks
	healthsrv "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
)

// A session stays on its replica. When the replica dies, the session moves and other sessions do not. It returns when
// the replica is back.
func TestStickinessThroughDeath(t *testing.T) {
	rs := replicas(t, 4)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`)))
	connected(t, cc, rs)
	home := make(map[string]string)
	for i := range 40 {
		s := fmt.Sprint("user ", i)
		home[s] = where(t, client.WithSession(deadline(t), s), cc, "")
		require.Equal(t, ringOrder(t, rs, s)[0], home[s])
	}
	dead := rs[1]
	dead.server.Stop()
	for s, was := range home {
		now := where(t, client.WithSession(deadline(t), s), cc, "")
		if was == dead.addr {
			require.Equal(t, ringOrder(t, rs, s)[1], now)
		} else {
			require.Equal(t, was, now)
		}
	}
	before := dead.calls.Load()
	revive(t, dead)
	eventually(t, "sessions come home", func() bool {
		for s, was := range home {
			if where(t, client.WithSession(deadline(t), s), cc, "") != was {
				return false
			}
		}
		return true
	})
	require.Greater(t, dead.calls.Load(), before)
}

// revive serves a stopped replica at its old address.
func revive(t testing.TB, r *replica) {
	t.Helper()
	r.serve(listenAt(t, r.addr))
	t.Cleanup(func() { r.server.Stop() })
}

// Replicas are killed and restarted under load. Calls of every kind that had no first message yet do not fail.
func TestDeathUnderLoad(t *testing.T) {
	for _, policy := range []string{"round_robin", "kv_aware"} {
		t.Run(policy, func(t *testing.T) {
			rs := make([]*replica, 4)
			for i := range rs {
				rs[i] = start(t, &replica{}, grpc.WaitForHandlers(true))
			}
			m := newMeter(t)
			cc := dial(t, target(rs...), client.WithConfig(config(`{"`+policy+`":{}}`)), m.option)
			connected(t, cc, rs)
			stub := testpb.NewTestServiceClient(cc)
			calls := startLoad(t, 8, func(w, i int) {
				text := strings.Repeat(fmt.Sprintf("%d of %d. ", i%20, w), 50)
				if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple(text)); err != nil {
					t.Errorf("unary: %v", err)
				}
				if n, err := read(stub.StreamingOutputCall(deadlineOf(20*time.Second), prompt(text))); err != nil && n == 0 {
					t.Errorf("stream: %v", err)
				}
			})
			for _, r := range []*replica{rs[0], rs[2]} {
				calls.advance(100)
				r.server.Stop()
				served := r.calls.Load()
				calls.advance(200)
				require.Equal(t, served, r.calls.Load(), "a dead replica is not picked")
				revive(t, r)
				eventually(t, "a replica that is back is used again", func() bool { return r.calls.Load() > served || t.Failed() })
			}
			calls.end()
			require.Zero(t, m.ongoing(t))
		})
	}
}

func TestNoReplicaConnected(t *testing.T) {
	rs := replicas(t, 2)
	cc := dial(t, target(rs...), roundRobin())
	connected(t, cc, rs)
	for _, r := range rs {
		r.server.Stop()
	}
	stub := testpb.NewTestServiceClient(cc)
	eventually(t, "no replica: UNAVAILABLE", func() bool {
		_, err := stub.UnaryCall(deadline(t), simple(""))
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		return true
	})
	_, err := read(stub.StreamingOutputCall(deadline(t), prompt("")))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// With client-side health checks, a replica that reports that it is not serving counts as not connected.
func TestHealth(t *testing.T) {
	rs := make([]*replica, 2)
	hs := make([]*healthsrv.Server, len(rs))
	for i := range rs {
		hs[i] = healthsrv.NewServer()
		rs[i] = start(t, &replica{beside: func(s *grpc.Server) { healthpb.RegisterHealthServer(s, hs[i]) }})
	}
	cc := dial(t, target(rs...), grpc.WithDefaultServiceConfig(
		`{"healthCheckConfig":{"serviceName":""},"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}}}}]}`))
	connected(t, cc, rs)
	hs[0].SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	eventually(t, "only the healthy one is picked", func() bool {
		for range 4 {
			if where(t, deadline(t), cc, "") != rs[1].addr {
				return false
			}
		}
		return true
	})
	hs[0].SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	eventually(t, "it is back", func() bool { return where(t, deadline(t), cc, "") == rs[0].addr })
}
