package resolver_test

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/client"
	timing "github.com/warmpath/warmpath/internal/lookaside"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
	"github.com/warmpath/warmpath/resolver"
)

// soon makes a test of lost servers end: a server counts as silent after three seconds, which only a frozen one is.
var soon = timing.Timing{Silence: 3 * time.Second, Grace: 50 * time.Millisecond, Return: 50 * time.Millisecond, Step: 10 * time.Millisecond, Retry: 10 * time.Millisecond}

// watching dials a deployment.
func watching(t *testing.T, target string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	b := resolver.NewBuilder(resolver.WithTiming(soon), resolver.WithServerDialOptions(grpc.WithTransportCredentials(insecure.NewCredentials())))
	all := client.DialOptions(client.WithPolicy(roundrobin.Config{}))
	all = append(all, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithResolvers(b))
	cc, err := grpc.NewClient(target, append(all, opts...)...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cc.Close()) })
	return cc
}

// ask makes a call without waiting, and returns the address that answered.
func ask(t *testing.T, cc *grpc.ClientConn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var p peer.Peer
	_, err := healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Peer(&p))
	if err != nil {
		return "", err
	}
	return p.Addr.String(), nil
}

// goesOn makes calls, none of which may fail, until enough is true.
func goesOn(t *testing.T, cc *grpc.ClientConn, enough func(got map[string]bool) bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		got := map[string]bool{}
		for range 8 {
			address, err := ask(t, cc)
			require.NoError(t, err)
			got[address] = true
		}
		if enough(got) {
			return
		}
		require.True(t, time.Now().Before(end), "still only %v", got)
	}
}

// exactly returns whether these replicas answer, and no other.
func exactly(addresses ...string) func(map[string]bool) bool {
	want := map[string]bool{}
	for _, a := range addresses {
		want[a] = true
	}
	return func(got map[string]bool) bool { return assert.ObjectsAreEqual(want, got) }
}

func TestServerIsGoneAndComesBackEmpty(t *testing.T) {
	_, at := serveReplicas(t, 3)
	s := startServer(t, "", always("first", at[:2]...))
	cc := watching(t, "warmpath://"+s.address+"/chat")
	goesOn(t, cc, exactly(at[:2]...))
	start := s.started(t)
	require.Equal(t, "chat", start.GetDeployment())
	require.Empty(t, start.GetIncarnation())
	id := start.GetClientId()

	s.kill()
	goesOn(t, cc, exactly(at[:2]...))

	s = startServer(t, s.address, always("second"))
	start = s.started(t)
	require.Equal(t, "first", start.GetIncarnation())
	require.Equal(t, uint64(1), start.GetFleetVersion())
	require.Equal(t, id, start.GetClientId())
	tick := time.After(4 * soon.Grace)
	goesOn(t, cc, func(got map[string]bool) bool {
		require.Len(t, got, 2)
		select {
		case <-tick:
			return true
		default:
			return false
		}
	})
	s.send(&answer{Fleet: &warmpathv1.FleetUpdate{Version: 2, Replicas: fleetOf(at[1:]...).Replicas}})
	goesOn(t, cc, exactly(at[1:]...))
	s.send(&answer{Fleet: &warmpathv1.FleetUpdate{Version: 3, Removed: []uint32{1}}})
	goesOn(t, cc, exactly(at[2]))
}

func TestServerNamesReplicasThatDoNotExist(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", always("a", at...))
	cc := watching(t, "warmpath://"+s.address+"/")
	goesOn(t, cc, exactly(at...))
	wrong := fleetOf(deadAddress(t), "no.such.host.invalid:1")
	wrong.Replicas[0].Number, wrong.Replicas[1].Number, wrong.Version = 7, 8, 2
	s.send(&answer{Fleet: wrong})
	s.kill()
	s = startServer(t, s.address, func(*warmpathv1.WatchStart) *answer { return &answer{Incarnation: "b", Fleet: wrong} })
	s.started(t)
	n := 0
	goesOn(t, cc, func(map[string]bool) bool { n++; return n == 20 })
	s.send(&answer{Fleet: &warmpathv1.FleetUpdate{Version: 3, Snapshot: true, Replicas: []*warmpathv1.Replica{{Number: 9, Address: at[1]}}}})
	goesOn(t, cc, exactly(at[1]))
}

func TestFrozenServerIsLeftForTheOther(t *testing.T) {
	_, at := serveReplicas(t, 3)
	a, b := startServer(t, "", always("a", at[:2]...)), startServer(t, "", always("b", at...))
	cc := watching(t, "warmpath://"+a.address+","+b.address+"/chat")
	_, err := ask(t, cc)
	require.NoError(t, err)
	first, other := a, b
	if len(b.starts) > 0 {
		first, other = b, a
	}
	first.started(t)
	first.freeze()
	n := 0
	goesOn(t, cc, func(map[string]bool) bool { n++; return len(other.starts) > 0 })
	require.Empty(t, first.starts)
	first.thaw()
	goesOn(t, cc, func(map[string]bool) bool { return len(first.starts) > 0 })
	first.kill()
	other.kill()
	goesOn(t, cc, func(got map[string]bool) bool { return len(got) >= 2 })
}

// A channel that was idle while the server ended keeps its fleet.
func TestIdleChannelNeedsNoServer(t *testing.T) {
	_, at := serveReplicas(t, 2)
	s := startServer(t, "", always("a", at...))
	cc := watching(t, "warmpath://"+s.address+"/", grpc.WithIdleTimeout(100*time.Millisecond))
	_, err := ask(t, cc)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for state := cc.GetState(); state != connectivity.Idle; state = cc.GetState() {
		require.True(t, cc.WaitForStateChange(ctx, state))
	}
	s.kill()
	_, err = ask(t, cc)
	require.NoError(t, err)
}

func TestNothingIsKnownYet(t *testing.T) {
	s := startServer(t, "", always("a"))
	s.freeze()
	for name, target := range map[string]string{"no listener": deadAddress(t), "frozen": s.address} {
		t.Run(name, func(t *testing.T) {
			_, err := ask(t, watching(t, "warmpath://"+target+"/chat"))
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.ErrorContains(t, err, `no look-aside server has named the replicas of "chat"`)
		})
	}
}

// A server's refusal is not the status of the calls, and calls that wait for ready go on waiting.
func TestServerRefuses(t *testing.T) {
	l, err := net.Listen("tcp", deadAddress(t))
	require.NoError(t, err)
	refuses := grpc.NewServer() // without the service
	done := make(chan error)
	go func() { done <- refuses.Serve(l) }()
	cc := watching(t, "warmpath://"+l.Addr().String()+"/chat")
	_, err = ask(t, cc)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, `no look-aside server has named the replicas of "chat": rpc error: code = Unimplemented`)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	cancel()
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))

	refuses.Stop()
	require.NoError(t, <-done)
	_, at := serveReplicas(t, 1)
	startServer(t, l.Addr().String(), always("a", at...))
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = healthpb.NewHealthClient(cc).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
}

// decided returns the policy that decided a call.
func decided(t *testing.T, cc *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var d client.Decision
	_, err := healthpb.NewHealthClient(cc).Check(client.WithDecision(ctx, &d), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	return d.Policy
}

func TestPushedPolicy(t *testing.T) {
	_, at := serveReplicas(t, 1)
	s := startServer(t, "", func(*warmpathv1.WatchStart) *answer {
		return &answer{Incarnation: "a", Config: serviceConfig(1, "power_of_two_choices"), Fleet: fleetOf(at...)}
	})
	cc := watching(t, "warmpath://"+s.address+"/")
	require.Equal(t, "power_of_two_choices", decided(t, cc))
	until := func(policy string) {
		t.Helper()
		require.Eventually(t, func() bool { return decided(t, cc) == policy }, 20*time.Second, time.Millisecond)
	}
	s.send(&answer{Config: serviceConfig(2, "consistent_hash")})
	until("consistent_hash")
	s.send(&answer{Config: serviceConfig(3, "no_such_policy"), Fleet: fleetOf(at...)})
	s.send(&answer{Config: &warmpathv1.ConfigUpdate{Version: 4}, Fleet: fleetOf(at...)})
	s.send(&answer{Config: serviceConfig(5, "round_robin")})
	for {
		policy := decided(t, cc)
		if policy == "round_robin" {
			break
		}
		require.Equal(t, "consistent_hash", policy, "the last good one stays")
	}

	own := watching(t, "warmpath://"+s.address+"/", grpc.WithDisableServiceConfig())
	require.Equal(t, "round_robin", decided(t, own))
}

// Reservations are reported while their calls are under way, and end with them.
func TestReservationsAreReported(t *testing.T) {
	_, at := serveReplicas(t, 1)
	s := startServer(t, "", always("a", at...))
	cc := watching(t, "warmpath://"+s.address+"/")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	call, end := context.WithCancel(ctx)
	defer end()
	stream, err := healthpb.NewHealthClient(cc).Watch(call, &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = stream.Recv()
	require.NoError(t, err)
	number := uint64(0)
	reported := func(want uint32) {
		t.Helper()
		for {
			select {
			case r := <-s.reports:
				number++
				require.Equal(t, number, r.GetNumber())
				require.Equal(t, number == 1, r.GetComplete())
				if o := r.GetLoads().GetOngoing(); len(o) == 1 && o[0] == want {
					return
				}
			case <-ctx.Done():
				require.Fail(t, "no report")
			}
		}
	}
	s.send(&answer{Load: &warmpathv1.LoadUpdate{Snapshot: true, NextMs: 10}})
	reported(1)
	runtime.KeepAlive(stream) // an abandoned one would end
	end()
	reported(0)
}
