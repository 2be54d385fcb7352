package tests

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health" // client-side health checks
	healthsrv "google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/client"
)

// where makes one unary call and returns the address of the replica that answered.
func where(t testing.TB, ctx context.Context, cc *grpc.ClientConn, text string) string {
	t.Helper()
	reply, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple(text))
	require.NoError(t, err)
	return reply.Username
}

// settled waits until a channel without our interceptors has met every replica.
func settled(t testing.TB, cc *grpc.ClientConn, rs []*replica) {
	t.Helper()
	stub := testpb.NewTestServiceClient(cc)
	met := make(map[string]bool)
	ctx := deadline(t)
	i := 0
	eventually(t, "connections to all", func() bool {
		i++
		reply, err := stub.UnaryCall(metadata.AppendToOutgoingContext(ctx, "session_id", fmt.Sprint("settle", i)), simple(""))
		if err == nil {
			met[reply.Username] = true
		}
		return len(met) == len(rs)
	})
}

// logged collects log lines.
type logged struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func TestSessionPrecedence(t *testing.T) {
	rs := replicas(t, 4)
	cc := dial(t, target(rs...), client.WithConfig(`{"policy":{"consistent_hash":{}},"dialects":[{"methods":["`+unaryMethod+`"],"session":"3.2"}]}`))
	connected(t, cc, rs)
	// Sessions whose replicas all differ from one another.
	sessions := make([]string, 0, len(rs))
	for _, r := range rs {
		for i := 0; ; i++ {
			s := fmt.Sprintf("user-%d", i)
			if ringOrder(t, rs, s)[0] == r.addr {
				sessions = append(sessions, s)
				break
			}
		}
	}
	ctx := deadline(t)
	require.Equal(t, rs[0].addr, where(t, ctx, cc, sessions[0]), "the session in the message")
	ctx = metadata.AppendToOutgoingContext(ctx, "X-Session-ID", sessions[1])
	require.Equal(t, rs[1].addr, where(t, ctx, cc, sessions[0]), "x-session-id comes before it")
	ctx = metadata.AppendToOutgoingContext(ctx, "session-id", sessions[2])
	require.Equal(t, rs[2].addr, where(t, ctx, cc, sessions[0]), "session_id, in any spelling, before that")
	ctx = client.WithSession(ctx, sessions[3])
	require.Equal(t, rs[3].addr, where(t, ctx, cc, sessions[0]), "what the application says comes first")
}

func TestPinAndExclude(t *testing.T) {
	rs := replicas(t, 3)
	cc := dial(t, target(rs...), roundRobin())
	connected(t, cc, rs)
	for _, r := range rs {
		for range 3 {
			require.Equal(t, r.addr, where(t, client.WithPin(deadline(t), r.addr), cc, ""))
			require.NotEqual(t, r.addr, where(t, client.WithExclude(deadline(t), r.addr), cc, ""))
		}
	}
	stub := testpb.NewTestServiceClient(cc)
	_, err := stub.UnaryCall(client.WithExclude(deadline(t), rs[0].addr, rs[1].addr, rs[2].addr), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
	_, err = stub.UnaryCall(client.WithPin(deadline(t), "nobody"), simple(""))
	require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
}

// Channels that share nothing send a session, and a prompt, to the same replica.
func TestChannelsAgree(t *testing.T) {
	rs := replicas(t, 5)
	prompts := func(i int) string { return strings.Repeat(fmt.Sprintf("document %d. ", i), 200) }
	for _, policy := range []string{"consistent_hash", "prefix_cache_affinity"} {
		t.Run(policy, func(t *testing.T) {
			homes := make(map[int]string)
			used := make(map[string]bool)
			for c := range 3 {
				order := append(append([]*replica{}, rs[c:]...), rs[:c]...) // the resolver's order is nobody's business
				cc := dial(t, target(order...), client.WithConfig(config(`{"`+policy+`":{}}`)))
				connected(t, cc, rs)
				for i := range 30 {
					got := where(t, client.WithSession(deadline(t), fmt.Sprint("session ", i)), cc, prompts(i))
					if home, ok := homes[i]; ok {
						require.Equal(t, home, got, "channel %d, key %d", c, i)
					}
					homes[i] = got
					used[got] = true
				}
			}
			require.Greater(t, len(used), 2)
		})
	}
}

// A session stays where it is; when its replica dies it moves, the others do
// not, and it comes home when the replica is back.
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
	var l net.Listener
	eventually(t, "the port is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", r.addr)
		return err == nil
	})
	r.serve(l)
	t.Cleanup(func() { r.server.Stop() })
}

// Replicas are killed and come back under load: no call fails that had no first
// message yet, whatever its kind.
func TestDeathUnderLoad(t *testing.T) {
	for _, policy := range []string{"round_robin", "prefix_cache_affinity"} {
		t.Run(policy, func(t *testing.T) {
			rs := make([]*replica, 4)
			for i := range rs {
				rs[i] = start(t, &replica{}, grpc.WaitForHandlers(true))
			}
			m := newMeter(t)
			cc := dial(t, target(rs...), client.WithConfig(config(`{"`+policy+`":{}}`)), m.option)
			connected(t, cc, rs)
			stub := testpb.NewTestServiceClient(cc)
			var stop atomic.Bool
			var calls atomic.Int64
			var wg sync.WaitGroup
			defer wg.Wait()
			defer stop.Store(true)
			for w := range 8 {
				wg.Go(func() {
					for i := 0; !stop.Load(); i++ {
						text := strings.Repeat(fmt.Sprintf("%d of %d. ", i%20, w), 50)
						if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple(text)); err != nil {
							t.Errorf("unary: %v", err)
						}
						if n, err := read(stub.StreamingOutputCall(deadlineOf(20*time.Second), prompt(text))); err != nil && n == 0 {
							t.Errorf("stream: %v", err)
						}
						calls.Add(2)
					}
				})
			}
			advance := func(n int64) {
				goal := calls.Load() + n
				eventually(t, "calls go on", func() bool { return calls.Load() >= goal || t.Failed() })
			}
			for _, r := range []*replica{rs[0], rs[2]} {
				advance(200)
				r.server.Stop()
				served := r.calls.Load()
				advance(400)
				require.Equal(t, served, r.calls.Load(), "what is dead is not picked")
				revive(t, r)
				eventually(t, "a replica that is back is used again", func() bool { return r.calls.Load() > served || t.Failed() })
			}
			stop.Store(true)
			wg.Wait()
			require.Zero(t, m.ongoing(t))
		})
	}
}

// deadlineOf is a context that nobody cancels, for calls made in a loop.
func deadlineOf(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}

func TestNobodyThere(t *testing.T) {
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

// Only a service config, no interceptor: sessions in metadata work.
func TestBareSessions(t *testing.T) {
	rs := replicas(t, 4)
	for _, policy := range []string{"consistent_hash", "prefix_cache_affinity"} {
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

func TestBarePromptPolicySaysSoOnce(t *testing.T) {
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
	for _, policy := range []string{"round_robin", "power_of_two_choices", "consistent_hash", "prefix_cache_affinity"} {
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

// A service config from the resolver that names another policy is said once,
// and counted.
func TestDroppedPolicyIsToldOnce(t *testing.T) {
	for _, how := range []string{"New", "DialOptions"} {
		t.Run(how, func(t *testing.T) {
			r := start(t, &replica{})
			mr := newDirectory("elsewhere", state(`{"loadBalancingConfig":[{"round_robin":{}}]}`, r))
			var log logged
			m := newMeter(t)
			opts := []client.Option{client.WithLogger(log.logger()), m.option.(client.Option)}
			var cc *grpc.ClientConn
			var err error
			if how == "New" {
				cc = dial(t, "elsewhere:///x", opts[0], opts[1], grpc.WithResolvers(mr))
			} else {
				cc, err = grpc.NewClient("elsewhere:///x", append(client.DialOptions(opts...), insecureOption(), grpc.WithResolvers(mr))...)
				require.NoError(t, err)
				defer func() { require.NoError(t, cc.Close()) }()
			}
			for range 5 {
				where(t, deadline(t), cc, "x")
				_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("x")))
				require.NoError(t, err)
			}
			require.Equal(t, 1, strings.Count(log.String(), "do not reach the warmpath balancer"), log.String())
			require.EqualValues(t, 1, m.sum(t, "warmpath.handles.unbound"))
		})
	}
	t.Run("not when it is there", func(t *testing.T) {
		var log logged
		cc := dial(t, target(start(t, &replica{})), client.WithLogger(log.logger()), roundRobin())
		where(t, deadline(t), cc, "x")
		require.Empty(t, log.String())
	})
}

func TestBadConfigsAreRefused(t *testing.T) {
	for object, field := range map[string]string{
		`{"policy":{"nope":{}}}`:     "nope",
		`{"max_attempts":99}`:        "max_attempts",
		`{"session_keys":["x-bin"]}`: "session_keys",
		`{"policy":{"prefix_cache_affinity":{"match_rate_threshold":7}}}`: "match_rate_threshold",
		`{"polizy":{}}`: "polizy",
		`{"dialects":[{"methods":["nonsense"]}]}`:               "methods",
		`{"dialects":[{"methods":["/a.B/C"],"prompt":"3..2"}]}`: "prompt",
		`{"tokenizer":{"url":"nonsense"}}`:                      "tokenizer: url",
		`{"max_ongoing_requests":"many"}`:                       "max_ongoing_requests",
	} {
		t.Run(field, func(t *testing.T) {
			_, err := client.New("warmpath:///127.0.0.1:1", client.WithConfig(object), insecureOption())
			require.ErrorContains(t, err, field)
			require.ErrorContains(t, client.CheckOptions(client.WithConfig(object)), field)
			require.Panics(t, func() { client.DialOptions(client.WithConfig(object)) })

			sc := `{"loadBalancingConfig":[{"warmpath":` + object + `}]}`
			_, err = grpc.NewClient("passthrough:///x", insecureOption(), grpc.WithDefaultServiceConfig(sc))
			require.ErrorContains(t, err, field)

			mr := newDirectory("bad", state(sc, &replica{addr: "127.0.0.1:1"}))
			cc := dial(t, "bad:///x", grpc.WithResolvers(mr))
			_, err = testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple(""))
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.ErrorContains(t, err, field)
		})
	}
}

// Closing the channel ends the calls that wait for room and the streams that are
// open, and leaves nothing running.
func TestCloseWithCallsUnderWay(t *testing.T) {
	entered := make(chan struct{}, 1)
	r := start(t, &replica{stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		if err := s.Send(answer("first")); err != nil {
			return err
		}
		entered <- struct{}{}
		<-s.Context().Done()
		return s.Context().Err()
	}})
	m := newMeter(t)
	cc, err := client.New(target(r), insecureOption(), client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`)), m.option)
	require.NoError(t, err)
	stub := testpb.NewTestServiceClient(cc)
	s, err := stub.StreamingOutputCall(deadline(t), prompt(""))
	require.NoError(t, err)
	<-entered
	_, err = s.Recv()
	require.NoError(t, err)
	const waiting = 10
	errs := make(chan error, waiting)
	for i := range waiting {
		go func() {
			if i%2 == 0 {
				_, err := stub.UnaryCall(deadline(t), simple(""))
				errs <- err
				return
			}
			_, err := read(stub.StreamingOutputCall(deadline(t), prompt("")))
			errs <- err
		}()
	}
	eventually(t, "they wait", func() bool { return m.sum(t, "warmpath.queue.length") == waiting })
	require.NoError(t, cc.Close())
	for range waiting {
		require.Equal(t, codes.Canceled, status.Code(<-errs))
	}
	_, err = s.Recv()
	require.Equal(t, codes.Canceled, status.Code(err), "%v", err)
}

// A replica that says it is not healthy is as good as not connected under
// client-side health checks.
func TestHealth(t *testing.T) {
	rs := []*replica{{}, {}}
	hs := make([]*healthsrv.Server, len(rs))
	for i, r := range rs {
		hs[i] = healthsrv.NewServer()
		startWith(t, r, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, hs[i]) })
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

// A change of configuration on a live channel takes effect for the next call;
// streams that are open go on, and calls in the queue move to the new one.
func TestConfigChangeOnLiveChannel(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	r := start(t, &replica{unary: func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.Payload.Body) > 0 {
			entered <- struct{}{}
			<-release
		}
		return &testpb.SimpleResponse{}, nil
	}})
	sc := func(policy string, max int) string {
		return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{%q:{}},"max_ongoing_requests":%d}}]}`, policy, max)
	}
	mr := newDirectory("live", state(sc("round_robin", 1), r))
	m := newMeter(t)
	cc := dial(t, "live:///x", grpc.WithResolvers(mr), m.option)
	stub := testpb.NewTestServiceClient(cc)
	_, err := stub.UnaryCall(deadline(t), simple(""))
	require.NoError(t, err)
	errs := make(chan error, 3)
	call := func() { _, err := stub.UnaryCall(deadline(t), simple("hold")); errs <- err }
	go call()
	<-entered
	go call()
	eventually(t, "one waits", func() bool { return m.sum(t, "warmpath.queue.length") == 1 })
	mr.set(state(sc("power_of_two_choices", 2), r))
	<-entered // who waited has been let in by the new configuration
	var d client.Decision
	_, err = stub.UnaryCall(client.WithDecision(deadline(t), &d), simple(""))
	require.NoError(t, err)
	require.Equal(t, "power_of_two_choices", d.Policy)
	close(release)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	eventually(t, "nothing is booked", func() bool { return m.ongoing(t) == 0 })
}

// A switch of the policy's name, there and back, under load: no call fails.
func TestPolicySwitchUnderLoad(t *testing.T) {
	rs := replicas(t, 3)
	names := []string{`{"round_robin":{}}`, `{"warmpath":{"policy":{"round_robin":{}},"max_ongoing_requests":3}}`, `{"warmpath":{}}`, `{"pick_first":{}}`}
	mr := newDirectory("switch", state(`{"loadBalancingConfig":[`+names[0]+`]}`, rs...))
	m := newMeter(t)
	cc := dial(t, "switch:///x", grpc.WithResolvers(mr), m.option, client.WithLogger(new(logged).logger()))
	stub := testpb.NewTestServiceClient(cc)
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for range 16 {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple("x")); err != nil {
					t.Error(err)
				}
				if _, err := read(stub.StreamingOutputCall(deadlineOf(20*time.Second), prompt("x"))); err != nil {
					t.Error(err)
				}
				calls.Add(2)
			}
		})
	}
	for i := range 24 {
		goal := calls.Load() + 40
		eventually(t, "calls go on", func() bool { return calls.Load() >= goal || t.Failed() })
		mr.set(state(`{"loadBalancingConfig":[`+names[(i+1)%len(names)]+`]}`, rs...))
	}
	stop.Store(true)
	wg.Wait()
	require.Zero(t, m.ongoing(t))
	mr.set(state(`{"loadBalancingConfig":[`+names[1]+`]}`, rs...))
	eventually(t, "the queue and the bound are there again", func() bool {
		var d client.Decision
		_, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple("x"))
		return err == nil && d.Reason == routing.ReasonRoundRobin
	})
}

// between is an interceptor that runs after a replica was booked and before gRPC
// is asked for a stream.
func between(do func(ctx context.Context) error) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, a any, cc *grpc.ClientConn, next grpc.UnaryInvoker, o ...grpc.CallOption) error {
			if err := do(ctx); err != nil {
				return err
			}
			return next(ctx, method, q, a, cc, o...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
			if err := do(ctx); err != nil {
				return nil, err
			}
			return next(ctx, d, cc, method, o...)
		}),
	}
}

// A replica that leaves the fleet after it was booked, and before the call is
// sent, does not hold the call up: no further picker would come.
func TestReplicaLeavesBetweenBookingAndPick(t *testing.T) {
	rs := replicas(t, 2)
	dir := newDirectory("leaving", state("", rs...))
	var leave atomic.Bool
	m := newMeter(t)
	opts := append(between(func(ctx context.Context) error {
		if leave.CompareAndSwap(true, false) {
			dir.set(state("", rs[1]))
		}
		return nil
	}), grpc.WithResolvers(dir), m.option, client.WithConfig(config(`{"consistent_hash":{}}`)))
	cc := dial(t, "leaving:///x", opts...)
	stub := testpb.NewTestServiceClient(cc)
	session := sessionEndingAt(t, rs, rs[1].addr)
	for i := range 6 {
		dir.set(state("", rs...))
		connected(t, cc, rs)
		require.Equal(t, rs[0].addr, where(t, client.WithSession(deadline(t), session), cc, ""))
		leave.Store(true)
		var err error
		if i%2 == 0 {
			_, err = stub.UnaryCall(client.WithSession(deadline(t), session), simple(""))
		} else {
			_, err = read(stub.StreamingOutputCall(client.WithSession(deadline(t), session), prompt("")))
		}
		require.NoError(t, err)
		require.False(t, leave.Load())
		require.Zero(t, m.ongoing(t))
	}
}

// hooked is a context that runs a function when somebody looks for metadata in
// it: while the request key is taken, just before a replica is booked.
type hooked struct {
	context.Context
	do func()
}

func (h hooked) Value(k any) any {
	if fmt.Sprintf("%T", k) == "metadata.mdOutgoingKey" {
		h.do()
	}
	return h.Context.Value(k)
}

// A call whose end was told to grpc.OnFinish while a replica was being booked for
// it leaves no booking.
func TestCancelledWhileBooking(t *testing.T) {
	r := start(t, &replica{})
	m := newMeter(t)
	cc := dial(t, target(r), m.option, client.WithConfig(config(`{"consistent_hash":{}}`)))
	connected(t, cc, []*replica{r})
	for range 20 {
		ctx, cancel := context.WithCancel(deadline(t))
		finished := make(chan error, 1)
		hook := sync.OnceFunc(func() {
			cancel()
			finished <- <-finished // once told, and kept for below
		})
		_, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(hooked{ctx, hook}, prompt(""),
			grpc.OnFinish(func(err error) { finished <- err }))
		require.Equal(t, codes.Canceled, status.Code(err))
		require.Equal(t, codes.Canceled, status.Code(<-finished))
		require.Zero(t, m.ongoing(t))
	}
}

// Calls under way on the old Router, bare ones too, never wait for a picker that
// does not come when the first call with an interceptor brings a kept Router back.
func TestRoutersChangeUnderBarePicks(t *testing.T) {
	rs := replicas(t, 3)
	dir := newDirectory("mixed", state("", rs...))
	sc := func(i int) string {
		return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}},"max_queued_requests":%d}}]}`, 1+i%2)
	}
	cc, err := grpc.NewClient("mixed:///x", insecureOption(), grpc.WithResolvers(dir), grpc.WithDefaultServiceConfig(sc(0)))
	require.NoError(t, err)
	defer func() { require.NoError(t, cc.Close()) }()
	stub := testpb.NewTestServiceClient(cc)
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop.Store(true)
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				if _, err := stub.UnaryCall(deadlineOf(20*time.Second), simple("")); err != nil {
					t.Error(err)
				}
				calls.Add(1)
			}
		})
	}
	for i := range 50 {
		goal := calls.Load() + 20
		eventually(t, "calls go on", func() bool { return calls.Load() >= goal || t.Failed() })
		dir.set(state(sc(i), rs...))
	}
	stop.Store(true)
	wg.Wait()
}
