package tests

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
)

// A service config from the resolver that names another policy is logged once, and counted.
func TestDroppedPolicyIsLoggedOnce(t *testing.T) {
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
		require.NotContains(t, log.String(), "level=WARN")
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
		`{"tokenizer":{"from":"ftp://x"}}`:                      "tokenizer: from",
		`{"max_ongoing_requests":"many"}`:                       "max_ongoing_requests",
	} {
		t.Run(field, func(t *testing.T) {
			_, err := client.New("warmpath:///127.0.0.1:1", client.WithConfig(object), insecureOption())
			require.ErrorContains(t, err, field)
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

// A change of configuration on a live channel takes effect for the next call. Open streams go on, and queued calls
// move to the new configuration.
func TestConfigChangeOnLiveChannel(t *testing.T) {
	release, entered := make(chan struct{}), make(chan struct{}, 8)
	r := start(t, &replica{unary: func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.Payload.Body) > 0 {
			entered <- struct{}{}
			<-release
		}
		return &testpb.SimpleResponse{}, nil
	}})
	sc := func(policyName string, max int) string {
		return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{%q:{}},"max_ongoing_requests":%d}}]}`, policyName, max)
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
	mr.set(state(sc("power_of_two_choices", 3), r)) // one for each of the calls below
	<-entered                                       // the new configuration admits the waiter
	var d client.Decision
	_, err = stub.UnaryCall(client.WithDecision(deadline(t), &d), simple(""))
	require.NoError(t, err)
	require.Equal(t, "power_of_two_choices", d.Policy)
	close(release)
	require.NoError(t, <-errs)
	require.NoError(t, <-errs)
	eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
}

// The bound holds across changes of the configuration: a call that was sent before counts until it ends, and then those
// that wait are served.
func TestConfigChangeKeepsTheBound(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		release, entered, under := make(chan struct{}), make(chan struct{}, 8), atomic.Int64{}
		serve := func() error {
			defer under.Add(-1)
			if under.Add(1) > 1 {
				return status.Error(codes.ResourceExhausted, "the replica serves one request")
			}
			entered <- struct{}{}
			<-release
			return nil
		}
		r := start(t, &replica{
			unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return &testpb.SimpleResponse{}, serve()
			},
			stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				if err := serve(); err != nil {
					return err
				}
				return s.Send(answer("x"))
			},
		})
		sc := func(name string) string {
			return fmt.Sprintf(`{"loadBalancingConfig":[{"warmpath":{"policy":{%q:{}},"max_ongoing_requests":1}}]}`, name)
		}
		mr := newDirectory("bound", state(sc("round_robin"), r))
		m, log := newMeter(t), new(logged)
		cc := dial(t, "bound:///x", grpc.WithResolvers(mr), m.option, client.WithLogger(log.logger()))
		stub, errs := testpb.NewTestServiceClient(cc), make(chan error, 3)
		call := func() {
			if kind == "unary" {
				_, err := stub.UnaryCall(deadline(t), simple("x"))
				errs <- err
				return
			}
			_, err := read(stub.StreamingOutputCall(deadline(t), prompt("x")))
			errs <- err
		}
		waiting := func(n int64) {
			eventually(t, "calls wait", func() bool { return m.sum(t, "warmpath.queue.length") == n || len(errs) > 0 })
		}
		go call()
		<-entered
		go call()
		waiting(1)
		for i, name := range []string{"power_of_two_choices", "kv_aware", "round_robin"} {
			mr.set(state(sc(name), r))
			eventually(t, "it is in force", func() bool { return strings.Count(log.String(), "is bound") == i+2 })
			waiting(1)
		}
		go call()
		waiting(2)
		close(release)
		for range 3 {
			require.NoError(t, <-errs)
		}
		eventually(t, "nothing is reserved", func() bool { return m.ongoing(t) == 0 })
	})
}

// A switch of the policy's name, there and back, under load: no call fails.
func TestPolicySwitchUnderLoad(t *testing.T) {
	rs := replicas(t, 3)
	names := []string{`{"round_robin":{}}`, `{"warmpath":{"policy":{"round_robin":{}},"max_ongoing_requests":3}}`, `{"warmpath":{}}`, `{"pick_first":{}}`}
	mr := newDirectory("switch", state(`{"loadBalancingConfig":[`+names[0]+`]}`, rs...))
	m := newMeter(t)
	cc := dial(t, "switch:///x", grpc.WithResolvers(mr), m.option, client.WithLogger(new(logged).logger()))
	stub := testpb.NewTestServiceClient(cc)
	calls := startLoad(t, 16, func(int, int) {
		if _, err := stub.UnaryCall(deadlineOf(time.Minute), simple("x")); err != nil {
			t.Error(err)
		}
		if _, err := read(stub.StreamingOutputCall(deadlineOf(time.Minute), prompt("x"))); err != nil {
			t.Error(err)
		}
	})
	for i := range 24 {
		calls.advance(20)
		mr.set(state(`{"loadBalancingConfig":[`+names[(i+1)%len(names)]+`]}`, rs...))
	}
	calls.end()
	require.Zero(t, m.ongoing(t))
	mr.set(state(`{"loadBalancingConfig":[`+names[1]+`]}`, rs...))
	eventually(t, "the queue and the bound are there again", func() bool {
		var d client.Decision
		_, err := stub.UnaryCall(client.WithDecision(deadline(t), &d), simple("x"))
		return err == nil && d.Reason == policy.ReasonRoundRobin
	})
}
