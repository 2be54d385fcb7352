package tests

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
)

func retriedFor(why string) func(t *testing.T, m *meter) int64 {
	return func(t *testing.T, m *meter) int64 {
		return m.sum(t, "warmpath.retries", telemetry.KeyReason.String(why))
	}
}

func TestFirstTokenTimeout(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		g := startGates(t, 3, 5, `"first_token_timeout":"1ms"`)
		done := g.call(t, kind)
		<-g.all[1].entered
		g.noneWaitAt(t, g.all[0])
		eventually(t, "its reservation is released", func() bool { return g.ongoing(t) == 1 })
		close(g.all[1].open)
		r := <-done
		require.NoError(t, r.err)
		require.Equal(t, g.messages(kind, g.all[1]), r.from)
		require.Equal(t, g.all[1].addr, r.decision.Replica)
		require.Equal(t, policy.ReasonRetry, r.decision.Reason)
		require.EqualValues(t, 1, retriedFor(telemetry.RetryTimeout)(t, g.meter))
		require.Zero(t, g.all[2].calls.Load(), "it was the one more")
		g.idle(t)
	})
}

// A call whose first message was late is sent twice at most: the result of the second attempt is final.
func TestSlowCallsAreSentTwiceAtMost(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		g := startGates(t, 3, 1, `"first_token_timeout":"1ms"`)
		done := g.call(t, kind)
		<-g.all[1].entered
		for _, x := range g.all[:2] {
			x.server.Stop() // breaks all streams under way there
		}
		r := <-done
		require.Equal(t, codes.Unavailable, status.Code(r.err), "%v", r.err)
		require.Zero(t, g.all[2].calls.Load())
		g.idle(t)
	})
}

func TestSlowCallsStayWhereNoOtherHasRoom(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		g := startGates(t, 1, 2, `"first_token_timeout":"1ms"`)
		done := g.call(t, kind)
		<-g.all[0].entered
		// Another call takes the same path, and ends long after the timeout of the first call.
		other := g.call(t, kind)
		<-g.all[0].entered
		close(g.all[0].open)
		for _, c := range []<-chan result{done, other} {
			r := <-c
			require.NoError(t, r.err)
			require.Equal(t, g.messages(kind, g.all[0]), r.from)
		}
		require.EqualValues(t, 2, g.all[0].calls.Load())
		require.Zero(t, g.all[0].went.Load())
		g.idle(t)
	})
}

// A slow call that found no other replica with room moves once one has room.
func TestSlowCallsMoveWhenThereIsRoom(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		g := startGates(t, 2, 2, `"first_token_timeout":"1ms"`, `"max_ongoing_requests":1`)
		other := make(chan error, 1)
		go func() { // the second replica, where it stays
			_, err := testpb.NewTestServiceClient(g.cc).UnaryCall(client.WithPin(deadline(t), g.all[1].addr), simple("b"))
			other <- err
		}()
		<-g.all[1].entered
		done := g.call(t, kind)
		eventually(t, "both are under way", func() bool { return g.all[0].inside.Load() == 1 && g.ongoing(t) == 2 })
		close(g.all[1].open)
		require.NoError(t, <-other)
		r := <-done
		require.NoError(t, r.err)
		require.Equal(t, g.messages(kind, g.all[1]), r.from)
		g.idle(t)
	})
}

// Without a retry budget a slow call stays on its replica.
func TestTimeoutsAreInTheBudget(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		g := startGates(t, 2, 1, `"first_token_timeout":"1ms"`, `"retry_ratio":0.001`, `"ejection":{"failures":"off"}`)
		close(g.all[1].open)
		stays := make(chan result)
		go func() { // one after the other moves, until the budget is used up
			for {
				if r := <-g.call(t, kind); r.err != nil || r.decision.Replica == g.all[0].addr {
					stays <- r
					return
				}
			}
		}()
		eventually(t, "the budget refuses", func() bool { return g.sum(t, "warmpath.retries.over_budget") == 1 })
		moved := g.all[1].calls.Load()
		close(g.all[0].open)
		r := <-stays
		require.NoError(t, r.err)
		require.Equal(t, g.all[0].addr, r.decision.Replica)
		require.Equal(t, moved, g.all[1].calls.Load())
		g.idle(t)
	})
}

// Once the application has read a replica's headers, the call stays on that replica.
func TestNoTimeoutAfterHeader(t *testing.T) {
	g := startGates(t, 2, 3, `"first_token_timeout":"1ms"`)
	for _, x := range g.all {
		x.early = true
	}
	s, err := testpb.NewTestServiceClient(g.cc).StreamingOutputCall(client.WithSession(deadline(t), g.session), prompt("a"))
	require.NoError(t, err)
	md, err := s.Header()
	require.NoError(t, err)
	at := slices.IndexFunc(g.all, func(x *gate) bool { return md.Get("from")[0] == x.addr })
	close(g.all[1-at].open) // would answer at once
	got := make(chan int)
	go func() {
		n, _ := read(s, nil)
		got <- n
	}()
	eventually(t, "the call is where its header came from", func() bool { return g.all[at].inside.Load() == 1 && g.ongoing(t) == 1 })
	close(g.all[at].open)
	require.Equal(t, 3, <-got)
}

// The client aborts the late attempt at its engine.
func TestTimeoutAbortsTheLateAttempt(t *testing.T) {
	slow := startEngine(t, grpcserver.Config{Speed: 1e-6, IgnoreCancel: true}) // nothing comes
	quick := startEngine(t, grpcserver.Config{Virtual: true, IgnoreCancel: true})
	rs := []*replica{{addr: slow.Addr().String()}, {addr: quick.Addr().String()}}
	// The time is enough for the request to reach the engine before the Abort.
	cc := dial(t, target(rs...), client.WithConfig(`{"policy":{"consistent_hash":{}},"first_token_timeout":"1s"}`))
	stub := enginepb.NewVllmEngineClient(cc)
	for _, r := range rs {
		eventually(t, "connection", func() bool {
			_, err := stub.GetLoads(client.WithPin(deadline(t), r.addr), &enginepb.GetLoadsRequest{})
			return err == nil
		})
	}
	q := generation("r")
	*q.SamplingParams.MaxTokens = 5
	var d client.Decision
	// Only the first attempt has a limit: one that begins at the quick engine may move to the slow one, and stays.
	s, err := stub.Generate(client.WithSession(client.WithDecision(deadline(t), &d), sessionAt(t, rs, 0, rs[0].addr)), q)
	for err == nil {
		_, err = s.Recv()
	}
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, policy.ReasonRetry, d.Reason)
	require.Equal(t, rs[1].addr, d.Replica)
	eventually(t, "its first attempt is aborted", func() bool {
		st := slow.Stats()
		return st.Ongoing == 0 && st.Engine.Submitted == 1 && st.Engine.Aborted == 1
	})
}

// Random calls with late first messages leave no reservation.
func TestRandomSlowLives(t *testing.T) {
	m := newMeter(t)
	rs := make([]*replica, 4)
	for i := range rs {
		rs[i] = randomReplica(t)
	}
	cc := dial(t, target(rs...), client.WithConfig(config(`{"kv_aware":{}}`, `"max_ongoing_requests":8`, `"retry_ratio":"off"`, `"first_token_timeout":"1ms"`)), m.option)
	stub := testpb.NewTestServiceClient(cc)
	ctx, stop := context.WithCancel(deadline(t))
	var collector, wg sync.WaitGroup
	collector.Go(func() { // streams abandoned without a deadline keep their reservation until they are collected
		for ctx.Err() == nil {
			runtime.GC()
			runtime.Gosched()
		}
	})
	for range 16 {
		wg.Go(func() {
			for range 25 {
				life(t, cc, stub)
			}
		})
	}
	wg.Wait()
	stop()
	collector.Wait()
	eventually(t, "nothing is reserved", func() bool {
		runtime.GC()
		return m.ongoing(t) == 0 && m.sum(t, "warmpath.queue.length") == 0
	})
}

// randomReplica answers at once, answers late, or fails.
func randomReplica(t *testing.T) *replica {
	behave := func(ctx context.Context) error {
		switch rand.IntN(8) {
		case 0:
			return status.Error(codes.Unavailable, "gone")
		case 1:
			return status.Error(codes.ResourceExhausted, "full")
		case 2:
			return status.Error(codes.Internal, "broken")
		case 3, 4, 5:
			select {
			case <-time.After(time.Duration(rand.IntN(4000)) * time.Microsecond):
			case <-ctx.Done():
			}
		}
		return nil
	}
	return start(t, &replica{
		stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			if err := behave(s.Context()); err != nil {
				return err
			}
			for range rand.IntN(4) {
				if err := s.Send(answer("x")); err != nil {
					return err
				}
			}
			return nil
		},
		unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			return &testpb.SimpleResponse{}, behave(ctx)
		},
	})
}
