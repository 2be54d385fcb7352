package tests

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	modelserver "github.com/warmpath/warmpath/server/replica"
)

// patient is an outlier config: three calls eject a replica, a call is late after one second, and the ejection lasts.
const (
	threshold = 3
	patient   = `"ejection":{"failures":3,"late_min":"1s","base_time":"1h"}`
)

// watcher is a channel whose view of its replicas a test reads.
type watcher struct {
	*testing.T
	stub  testpb.TestServiceClient
	meter *meter
	under sync.WaitGroup // calls that wait for an answer
	ctx   context.Context
}

func watching(t *testing.T, target string, rs []*replica, opts ...grpc.DialOption) *watcher {
	m := newMeter(t)
	cc := dial(t, target, append(opts, m.option)...)
	ctx, cancel := context.WithCancel(deadline(t))
	w := &watcher{T: t, stub: testpb.NewTestServiceClient(cc), meter: m, ctx: ctx}
	t.Cleanup(func() {
		cancel()
		w.under.Wait()
	})
	for _, r := range rs { // a successful unary call shows the connection
		eventually(t, "connection to "+r.addr, func() bool {
			_, err := w.stub.UnaryCall(client.WithPin(ctx, r.addr), simple(""))
			return err == nil
		})
	}
	return w
}

// is reports whether the channel has the replica in a condition.
func (w *watcher) is(r *replica, condition string) bool {
	return w.meter.sum(w.T, "warmpath.replica.condition", telemetry.KeyReplica.String(r.addr), telemetry.KeyCondition.String(condition)) == 1
}

// ask makes one call and waits for its first message, no longer than given.
func (w *watcher) ask(ctx context.Context, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s, err := w.stub.StreamingOutputCall(ctx, prompt("x"))
	if err == nil {
		_, err = s.Recv()
	}
	return err
}

// leave makes one call and does not wait for it.
func (w *watcher) leave(r *replica) {
	before := r.calls.Load()
	w.under.Go(func() { _ = w.ask(client.WithPin(w.ctx, r.addr), time.Hour) })
	eventually(w.T, "the call has come", func() bool { return r.calls.Load() > before })
}

// meet lets the channel measure the latency of the others, and leaves calls up to the threshold on a replica.
func (w *watcher) meet(hung *replica, others []*replica) {
	for range 10 {
		for _, r := range others {
			require.NoError(w.T, w.ask(client.WithPin(w.ctx, r.addr), 20*time.Second))
		}
	}
	for range threshold {
		w.leave(hung)
	}
}

// find calls the others until the channel has ejected a replica that hangs.
func (w *watcher) find(hung *replica, others []*replica) {
	eventually(w.T, "it is found", func() bool {
		require.NoError(w.T, w.ask(client.WithPin(w.ctx, others[0].addr), 20*time.Second))
		return w.is(hung, "ejected")
	})
}

// hanging starts four replicas, the first of which takes calls and never answers them.
func hanging(t *testing.T) (hung *replica, others []*replica, all []*replica) {
	all = replicas(t, 4)
	all[0].stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		<-s.Context().Done()
		return s.Context().Err()
	}
	return all[0], all[1:], all
}

const hangingClients = 16

// Without a look-aside server every client loses as many calls as the threshold on a replica that hangs, and not
// more.
func TestHungReplicaAlone(t *testing.T) {
	hung, others, all := hanging(t)
	var clients []*watcher
	for range hangingClients {
		clients = append(clients, watching(t, target(all...), all, client.WithConfig(config(`{"round_robin":{}}`, patient))))
	}
	hung.calls.Store(0)
	for _, c := range clients {
		c.meet(hung, others)
	}
	for _, c := range clients {
		c.find(hung, others)
		for range 20 {
			require.NoError(t, c.ask(c.ctx, 20*time.Second))
		}
	}
	t.Logf("%d calls reached the replica that hangs", hung.calls.Load())
	require.EqualValues(t, hangingClients*threshold, hung.calls.Load())
}

// With one, only the threshold of one client and the calls already under way are lost.
func TestHungReplicaShared(t *testing.T) {
	hung, others, all := hanging(t)
	text := "    policy: {round_robin: {}}\n    dialects: " + dialects +
		"\n    ejection: {failures: 3, late_min: 1s, base_time: 1h}\n    replicas:"
	for _, r := range all {
		text += fmt.Sprintf("\n    - address: %q", r.addr)
	}
	at, _ := lookasideWith(t, "", text)
	var clients []*watcher
	for range hangingClients {
		clients = append(clients, watching(t, "warmpath://"+at+"/chat", all))
	}
	hung.calls.Store(0)
	for _, c := range clients[1:] {
		c.leave(hung) // under way
	}
	clients[0].meet(hung, others)
	clients[0].find(hung, others)
	for i, c := range clients {
		eventually(t, fmt.Sprint("client ", i, " has the report"), func() bool { return c.is(hung, "ejected") || c.is(hung, "half_open") })
	}
	var lost atomic.Int64
	var asked sync.WaitGroup
	for _, c := range clients {
		asked.Go(func() {
			for range 40 {
				if err := c.ask(c.ctx, 20*time.Second); err != nil {
					lost.Add(1)
				}
			}
		})
	}
	asked.Wait()
	t.Logf("%d calls reached the replica that hangs, %d of them after it was found", hung.calls.Load(), lost.Load())
	require.Zero(t, lost.Load())
	require.EqualValues(t, threshold+hangingClients-1, hung.calls.Load())
}

// Issue 12.41: a replica that hangs is ejected although first_token_timeout is shorter than late_min, after no more
// calls than the threshold. An attempt that times out counts as a failure, and its answer elsewhere counts once more.
func TestHungReplicaUnderFirstTokenTimeout(t *testing.T) {
	hung, _, all := hanging(t)
	w := watching(t, target(all...), all, client.WithConfig(config(`{"consistent_hash":{}}`,
		`"first_token_timeout":"2s"`, `"ejection":{"failures":3,"base_time":"1h"}`)))
	// All calls begin at the replica that hangs: a call that began elsewhere and was late might move there, and would stay.
	ctx := client.WithSession(w.ctx, sessionAt(t, all, 0, hung.addr))
	hung.calls.Store(0)
	eventually(t, "it is found", func() bool {
		require.NoError(t, w.ask(ctx, 20*time.Second), "another replica serves it")
		return w.is(hung, "ejected")
	})
	for range 20 {
		require.NoError(t, w.ask(ctx, 20*time.Second))
	}
	require.EqualValues(t, 2, hung.calls.Load(), "each counts twice")
}

// Issue 12.41: if first messages take longer than first_token_timeout on all replicas, no replica is ejected for it.
func TestFirstTokenTimeoutBelowTheUsual(t *testing.T) {
	_, _, all := hanging(t)
	var paused atomic.Int64
	for _, r := range all {
		r.stream = func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			paused.Add(1)
			<-s.Context().Done()
			return s.Context().Err()
		}
	}
	w := watching(t, target(all...), all, client.WithConfig(config(`{"round_robin":{}}`,
		`"first_token_timeout":"10ms"`, `"ejection":{"failures":3,"base_time":"1h"}`)))
	asked := int64(0)
	eventually(t, "attempts are given up", func() bool {
		asked++
		require.Error(t, w.ask(w.ctx, 200*time.Millisecond))
		return asked >= 12 && paused.Load() > asked
	})
	for _, r := range all {
		require.True(t, w.is(r, "healthy"))
	}
}

// A replica that fails is ejected, probed, and restored, with and without interceptors.
func TestFailingReplica(t *testing.T) {
	for _, policy := range []string{`{"round_robin":{}}`, `{"power_of_two_choices":{}}`} {
		t.Run(policy, func(t *testing.T) {
			rs := replicas(t, 4)
			var ill atomic.Bool
			rs[0].unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				if ill.Load() {
					return nil, status.Error(codes.Unavailable, "ill")
				}
				return &testpb.SimpleResponse{Username: rs[0].addr}, nil
			}
			w := watching(t, target(rs...), rs, client.WithConfig(config(policy, `"ejection":{"failures":3,"base_time":"100ms","slow_start":"1ms"}`)))
			ill.Store(true)
			rs[0].calls.Store(0)
			eventually(t, "it is ejected", func() bool {
				_, err := w.stub.UnaryCall(w.ctx, simple("x"))
				require.NoError(t, err, "another replica serves what it fails")
				return w.is(rs[0], "ejected")
			})
			require.GreaterOrEqual(t, rs[0].calls.Load(), int64(threshold))
			eventually(t, "its probes fail", func() bool {
				_, err := w.stub.UnaryCall(w.ctx, simple("x"))
				require.NoError(t, err)
				return w.meter.sum(t, "warmpath.ejections", telemetry.KeyCause.String("probe")) >= 2
			})
			ill.Store(false)
			eventually(t, "it is back", func() bool {
				_, err := w.stub.UnaryCall(w.ctx, simple("x"))
				require.NoError(t, err)
				return w.is(rs[0], "healthy")
			})
			require.EqualValues(t, 1, w.meter.sum(t, "warmpath.ejections", telemetry.KeyCause.String("failures")))
			require.GreaterOrEqual(t, w.meter.sum(t, "warmpath.probes"), int64(3))
		})
	}
}

// The ejection also applies to calls without interceptors, including those picked without a lock.
func TestFailingReplicaOfBareCalls(t *testing.T) {
	for _, policy := range []string{`{"round_robin":{}}`, `{"power_of_two_choices":{}}`} {
		t.Run(policy, func(t *testing.T) {
			rs := replicas(t, 4)
			var ill atomic.Bool
			rs[0].unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				if ill.Load() {
					return nil, status.Error(codes.Internal, "ill")
				}
				return &testpb.SimpleResponse{}, nil
			}
			cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithDefaultServiceConfig(
				`{"loadBalancingConfig":[{"warmpath":`+config(policy, patient)+`}]}`))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, cc.Close()) })
			stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
			eventually(t, "all are connected, since the only connected replica is never ejected", func() bool {
				_, err := stub.UnaryCall(ctx, simple("x"))
				require.NoError(t, err)
				return !slices.ContainsFunc(rs, func(r *replica) bool { return r.calls.Load() == 0 })
			})
			ill.Store(true)
			failed := 0
			for range 400 {
				if _, err := stub.UnaryCall(ctx, simple("x")); err != nil {
					failed++
				}
			}
			require.Equal(t, threshold, failed)
		})
	}
}

// A replica that reports that it drains keeps its sessions and gets no others until it stops.
func TestReplicaReportsThatItDrains(t *testing.T) {
	m, err := modelserver.New(modelserver.Config{DrainNotice: time.Hour, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	leaving := &replica{}
	l := listenLoopback(t)
	leaving.addr = l.Addr().String()
	leaving.server = grpc.NewServer(m.ServerOptions()...)
	testpb.RegisterTestServiceServer(leaving.server, leaving)
	ctx, drain := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, leaving.server, l) }()
	t.Cleanup(func() {
		drain()
		leaving.server.Stop()
		<-served
	})
	rs := []*replica{leaving, start(t, &replica{}), start(t, &replica{})}
	w := watching(t, target(rs...), rs, client.WithConfig(config(`{"consistent_hash":{}}`)))
	at := func(session string) string {
		reply, err := w.stub.UnaryCall(client.WithSession(w.ctx, session), simple("x"))
		require.NoError(t, err)
		return reply.Username
	}
	homes := map[string]string{}
	for i := range 60 {
		session := fmt.Sprint("old ", i)
		homes[session] = at(session)
	}
	drain()
	probes := 0
	eventually(t, "it reports that it drains", func() bool { // every answer reports it, also to calls pinned to it
		_, err := w.stub.UnaryCall(client.WithPin(w.ctx, leaving.addr), simple("x"))
		require.NoError(t, err)
		for range 20 {
			probes++
			if at(fmt.Sprint("probe ", probes)) == leaving.addr {
				return false
			}
		}
		return true
	})
	moved := 0
	for session, home := range homes {
		if at(session) != home {
			moved++
		}
	}
	require.LessOrEqual(t, moved, 5, "few share a place in the table of sessions")
	for i := range 60 {
		require.NotEqual(t, leaving.addr, at(fmt.Sprint("new ", i)))
	}
	leaving.server.Stop()
	for session := range homes {
		require.NotEqual(t, leaving.addr, at(session))
	}
}

// A replica that fails at once and is connected before the others gets no more calls than eject it: calls wait while
// the others are being connected for the first time.
func TestFailingReplicaThatConnectsFirst(t *testing.T) {
	for _, c := range []struct {
		policy string
		bare   bool
	}{{`{"round_robin":{}}`, false}, {`{"power_of_two_choices":{}}`, false}, {`{"consistent_hash":{}}`, false}, {`{"round_robin":{}}`, true}, {`{"power_of_two_choices":{}}`, true}} {
		t.Run(fmt.Sprintf("%s bare=%v", c.policy, c.bare), func(t *testing.T) {
			ill := start(t, &replica{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return nil, status.Error(codes.Unavailable, "ill")
			}})
			rs := []*replica{ill, {}, {}}
			var late []net.Listener // gRPC connects once they are served
			for _, r := range rs[1:] {
				l := listenLoopback(t)
				r.addr, late = l.Addr().String(), append(late, l)
			}
			text := config(c.policy, patient)
			cc := dial(t, target(rs...), client.WithConfig(text))
			if c.bare {
				var err error
				cc, err = grpc.NewClient(target(rs...), insecureOption(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":`+text+`}]}`))
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, cc.Close()) })
			}
			stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
			const calls = 400
			var failed atomic.Int64
			var sent sync.WaitGroup
			sent.Go(func() {
				for i := range calls {
					if _, err := stub.UnaryCall(client.WithSession(ctx, fmt.Sprint(i)), simple("x")); err != nil {
						failed.Add(1)
					}
				}
			})
			eventually(t, "it fails calls", func() bool { return ill.calls.Load() >= threshold })
			for i, r := range rs[1:] {
				r.serve(late[i])
				t.Cleanup(r.server.Stop)
			}
			sent.Wait()
			require.EqualValues(t, threshold, ill.calls.Load())
			require.LessOrEqual(t, failed.Load(), int64(threshold))
			require.EqualValues(t, calls-failed.Load(), rs[1].calls.Load()+rs[2].calls.Load())
		})
	}
}

// If the others cannot be connected, a replica that fails is the last resort.
func TestFailingReplicaAlone(t *testing.T) {
	ill := start(t, &replica{unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		return nil, status.Error(codes.Unavailable, "ill")
	}})
	gone := listenLoopback(t)
	require.NoError(t, gone.Close())
	cc := dial(t, "warmpath:///"+ill.addr+","+gone.Addr().String(), client.WithConfig(config(`{"round_robin":{}}`, patient)))
	stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
	for range 20 {
		_, err := stub.UnaryCall(ctx, simple("x"))
		require.Equal(t, codes.Unavailable, status.Code(err))
	}
	require.GreaterOrEqual(t, ill.calls.Load(), int64(20))
}
