package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/router"
	routerload "github.com/warmpath/warmpath/internal/router/load"
)

// A hundred thousand requests, all cancelled: before they arrive, while they wait, when they are served, or while
// they are under way. None of them leaves anything in the router.
func TestCancelsLeaveNothingInTheRouter(t *testing.T) {
	const callers, each = 16, 2100 // of each policy
	for _, name := range []string{"power_of_two_choices", "consistent_hash", "kv_aware"} {
		t.Run(name, func(t *testing.T) {
			c, err := policy.ParseConfig([]byte(`{"policy":{"` + name + `":{}},"max_ongoing_requests":3,"max_queued_requests":20}`))
			require.NoError(t, err)
			r, err := router.FromConfig(c, nil)
			require.NoError(t, err)
			members := make([]router.Member, 4)
			for i := range members {
				members[i].ID = fmt.Sprintf("r%d", i)
			}
			r.Fleet.Set(members)
			r.Fleet.Connect()
			var served, waited, refused, under atomic.Int64
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					rnd := rand.New(rand.NewPCG(uint64(i), 1))
					for range each {
						ctx, cancel := context.WithCancel(t.Context())
						var canceller sync.WaitGroup
						if turns := rnd.IntN(8); turns == 0 {
							cancel()
						} else {
							canceller.Go(func() {
								for range turns {
									runtime.Gosched()
								}
								cancel()
							})
						}
						q := &policy.Request{Session: fmt.Sprint(rnd.IntN(50)), PromptTokens: 10, Priority: int(rnd.IntN(3) - 1)}
						b := new(router.Reservation)
						err := r.Reserve(ctx, q, b, router.How{})
						switch {
						case err == nil:
							served.Add(1)
							assert.LessOrEqual(t, under.Add(1), int64(4*3))
							if rnd.IntN(2) == 0 {
								b.PrefillDone()
							}
							<-ctx.Done()
							under.Add(-1)
							if rnd.IntN(10) == 0 {
								b.Refused(routerload.Report{Ongoing: 3, QueuedTokens: -1})
							}
							b.Release()
						case errors.Is(err, context.Canceled):
							waited.Add(1)
						case errors.Is(err, router.ErrQueueFull):
							refused.Add(1)
						default:
							assert.NoError(t, err)
						}
						canceller.Wait()
						cancel()
					}
				})
			}
			all.Wait()
			require.EqualValues(t, callers*each, served.Load()+waited.Load()+refused.Load())
			for what, n := range map[string]int64{"served": served.Load(), "cancelled in the queue": waited.Load()} {
				require.Positive(t, n, what)
			}
			require.Zero(t, r.Queued())
			for _, rep := range r.View().Replicas() {
				require.Zero(t, rep.Ongoing())
				require.Zero(t, rep.QueuedTokens())
			}
			require.NoError(t, r.Close())
		})
	}
}

// The same over real connections: after thousands of calls that were cancelled at random moments, no reservation,
// queue entry or stream is left, and the channel still serves. Goroutines are checked when all tests have ended.
func TestCancelsLeaveNothing(t *testing.T) {
	const callers, each = 24, 100
	var streams atomic.Int64
	serving := func() *replica {
		var r *replica
		r = start(t, &replica{
			unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				streams.Add(1)
				defer streams.Add(-1)
				for range 50 {
					runtime.Gosched()
				}
				return &testpb.SimpleResponse{Username: r.addr}, nil
			},
			stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				streams.Add(1)
				defer streams.Add(-1)
				for range 20 {
					if err := s.Send(answer("token")); err != nil {
						return err
					}
					runtime.Gosched()
				}
				return nil
			},
		})
		return r
	}
	rs := []*replica{serving(), serving()}
	m := newMeter(t)
	cc := dial(t, target(rs...), m.option, client.WithConfig(config(`{"kv_aware":{}}`, `"max_ongoing_requests":4`)))
	connected(t, cc, rs)
	stub := testpb.NewTestServiceClient(cc)
	var cut, whole atomic.Int64
	count := func(err error) {
		if err != nil && err != io.EOF {
			cut.Add(1)
			return
		}
		whole.Add(1)
	}
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 2))
			for n := range each {
				ctx, cancel := context.WithCancel(deadline(t))
				var canceller sync.WaitGroup
				if turns := rnd.IntN(400); turns < 390 {
					canceller.Go(func() {
						for range turns {
							runtime.Gosched()
						}
						cancel()
					})
				}
				text := fmt.Sprint("conversation ", rnd.IntN(20), " of many words, turn ", n)
				if rnd.IntN(2) == 0 {
					_, err := stub.UnaryCall(ctx, simple(text))
					count(err)
				} else {
					_, err := read(stub.StreamingOutputCall(ctx, prompt(text)))
					count(err)
				}
				canceller.Wait()
				cancel()
			}
		})
	}
	all.Wait()
	require.Positive(t, cut.Load())
	require.Positive(t, whole.Load())
	t.Logf("%d of %d calls were cut", cut.Load(), callers*each)
	eventually(t, "no stream is left", func() bool { return streams.Load() == 0 })
	eventually(t, "no reservation is left", func() bool { return m.ongoing(t) == 0 && m.sum(t, "warmpath.queue.length") == 0 })
	for range 50 {
		_, err := stub.UnaryCall(deadline(t), simple("after"))
		require.NoError(t, err)
	}
	require.Zero(t, m.ongoing(t))
}
