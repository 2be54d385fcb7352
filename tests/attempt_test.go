package tests

import (
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// answering makes a replica answer every call with the error of a function. If early is set, streams send headers
// first.
func answering(early bool, f func() error) *replica {
	return &replica{
		unary: func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if err := f(); err != nil {
				return nil, err
			}
			return &testpb.SimpleResponse{}, nil
		},
		stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if early {
				if err := s.SendHeader(metadata.Pairs("early", "yes")); err != nil {
					return err
				}
			}
			if err := f(); err != nil {
				return err
			}
			return s.Send(answer("ok"))
		},
	}
}

func refusing(c codes.Code, text string) func() error {
	return func() error { return status.Error(c, text) }
}

func read(s grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse], err error) (int, error) {
	n := 0
	for err == nil {
		if _, err = s.Recv(); err == nil {
			n++
		}
	}
	if err == io.EOF {
		return n, nil
	}
	return n, err
}

func TestAttempts(t *testing.T) {
	tests := []struct {
		name  string
		first func() error // what every replica but the last answers
		early bool
		calls int64 // that reach the failing replicas
		code  codes.Code
	}{
		{"unavailable goes to another", refusing(codes.Unavailable, "x"), false, 1, codes.OK},
		{"unavailable after headers goes to another", refusing(codes.Unavailable, "x"), true, 1, codes.OK},
		{"rejected goes to another", refusing(codes.ResourceExhausted, "busy"), false, 1, codes.OK},
		{"rejected twice is final", refusing(codes.ResourceExhausted, "busy"), false, 2, codes.ResourceExhausted},
		{"internal goes to another", refusing(codes.Internal, "EngineCore encountered an issue"), false, 1, codes.OK},
		{"internal after headers goes to another", refusing(codes.Internal, "x"), true, 1, codes.OK},
		{"internal twice is final", refusing(codes.Internal, "x"), false, 2, codes.Internal},
		{"invalid is not retried", refusing(codes.InvalidArgument, "x"), true, 1, codes.InvalidArgument},
	}
	for _, tt := range tests {
		for _, kind := range []string{"unary", "stream"} {
			if kind == "unary" && tt.early {
				continue
			}
			t.Run(tt.name+"/"+kind, func(t *testing.T) {
				good := start(t, &replica{})
				rs := []*replica{good}
				var failed atomic.Int64
				for range min(int(tt.calls), 2) {
					rs = append(rs, start(t, answering(tt.early, func() error { failed.Add(1); return tt.first() })))
				}
				cc := dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`)))
				stub := testpb.NewTestServiceClient(cc)
				connectedExcept(t, cc, rs)
				// A session for which the good replica is last in the order.
				ctx := client.WithSession(deadline(t), sessionAt(t, rs, len(rs)-1, good.addr))
				failed.Store(0)
				var d client.Decision
				ctx = client.WithDecision(ctx, &d)
				var err error
				if kind == "unary" {
					_, err = stub.UnaryCall(ctx, simple("a"))
				} else {
					_, err = read(stub.StreamingOutputCall(ctx, prompt("a")))
				}
				require.Equal(t, tt.code, status.Code(err), "%v", err)
				require.EqualValues(t, tt.calls, failed.Load())
				if tt.code == codes.OK {
					require.Equal(t, good.addr, d.Replica)
					require.EqualValues(t, tt.calls+1, d.Attempts)
					require.Equal(t, policy.ReasonRetry, d.Reason)
				}
			})
		}
	}
}

// connectedExcept waits for the connections without expecting good answers.
func connectedExcept(t *testing.T, cc *grpc.ClientConn, rs []*replica) {
	t.Helper()
	stub := testpb.NewTestServiceClient(cc)
	for _, r := range rs {
		eventually(t, "connection to "+r.addr, func() bool {
			before := r.calls.Load()
			_, _ = stub.UnaryCall(client.WithPin(t.Context(), r.addr), simple(""))
			return r.calls.Load() > before
		})
	}
}

// sessionAt finds a session for which a replica has this place on the ring, 0 is the first.
func sessionAt(t *testing.T, rs []*replica, place int, addr string) string {
	t.Helper()
	for i := range 10000 {
		session := strings.Repeat("s", i%17) + string(rune('a'+i%26)) + strings.Repeat("x", i/26)
		if order := ringOrder(t, rs, session); order[place] == addr {
			return session
		}
	}
	t.Fatal("no such session")
	return ""
}

// Issue 12.3: RESOURCE_EXHAUSTED without warmpath's trailer may be a tenant's quota. The call is tried on one other
// replica. If there is no other, it fails at once, however long the deadline is.
func TestPlainRejectionIsTriedOnOneOther(t *testing.T) {
	for n, want := range map[int]int64{1: 1, 5: 2} {
		kinds(t, func(t *testing.T, kind string) {
			var failed atomic.Int64
			rs := make([]*replica, n)
			for i := range rs {
				rs[i] = start(t, answering(false, func() error { failed.Add(1); return status.Error(codes.ResourceExhausted, "busy") }))
			}
			cc := dial(t, target(rs...), roundRobin())
			stub := testpb.NewTestServiceClient(cc)
			connectedExcept(t, cc, rs)
			failed.Store(0)
			for _, r := range rs {
				r.calls.Store(0)
			}
			var err error
			if kind == "unary" {
				_, err = stub.UnaryCall(deadline(t), simple("a"))
			} else {
				_, err = read(stub.StreamingOutputCall(deadline(t), prompt("a")))
			}
			require.Equal(t, codes.ResourceExhausted, status.Code(err))
			require.Equal(t, want, failed.Load())
			for _, r := range rs {
				require.LessOrEqual(t, r.calls.Load(), int64(1), "each attempt goes to a replica not tried yet")
			}
		})
	}
}

// A request that was sent and then got UNAVAILABLE is sent at most twice in all.
func TestSentTwiceAtMost(t *testing.T) {
	var failed atomic.Int64
	rs := make([]*replica, 4)
	for i := range rs {
		rs[i] = start(t, answering(true, func() error { failed.Add(1); return status.Error(codes.Unavailable, "died") }))
	}
	cc := dial(t, target(rs...), roundRobin())
	connectedExcept(t, cc, rs)
	failed.Store(0)
	_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a")))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.EqualValues(t, 2, failed.Load())
}

func TestNeverAfterTheFirstMessage(t *testing.T) {
	var calls atomic.Int64
	die := func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
		calls.Add(1)
		if err := s.Send(answer("first")); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "died")
	}
	cc := dial(t, target(start(t, &replica{stream: die}), start(t, &replica{stream: die})), roundRobin())
	n, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a")))
	require.Equal(t, 1, n)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.EqualValues(t, 1, calls.Load())
}

// After the application has read the headers, the call is not retried.
func TestNeverAfterHeader(t *testing.T) {
	var calls atomic.Int64
	release := make(chan struct{})
	early := func() *replica {
		return start(t, answering(true, func() error { calls.Add(1); <-release; return status.Error(codes.Unavailable, "died") }))
	}
	cc := dial(t, target(early(), early()), roundRobin())
	s, err := testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a"))
	require.NoError(t, err)
	md, err := s.Header()
	require.NoError(t, err)
	require.Equal(t, []string{"yes"}, md.Get("early"))
	close(release)
	_, err = s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.EqualValues(t, 1, calls.Load())
}

// If the service config has a retryPolicy, gRPC retries and warmpath does not.
func TestRetryPolicyOfTheServiceConfigWins(t *testing.T) {
	var failed atomic.Int64
	rs := make([]*replica, 5)
	for i := range rs {
		rs[i] = start(t, answering(false, func() error { failed.Add(1); return status.Error(codes.Unavailable, "x") }))
	}
	sc := `{"loadBalancingConfig":[{"warmpath":{"policy":{"round_robin":{}}}}],
		"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
	cc := dial(t, target(rs...), grpc.WithDefaultServiceConfig(sc))
	connectedExcept(t, cc, rs)
	failed.Store(0)
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a"))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.EqualValues(t, 4, failed.Load())
}

// Transparent retries and warmpath's retries resend a prompt longer than gRPC's replay buffer.
func TestLongPromptsAreRetried(t *testing.T) {
	var first atomic.Bool
	rs := make([]*replica, 2)
	for i := range rs {
		rs[i] = start(t, answering(false, func() error {
			if first.CompareAndSwap(false, true) {
				return status.Error(codes.Unavailable, "x")
			}
			return nil
		}))
	}
	cc := dial(t, target(rs...), roundRobin(), grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple(strings.Repeat("x", 3<<20)))
	require.NoError(t, err)
}

func TestRejectionTrailerGoesToAnother(t *testing.T) {
	full := start(t, &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		_ = grpc.SetTrailer(ctx, metadata.Pairs(warmpathv1.TrailerRejection, ""))
		return nil, status.Error(codes.ResourceExhausted, "full")
	}})
	good := start(t, &replica{})
	cc := dial(t, target(full, good), roundRobin())
	connectedExcept(t, cc, []*replica{full, good})
	for range 10 {
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a"))
		require.NoError(t, err)
	}
}

// Full replicas make calls wait in FIFO order, and never exceed their bound.
func TestQueueKeepsTheBound(t *testing.T) {
	var now, most atomic.Int64
	slow := func() *replica {
		return start(t, &replica{unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			n := now.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			defer now.Add(-1)
			return &testpb.SimpleResponse{}, nil
		}})
	}
	rs := []*replica{slow(), slow()}
	m := newMeter(t)
	cc := dial(t, target(rs...), client.WithConfig(config(`{"power_of_two_choices":{}}`, `"max_ongoing_requests":2`)), m.option)
	connectedExcept(t, cc, rs)
	most.Store(0)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 20 {
				if _, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a")); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(4))
	require.Zero(t, m.ongoing(t))
	require.Positive(t, m.sum(t, "warmpath.decisions", reasonIs(policy.ReasonQueued)))
}

func TestQueueEndsWithTheContextAndIsBounded(t *testing.T) {
	release := make(chan struct{})
	entered := make(chan struct{}, 1)
	r := start(t, &replica{unary: func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if len(q.Payload.Body) > 0 {
			entered <- struct{}{}
			<-release
		}
		return &testpb.SimpleResponse{}, nil
	}})
	m := newMeter(t)
	cc := dial(t, target(r), client.WithConfig(config(`{"round_robin":{}}`, `"max_ongoing_requests":1`, `"max_queued_requests":1`)), m.option)
	stub := testpb.NewTestServiceClient(cc)
	connectedExcept(t, cc, []*replica{r})
	done := make(chan error, 2)
	go func() { _, err := stub.UnaryCall(deadline(t), simple("hold")); done <- err }()
	<-entered
	ctx, cancel := context.WithCancel(deadline(t))
	go func() { _, err := stub.UnaryCall(ctx, simple("")); done <- err }()
	eventually(t, "one waits", func() bool { return m.sum(t, "warmpath.queue.length") == 1 })
	_, err := stub.UnaryCall(deadline(t), simple(""))
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Contains(t, err.Error(), "max_queued_requests")
	cancel()
	err = <-done
	require.Equal(t, codes.Canceled, status.Code(err))
	require.Contains(t, err.Error(), "behind 0 others")
	close(release)
	require.NoError(t, <-done)
	require.Zero(t, m.ongoing(t))
}

// The attempts of gRPC's own retry policy prefer replicas not tried yet.
func TestRetriesOfGRPCGoToOthers(t *testing.T) {
	var failing atomic.Bool
	bad := start(t, answering(false, func() error {
		if failing.Load() {
			return status.Error(codes.Unavailable, "x")
		}
		return nil
	}))
	rs := []*replica{start(t, &replica{}), bad}
	sc := `{"loadBalancingConfig":[{"warmpath":{"policy":{"consistent_hash":{}},"ejection":{"failures":"off"}}}],
		"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":3,"initialBackoff":"0.001s","maxBackoff":"0.001s","backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`
	m := newMeter(t)
	cc := dial(t, target(rs...), grpc.WithDefaultServiceConfig(sc), m.option)
	connectedExcept(t, cc, rs)
	session := sessionAt(t, rs, 0, bad.addr)
	failing.Store(true)
	bad.calls.Store(0)
	for range 5 {
		var d client.Decision
		ctx := client.WithDecision(client.WithSession(deadline(t), session), &d)
		_, err := testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("a"))
		require.NoError(t, err)
		require.Equal(t, policy.ReasonRetry, d.Reason)
		require.Equal(t, 2, d.Attempts)
		_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a")))
		require.NoError(t, err)
		require.Equal(t, rs[0].addr, d.Replica)
	}
	require.EqualValues(t, 10, bad.calls.Load())
	require.Zero(t, m.ongoing(t))
}
