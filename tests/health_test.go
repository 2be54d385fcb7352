package tests

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
)

const (
	isServing  = healthpb.HealthCheckResponse_SERVING
	notServing = healthpb.HealthCheckResponse_NOT_SERVING
)

// engine is a replica with grpc.health.v1, which counts the clients that watch it.
type engine struct {
	*replica
	*health.Server
	watches, began atomic.Int64
}

func (e *engine) Watch(q *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	e.watches.Add(1)
	e.began.Add(1)
	defer e.watches.Add(-1)
	return e.Server.Watch(q, s)
}

// engines starts n of them.
func engines(t *testing.T, n int) (all []*engine, rs []*replica) {
	for range n {
		e := &engine{Server: health.NewServer()}
		e.replica = &replica{beside: func(s *grpc.Server) { healthpb.RegisterHealthServer(s, e) }}
		all, rs = append(all, e), append(rs, start(t, e.replica))
	}
	return all, rs
}

// A replica that reports that it does not serve gets no call while another serves, whatever the policy is, with and
// without interceptors. It is back once it serves.
func TestReplicaThatDoesNotServe(t *testing.T) {
	for _, policy := range []string{`{"round_robin":{}}`, `{"power_of_two_choices":{}}`, `{"consistent_hash":{}}`, `{"kv_aware":{}}`} {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s bare=%v", policy, bare), func(t *testing.T) {
				es, rs := engines(t, 3)
				es[0].SetServingStatus("", notServing)
				text := config(policy, `"ejection":{"slow_start":"off"}`)
				cc := dial(t, target(rs...), client.WithConfig(text))
				if bare {
					var err error
					cc, err = grpc.NewClient(target(rs...), insecureOption(), grpc.WithDefaultServiceConfig(
						`{"loadBalancingConfig":[{"warmpath":`+text+`}]}`))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, cc.Close()) })
				}
				stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
				call := func(i int) string {
					reply, err := stub.UnaryCall(client.WithSession(ctx, fmt.Sprint("s", i)), simple(fmt.Sprint("prompt ", i)))
					require.NoError(t, err)
					return reply.Username
				}
				for i := range 100 {
					require.NotEqual(t, rs[0].addr, call(i))
				}
				es[0].SetServingStatus("", isServing)
				i := 0
				eventually(t, "it gets calls", func() bool { i++; return call(i) == rs[0].addr })
				es[0].SetServingStatus("", notServing)
				streak := 0
				eventually(t, "it gets none", func() bool {
					i++
					streak++
					if call(i) == rs[0].addr {
						streak = 0
					}
					return streak > 100
				})
			})
		}
	}
}

// A replica that does not serve keeps its place in the ring: no session of another moves, and its own come back to it.
func TestReplicaThatDoesNotServeKeepsItsPlace(t *testing.T) {
	es, rs := engines(t, 4)
	m := newMeter(t)
	cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"consistent_hash":{}}`)))
	connected(t, cc, rs)
	stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
	at := func(i int) string {
		reply, err := stub.UnaryCall(client.WithSession(ctx, fmt.Sprint("s", i)), simple(""))
		require.NoError(t, err)
		return reply.Username
	}
	is := func(condition string) bool {
		return m.sum(t, "warmpath.replica.condition", telemetry.KeyReplica.String(rs[0].addr), telemetry.KeyCondition.String(condition)) == 1
	}
	const sessions = 200
	var homes [sessions]string
	for i := range homes {
		homes[i] = at(i)
	}
	es[0].SetServingStatus("", notServing)
	eventually(t, "the client knows it", func() bool { return is("ejected") })
	require.EqualValues(t, 1, m.sum(t, "warmpath.ejections", telemetry.KeyCause.String("not_serving")))
	for i, home := range homes {
		if now := at(i); home == rs[0].addr {
			require.NotEqual(t, home, now)
		} else {
			require.Equal(t, home, now)
		}
	}
	es[0].SetServingStatus("", isServing)
	eventually(t, "the client knows it", func() bool { return is("healthy") })
	for i, home := range homes {
		require.Equal(t, home, at(i))
	}
}

// If no replica serves, all are used, which is logged once.
func TestNoReplicaServes(t *testing.T) {
	es, rs := engines(t, 3)
	for _, e := range es {
		e.SetServingStatus("", notServing)
	}
	var log logged
	cc := dial(t, target(rs...), roundRobin(), client.WithLogger(log.logger()))
	stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
	const text = "every replica that is connected reports that it does not serve"
	eventually(t, "all get calls", func() bool {
		for range 30 {
			_, err := stub.UnaryCall(ctx, simple("x"))
			require.NoError(t, err)
		}
		return rs[0].calls.Load() > 0 && rs[1].calls.Load() > 0 && rs[2].calls.Load() > 0
	})
	eventually(t, "it is logged", func() bool { return strings.Count(log.String(), text) == 1 })
	es[1].SetServingStatus("", isServing)
	streak := 0
	eventually(t, "the one that serves gets all", func() bool {
		streak++
		if reply, err := stub.UnaryCall(ctx, simple("x")); err != nil || reply.Username != rs[1].addr {
			streak = 0
		}
		return streak > 30
	})
	require.Equal(t, 1, strings.Count(log.String(), text))
}

// health_service names the service that is watched, or none.
func TestHealthService(t *testing.T) {
	for name, c := range map[string]struct {
		field string
		gets  bool
	}{
		"the whole replica": {`"health_service":""`, false},
		"off":               {`"health_service":"off"`, true},
		"one that serves":   {`"health_service":"v.Engine"`, true},
		"one that does not": {`"health_service":"v.Other"`, false},
		"one that is not":   {`"health_service":"v.Absent"`, false},
	} {
		t.Run(name, func(t *testing.T) {
			es, rs := engines(t, 2)
			es[0].SetServingStatus("", notServing)
			es[0].SetServingStatus("v.Engine", isServing)
			es[0].SetServingStatus("v.Other", notServing)
			for _, service := range []string{"v.Engine", "v.Other", "v.Absent"} {
				es[1].SetServingStatus(service, isServing)
			}
			cc := dial(t, target(rs...), client.WithConfig(config(`{"round_robin":{}}`, c.field)))
			stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
			done := func() bool {
				_, err := stub.UnaryCall(ctx, simple("x"))
				require.NoError(t, err)
				return rs[1].calls.Load() > 50 && (!c.gets || rs[0].calls.Load() > 0)
			}
			eventually(t, "calls", done)
			require.Equal(t, c.gets, rs[0].calls.Load() > 0)
		})
	}
}

// A client watches each replica once. The watch ends with the channel, and a new connection begins another.
func TestOneWatchAConnection(t *testing.T) {
	es, rs := engines(t, 2)
	cc, err := client.New(target(rs...), insecureOption())
	require.NoError(t, err)
	connected(t, cc, rs)
	for _, e := range es {
		eventually(t, "it is watched", func() bool { return e.watches.Load() == 1 })
	}
	rs[0].server.Stop()
	again := &replica{beside: rs[0].beside}
	l := listenAt(t, rs[0].addr)
	again.serve(l)
	t.Cleanup(again.server.Stop)
	eventually(t, "it is watched again", func() bool { return es[0].began.Load() == 2 && es[0].watches.Load() == 1 })
	require.EqualValues(t, 1, es[1].began.Load())
	require.NoError(t, cc.Close())
	for _, e := range es {
		eventually(t, "its watch ends", func() bool { return e.watches.Load() == 0 })
	}
}

// A replica whose health service does not answer is used all the same.
func TestHealthThatDoesNotAnswer(t *testing.T) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	hangs := &replica{beside: func(s *grpc.Server) { healthpb.RegisterHealthServer(s, speechless{stop: stop}) }}
	cc := dial(t, target(start(t, hangs)), roundRobin())
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("x"))
	require.NoError(t, err)
}

// speechless is a health service that never answers.
type speechless struct {
	healthpb.UnimplementedHealthServer
	stop chan struct{}
}

func (s speechless) Watch(_ *healthpb.HealthCheckRequest, w grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	select {
	case <-s.stop:
	case <-w.Context().Done():
	}
	return context.Canceled
}

// A name that cannot be sent is refused at dial.
func TestHealthServiceIsChecked(t *testing.T) {
	_, err := client.New("warmpath:///127.0.0.1:1", insecureOption(), client.WithConfig(config(`{"round_robin":{}}`, `"health_service":"`+strings.Repeat("x", 257)+`"`)))
	require.ErrorContains(t, err, "health_service")
}

// A watch that fails says nothing: the last answer stays, and a replica that has given none serves.
func TestHealthWatchThatFails(t *testing.T) {
	for name, first := range map[string]*healthpb.HealthCheckResponse{
		"at once": nil, "after NOT_SERVING": {Status: notServing}, "after SERVING": {Status: isServing},
	} {
		t.Run(name, func(t *testing.T) {
			var failed atomic.Bool
			e := &replica{beside: func(s *grpc.Server) {
				healthpb.RegisterHealthServer(s, watchOnce{first: first, failed: &failed})
			}}
			rs := []*replica{start(t, e), start(t, &replica{})}
			stub, ctx := testpb.NewTestServiceClient(dial(t, target(rs...), roundRobin())), deadline(t)
			call := func() {
				_, err := stub.UnaryCall(ctx, simple("x"))
				require.NoError(t, err)
			}
			eventually(t, "the watch fails", func() bool { call(); return failed.Load() && rs[1].calls.Load() > 0 })
			for range 50 {
				call()
			}
			require.Equal(t, first.GetStatus() != notServing, e.calls.Load() > 0)
		})
	}
}

// watchOnce is a health service whose watches fail, after one answer if there is any.
type watchOnce struct {
	healthpb.UnimplementedHealthServer
	first  *healthpb.HealthCheckResponse
	failed *atomic.Bool
}

func (o watchOnce) Watch(_ *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	defer o.failed.Store(true)
	if o.first != nil {
		_ = s.Send(o.first)
	}
	return status.Error(codes.Internal, "no health")
}
