package tests

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// Statuses of a replica that is at fault, and is alone with them.
var ownStatuses = []codes.Code{
	codes.Unknown, codes.Unimplemented, codes.NotFound, codes.Unauthenticated, codes.PermissionDenied, codes.FailedPrecondition,
	codes.Aborted, codes.Internal, codes.Unavailable, codes.DataLoss,
}

// routes are the policies, with and without interceptors.
func routes(t *testing.T, policies []string, test func(t *testing.T, dial func(t *testing.T, rs []*replica, opts ...grpc.DialOption) testpb.TestServiceClient)) {
	for _, policy := range policies {
		for _, bare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s bare=%v", policy, bare), func(t *testing.T) {
				test(t, func(t *testing.T, rs []*replica, opts ...grpc.DialOption) testpb.TestServiceClient {
					text := config(policy, patient)
					if !bare {
						return testpb.NewTestServiceClient(dial(t, target(rs...), append(opts, client.WithConfig(text))...))
					}
					cc, err := grpc.NewClient(target(rs...), insecureOption(), grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":`+text+`}]}`))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, cc.Close()) })
					return testpb.NewTestServiceClient(cc)
				})
			})
		}
	}
}

// meetAll calls until every replica has been called.
func meetAll(t *testing.T, stub testpb.TestServiceClient, rs []*replica) {
	ctx := deadline(t)
	i := 0
	eventually(t, "all are connected", func() bool {
		i++
		_, err := stub.UnaryCall(client.WithSession(ctx, fmt.Sprint("m", i)), simple(fmt.Sprint("m", i)))
		require.NoError(t, err)
		return !slices.ContainsFunc(rs, func(r *replica) bool { return r.calls.Load() == 0 })
	})
	for _, r := range rs {
		r.calls.Store(0)
	}
}

// A replica that gives all its calls a status that the others do not give is ejected, whatever the status is.
func TestReplicaWithAStatusOfItsOwn(t *testing.T) {
	for _, code := range ownStatuses {
		t.Run(code.String(), func(t *testing.T) {
			routes(t, []string{`{"round_robin":{}}`, `{"power_of_two_choices":{}}`, `{"kv_aware":{}}`}, func(t *testing.T, dial func(*testing.T, []*replica, ...grpc.DialOption) testpb.TestServiceClient) {
				rs := replicas(t, 3)
				var ill atomic.Bool
				rs[0].unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					if ill.Load() {
						return nil, status.Error(code, "ill")
					}
					return &testpb.SimpleResponse{}, nil
				}
				stub := dial(t, rs)
				meetAll(t, stub, rs)
				ill.Store(true)
				ctx := deadline(t)
				for i := range 300 {
					_, _ = stub.UnaryCall(client.WithSession(ctx, fmt.Sprint(i)), simple(fmt.Sprint("prompt ", i)))
				}
				// The first bad call may be the first of all: until another has succeeded, the evidence is not complete.
				require.LessOrEqual(t, rs[0].calls.Load(), int64(3*threshold), "of 300")
			})
		})
	}
}

// What is an HTTP server now is ejected, whatever it answers.
func TestReplicaThatIsSomeHTTPServer(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter){
		"404":           func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
		"500":           func(w http.ResponseWriter) { w.WriteHeader(http.StatusInternalServerError) },
		"401":           func(w http.ResponseWriter) { w.WriteHeader(http.StatusUnauthorized) },
		"403":           func(w http.ResponseWriter) { w.WriteHeader(http.StatusForbidden) },
		"200 with text": func(w http.ResponseWriter) { _, _ = w.Write([]byte("It works!")) },
	} {
		t.Run(name, func(t *testing.T) {
			routes(t, []string{`{"round_robin":{}}`, `{"power_of_two_choices":{}}`}, func(t *testing.T, dial func(*testing.T, []*replica, ...grpc.DialOption) testpb.TestServiceClient) {
				var calls atomic.Int64
				var plain http.Protocols
				plain.SetUnencryptedHTTP2(true)
				h := &http.Server{Protocols: &plain, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
					if q.URL.Path == unaryMethod {
						calls.Add(1)
					}
					answer(w)
				})}
				l := listenLoopback(t)
				served := make(chan error, 1)
				go func() { served <- h.Serve(l) }()
				t.Cleanup(func() {
					_ = h.Close()
					<-served
				})
				rs := replicas(t, 2)
				stub, ctx := dial(t, append(rs, &replica{addr: l.Addr().String()})), deadline(t)
				eventually(t, "all are connected", func() bool {
					_, _ = stub.UnaryCall(ctx, simple("x"))
					return calls.Load() > 0 && rs[0].calls.Load() > 0 && rs[1].calls.Load() > 0
				})
				for range 300 {
					_, _ = stub.UnaryCall(ctx, simple("x"))
				}
				require.LessOrEqual(t, calls.Load(), int64(3*threshold))
			})
		})
	}
}

// A status that all replicas give, or a status that speaks of the request, is no evidence: neither if every call gets it
// nor if a third does.
func TestStatusOfRequests(t *testing.T) {
	for _, code := range append([]codes.Code{codes.InvalidArgument, codes.OutOfRange, codes.AlreadyExists}, ownStatuses[:7]...) {
		for _, share := range []float64{1, 0.3} {
			t.Run(fmt.Sprint(code, " ", share), func(t *testing.T) {
				rs := replicas(t, 3)
				random := rand.New(rand.NewPCG(1, 2))
				var fails atomic.Bool
				for _, r := range rs {
					r.unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
						if fails.Load() {
							return nil, status.Error(code, "bad request")
						}
						return &testpb.SimpleResponse{Username: r.addr}, nil
					}
				}
				w := watching(t, target(rs...), rs, client.WithConfig(config(`{"round_robin":{}}`, `"max_attempts":1`, patient)))
				for range 400 {
					fails.Store(random.Float64() < share)
					_, _ = w.stub.UnaryCall(w.ctx, simple("x"))
				}
				require.Zero(t, w.meter.sum(t, "warmpath.ejections"))
			})
		}
	}
}

// One replica alone gives INVALID_ARGUMENT, since its session sends what cannot be served.
func TestSessionOfBadRequests(t *testing.T) {
	rs := replicas(t, 3)
	for _, r := range rs {
		r.unary = func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if string(q.GetPayload().GetBody()) == "bad" {
				return nil, status.Error(codes.InvalidArgument, "too long")
			}
			return &testpb.SimpleResponse{Username: r.addr}, nil
		}
	}
	w := watching(t, target(rs...), rs, client.WithConfig(config(`{"consistent_hash":{}}`, patient)))
	bad, good := sessionAt(t, rs, 0, rs[0].addr), sessionAt(t, rs, 0, rs[1].addr)
	for range 50 {
		_, err := w.stub.UnaryCall(client.WithSession(w.ctx, bad), simple("bad"))
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		_, err = w.stub.UnaryCall(client.WithSession(w.ctx, good), simple("x"))
		require.NoError(t, err)
	}
	require.True(t, w.is(rs[0], "healthy"))
	require.Zero(t, w.meter.sum(t, "warmpath.ejections", telemetry.KeyCause.String("failures")))
}

// Calls that fail at once do not make a replica look idle: while it may not be ejected it gets its share and no more.
func TestReplicaThatFailsLooksNotIdle(t *testing.T) {
	rs := replicas(t, 3)
	var ill atomic.Bool
	hold := make(chan struct{})
	rs[0].unary = func(context.Context, *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
		if ill.Load() {
			return nil, status.Error(codes.FailedPrecondition, "ill")
		}
		return &testpb.SimpleResponse{}, nil
	}
	for _, r := range rs[1:] {
		r.unary = func(_ context.Context, q *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			if ill.Load() {
				<-hold
			}
			return &testpb.SimpleResponse{}, nil
		}
	}
	w := watching(t, target(rs...), rs, client.WithConfig(config(`{"power_of_two_choices":{}}`, `"ejection":{"failures":1000}`)))
	rs[0].calls.Store(0)
	ill.Store(true)
	const calls = 400
	for i := range calls { // each is answered by the replica that fails, or is under way at another
		w.under.Go(func() { _, _ = w.stub.UnaryCall(w.ctx, simple("x")) })
		eventually(t, "it is sent", func() bool {
			return rs[0].calls.Load()+w.meter.ongoing(t) >= int64(i)
		})
	}
	failed := rs[0].calls.Load()
	close(hold)
	require.Less(t, failed, int64(calls/2), "its share is a third")
}
