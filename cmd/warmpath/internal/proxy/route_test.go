package proxy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/cmd/warmpath/internal/proxy"
)

// config reads the prompt of all methods of the test service.
func config(policy string) grpc.DialOption {
	const service = "/grpc.testing.TestService/"
	return client.WithConfig(`{"policy":{"` + policy + `":{}},"dialects":[{"methods":["` +
		service + `UnaryCall","` + service + `StreamingOutputCall","` + service + `FullDuplexCall"],"prompt":"3.2","session":"3.2"}]}`)
}

// fleet starts replicas that answer with their address, unless a test changes that, and a proxy that is connected to
// all of them.
func fleet(t testing.TB, n int, option grpc.DialOption, arrange func(*replica)) (*proxy.Proxy, []*replica, testpb.TestServiceClient) {
	t.Helper()
	all, addresses := make([]*replica, n), make([]string, n)
	for i := range all {
		r := &replica{}
		r.output = func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			return out.Send(answer(r.at))
		}
		r.duplex = func(x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			if _, err := x.Recv(); err != nil {
				return err
			}
			return x.Send(answer(r.at))
		}
		if arrange != nil {
			arrange(r)
		}
		all[i] = start(t, r)
		addresses[i] = r.at
	}
	p, at := through(t, "warmpath:///"+strings.Join(addresses, ","), option)
	p.SetPatience(time.Minute)
	stub := testpb.NewTestServiceClient(dial(t, at))
	seen := make(map[string]bool)
	calls := 0
	require.Eventually(t, func() bool {
		for range 64 {
			calls++
			a, err := stub.UnaryCall(deadline(t), &testpb.SimpleRequest{Payload: payload(fmt.Sprint(warmUp, calls))})
			require.NoError(t, err)
			seen[a.GetUsername()] = true
		}
		return len(seen) == n
	}, time.Minute, time.Millisecond)
	return p, all, stub
}

// The key is in the bytes of the first message, whatever kind of call it starts, and in metadata.
func TestRoutesByTheMessage(t *testing.T) {
	p, _, stub := fleet(t, 4, config("consistent_hash"), nil)
	p.SetPatience(25 * time.Millisecond)
	used := make(map[string]bool)
	for i := 0; i < 32 || len(used) < 4; i++ {
		require.Less(t, i, 256, "%v", used) // 32 leave one of four replicas out too often
		key := fmt.Sprint("session ", i)
		a, err := stub.UnaryCall(deadline(t), &testpb.SimpleRequest{Payload: payload(key)})
		require.NoError(t, err)
		at := a.GetUsername()
		used[at] = true
		texts, err := read(stub.StreamingOutputCall(deadline(t), ask(key)))
		require.NoError(t, err)
		require.Equal(t, []string{at}, texts)
		x, err := stub.FullDuplexCall(deadline(t))
		require.NoError(t, err)
		require.NoError(t, x.Send(ask(key)))
		b, err := x.Recv() // before the half-close
		require.NoError(t, err)
		require.Equal(t, at, string(b.GetPayload().GetBody()))
		require.NoError(t, x.CloseSend())
		_, err = read(x, nil)
		require.NoError(t, err)
		a, err = stub.UnaryCall(metadata.AppendToOutgoingContext(deadline(t), "session_id", key), &testpb.SimpleRequest{})
		require.NoError(t, err)
		require.Equal(t, at, a.GetUsername())
	}
}

// A call whose replica is killed before it answers is retried, unary or streaming, also after a header.
func TestReplicaKilledMidCall(t *testing.T) {
	for name, call := range map[string]func(context.Context, testpb.TestServiceClient) error{
		"unary": func(ctx context.Context, stub testpb.TestServiceClient) error {
			_, err := stub.UnaryCall(ctx, &testpb.SimpleRequest{Payload: payload("a")})
			return err
		},
		"stream": func(ctx context.Context, stub testpb.TestServiceClient) error {
			texts, err := read(stub.StreamingOutputCall(ctx, ask("a")))
			if err == nil && len(texts) != 1 {
				return errors.New("an answer is missing")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			var calls atomic.Int32
			arrived, killed := make(chan *replica, 1), make(chan struct{})
			_, _, stub := fleet(t, 2, config("round_robin"), func(r *replica) {
				begin := func(header func(metadata.MD) error) error {
					err := header(keys)
					if calls.Add(1) == 1 {
						arrived <- r
						<-killed
					}
					return err
				}
				r.unary = func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
					return &testpb.SimpleResponse{}, begin(func(md metadata.MD) error { return grpc.SendHeader(ctx, md) })
				}
				r.output = func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
					return errors.Join(begin(out.SendHeader), out.Send(answer("a")))
				}
			})
			done := make(chan error, 1)
			go func() { done <- call(deadline(t), stub) }()
			(<-arrived).server.Stop()
			close(killed)
			require.NoError(t, <-done)
			require.EqualValues(t, 2, calls.Load())
		})
	}
}

// A replica that sends GOAWAY answers its calls, and the next calls go elsewhere.
func TestGoAway(t *testing.T) {
	_, all, stub := fleet(t, 2, config("round_robin"), nil)
	go all[0].server.GracefulStop()
	for range 200 {
		_, err := stub.UnaryCall(deadline(t), &testpb.SimpleRequest{Payload: payload("a")})
		require.NoError(t, err)
	}
}

// Calls that are cancelled at any moment leave no goroutine and no load.
func TestCancels(t *testing.T) {
	calls := 10_000
	if os.Getenv("WARMPATH_REQUIRE_ALL") != "" {
		calls = 100_000
	}
	p, _, stub := fleet(t, 2, config("power_of_two_choices"), func(r *replica) {
		r.output = func(_ *testpb.StreamingOutputCallRequest, out grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			for range 3 {
				if err := out.Send(answer(r.at)); err != nil {
					return err
				}
			}
			<-out.Context().Done()
			return nil
		}
		r.duplex = func(x grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
			for {
				q, err := x.Recv()
				if err != nil {
					return err
				}
				if err := x.Send(q2a(q)); err != nil {
					return err
				}
			}
		}
	})
	p.SetPatience(10 * time.Millisecond)
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range calls / 64 {
				cancelled(t, stub)
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+8 }, time.Minute, 10*time.Millisecond,
		"%d goroutines before", before)
	used := make(map[string]int)
	for range 64 {
		a, err := stub.UnaryCall(deadline(t), &testpb.SimpleRequest{Payload: payload("a")})
		require.NoError(t, err)
		used[a.GetUsername()]++
	}
	require.Len(t, used, 2, "a replica whose load had leaked would get none")
}

// cancelled makes a call that is cancelled at a random moment.
func cancelled(t *testing.T, stub testpb.TestServiceClient) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	after := rand.IntN(6)
	if after == 0 {
		go cancel()
	}
	var err error
	if rand.IntN(2) == 0 {
		var out grpc.ServerStreamingClient[testpb.StreamingOutputCallResponse]
		out, err = stub.StreamingOutputCall(ctx, ask("a"))
		for i := 0; i < min(after, 3) && err == nil; i++ {
			_, err = out.Recv()
		}
	} else {
		var x grpc.BidiStreamingClient[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]
		x, err = stub.FullDuplexCall(ctx)
		for i := 0; i < after && err == nil; i++ {
			if err = x.Send(ask("a")); err == nil && i > 1 {
				_, err = x.Recv()
			}
		}
	}
	if err != nil && after > 0 {
		t.Errorf("%v", err)
	}
}

// Health checks go to a replica, except those of the proxy's own service.
func TestHealth(t *testing.T) {
	r := start(t, &replica{})
	_, at := through(t, "warmpath:///"+r.at)
	health := healthpb.NewHealthClient(dial(t, at))
	check := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		a, err := health.Check(deadline(t), &healthpb.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		return a.GetStatus()
	}
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, check(""))
	r.health.SetServingStatus("engine", healthpb.HealthCheckResponse_NOT_SERVING)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, check("engine"))
	_, err := health.Check(deadline(t), &healthpb.HealthCheckRequest{Service: "no such"})
	require.Equal(t, codes.NotFound, status.Code(err))

	require.Equal(t, healthpb.HealthCheckResponse_SERVING, check(proxy.HealthService))
	watch, err := health.Watch(deadline(t), &healthpb.HealthCheckRequest{Service: proxy.HealthService})
	require.NoError(t, err)
	a, err := watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, a.GetStatus())
	r.server.Stop()
	require.Eventually(t, func() bool { return check(proxy.HealthService) == healthpb.HealthCheckResponse_NOT_SERVING }, time.Minute, time.Millisecond)
	a, err = watch.Recv()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, a.GetStatus())
}
