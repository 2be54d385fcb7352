package tests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// faulty is a fleet of breakers and one good replica, to which a session comes last.
type faulty struct {
	cc       *grpc.ClientConn
	breakers []*breaker
	good     *replica
	session  string
	*meter
}

func newFaulty(t *testing.T, how fault, n int, more ...string) *faulty {
	t.Helper()
	f := &faulty{good: start(t, &replica{}), meter: newMeter(t)}
	rs := []*replica{f.good}
	for range n {
		b := startBreaker(t, how)
		f.breakers = append(f.breakers, b)
		rs = append(rs, &b.replica)
	}
	more = append(more, `"ejection":{"failures":"off"}`) // the rules alone
	f.cc = dial(t, target(rs...), client.WithConfig(config(`{"consistent_hash":{}}`, more...)), f.option)
	f.session = sessionAt(t, rs, n, f.good.addr)
	connected(t, f.cc, rs[:1])
	stub := testpb.NewTestServiceClient(f.cc)
	for _, b := range f.breakers {
		f.meet(t, stub, b)
		b.armed.Store(true)
	}
	return f
}

// meet waits for the connection to a breaker.
func (f *faulty) meet(t *testing.T, stub testpb.TestServiceClient, b *breaker) {
	t.Helper()
	eventually(t, "connection to "+b.addr, func() bool {
		_, err := stub.UnaryCall(client.WithPin(deadline(t), b.addr), simple(""), grpc.WaitForReady(true))
		return status.Code(err) == codes.Unimplemented
	})
}

// again waits until the breakers are connected again, without arming them meanwhile.
func (f *faulty) again(t *testing.T) {
	t.Helper()
	for _, b := range f.breakers {
		b.armed.Store(false)
		f.meet(t, testpb.NewTestServiceClient(f.cc), b)
		b.armed.Store(true)
	}
}

func (f *faulty) got() (n int64) {
	for _, b := range f.breakers {
		n += b.got.Load()
	}
	return n
}

// call makes one call and returns where it ended.
func (f *faulty) call(t *testing.T, kind, text string) (d client.Decision, err error) {
	ctx := client.WithDecision(client.WithSession(deadline(t), f.session), &d)
	return d, f.callWith(ctx, kind, text)
}

func (f *faulty) callWith(ctx context.Context, kind, text string) error {
	stub := testpb.NewTestServiceClient(f.cc)
	if kind == "unary" {
		_, err := stub.UnaryCall(ctx, simple(text))
		return err
	}
	_, err := read(stub.StreamingOutputCall(ctx, prompt(text)))
	return err
}

func kinds(t *testing.T, run func(t *testing.T, kind string)) {
	for _, kind := range []string{"unary", "stream"} {
		t.Run(kind, func(t *testing.T) { run(t, kind) })
	}
}

// A stream that is reset before its first message is tried exactly once more, whatever status gRPC derives from the
// reset.
func TestResetIsTriedOnceMore(t *testing.T) {
	for _, reason := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeCancel, http2.ErrCodeProtocol, http2.ErrCodeEnhanceYourCalm} {
		t.Run(reason.String(), func(t *testing.T) {
			kinds(t, func(t *testing.T, kind string) {
				one := newFaulty(t, reset(reason), 1)
				d, err := one.call(t, kind, "a")
				require.NoError(t, err)
				require.Equal(t, one.good.addr, d.Replica)
				require.EqualValues(t, 1, one.got())
				require.EqualValues(t, 1, one.sum(t, "warmpath.retries", telemetry.KeyReason.String(telemetry.RetryBroken)))

				two := newFaulty(t, reset(reason), 2)
				_, err = two.call(t, kind, "a")
				require.ErrorContains(t, err, reason.String())
				require.EqualValues(t, 2, two.got())
				require.Zero(t, two.good.calls.Load())
				require.Zero(t, two.ongoing(t))
			})
		})
	}
}

// A stream that the replica refused without processing counts as never sent.
func TestRefusedStreamsGoOn(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		f := newFaulty(t, reset(http2.ErrCodeRefusedStream), 2)
		d, err := f.call(t, kind, "a")
		require.NoError(t, err)
		require.Equal(t, f.good.addr, d.Replica)
		require.GreaterOrEqual(t, f.got(), int64(2))
	})
}

// Issue 12.27: the config sets the wait before the second retry.
func TestBackoffIsConfigured(t *testing.T) {
	for initial, enough := range map[string]func(r *replica, queued int64) bool{
		"1ms": func(r *replica, _ int64) bool { return r.calls.Load() > 3 },
		"1m":  func(r *replica, queued int64) bool { return r.calls.Load() == 2 && queued == 1 }, // the first retry is made at once
	} {
		r, m := startRefusing(t), newMeter(t)
		cc := dial(t, target(r), client.WithConfig(config(`{"round_robin":{}}`, `"backoff":{"initial":"`+initial+`","maximum":"1m"}`)), m.option)
		connected(t, cc, []*replica{r})
		ctx, cancel := context.WithCancel(deadline(t))
		done := make(chan error, 1)
		go func() {
			_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a")))
			done <- err
		}()
		eventually(t, initial, func() bool { return enough(r, m.sum(t, "warmpath.queue.length")) })
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-done))
	}
}

// ofReplicas are the codes that may be a replica's own fault, by their numbers. ofRequests are those of requests.
var (
	ofReplicas = map[string]codes.Code{
		"1": codes.Canceled, "2": codes.Unknown, "5": codes.NotFound, "10": codes.Aborted, "12": codes.Unimplemented,
		"13": codes.Internal, "14": codes.Unavailable, "15": codes.DataLoss,
	}
	ofRequests = map[string]codes.Code{
		"3": codes.InvalidArgument, "4": codes.DeadlineExceeded, "6": codes.AlreadyExists, "7": codes.PermissionDenied,
		"9": codes.FailedPrecondition, "11": codes.OutOfRange, "16": codes.Unauthenticated,
	}
)

// A status that may be the replica's own fault has another replica tried, once.
func TestFailuresOfReplicasGoToAnother(t *testing.T) {
	for number, code := range ofReplicas {
		t.Run(code.String(), func(t *testing.T) {
			kinds(t, func(t *testing.T, kind string) {
				one := newFaulty(t, endsWith(number), 1)
				d, err := one.call(t, kind, "a")
				require.NoError(t, err)
				require.Equal(t, one.good.addr, d.Replica)
				require.Equal(t, 2, d.Attempts)
				require.EqualValues(t, 1, one.got())
				require.EqualValues(t, 1, one.sum(t, "warmpath.retries"))
				require.Zero(t, one.ongoing(t))

				two := newFaulty(t, endsWith(number), 2)
				good := two.good.calls.Load()
				_, err = two.call(t, kind, "a")
				require.Equal(t, code, status.Code(err), "two replicas failed it alike")
				require.EqualValues(t, 2, two.got())
				require.Equal(t, good, two.good.calls.Load())
			})
		})
	}
}

// Two replicas that fail a request in different ways are not yet a reason to give it up.
func TestFailuresThatDifferGoToAThird(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		f := newFaulty(t, endsWith("13"), 2)
		f.breakers[1].armed.Store(false)
		f.breakers[1].how = endsWith("14")
		f.breakers[1].armed.Store(true)
		d, err := f.call(t, kind, "a")
		require.NoError(t, err)
		require.Equal(t, f.good.addr, d.Replica)
		require.EqualValues(t, 2, f.got())
	})
}

// A replica that has answered with its own fault is not asked again: neither alone in the fleet nor pinned.
func TestFailedReplicaIsNotAskedAgain(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		f := newFaulty(t, endsWith("13"), 1)
		err := f.callWith(client.WithPin(deadline(t), f.breakers[0].addr), kind, "a")
		require.Equal(t, codes.Internal, status.Code(err))
		err = f.callWith(client.WithExclude(deadline(t), f.good.addr), kind, "a")
		require.Equal(t, codes.Internal, status.Code(err))
		require.EqualValues(t, 2, f.got())
	})
}

// A status that speaks of the request is final.
func TestStatusesOfRequestsAreFinal(t *testing.T) {
	for number, code := range ofRequests {
		kinds(t, func(t *testing.T, kind string) {
			f := newFaulty(t, endsWith(number), 1)
			good := f.good.calls.Load()
			_, err := f.call(t, kind, "a")
			require.Equal(t, code, status.Code(err))
			require.EqualValues(t, 1, f.got())
			require.Equal(t, good, f.good.calls.Load())
		})
	}
}

// A message above gRPC's usual limit is sent once if a replica has the limit, and not at all if the client has it.
func TestMessagesAboveALimitAreNotSentTwice(t *testing.T) {
	const limit = 4 << 20
	kinds(t, func(t *testing.T, kind string) {
		m := newMeter(t)
		rs := []*replica{start(t, &replica{}, grpc.MaxRecvMsgSize(limit)), start(t, &replica{}, grpc.MaxRecvMsgSize(limit))}
		f := &faulty{cc: dial(t, target(rs...), roundRobin(), m.option), meter: m}
		connected(t, f.cc, rs)
		var d client.Decision
		ctx := client.WithDecision(deadline(t), &d)
		require.Equal(t, codes.ResourceExhausted, status.Code(f.callWith(ctx, kind, strings.Repeat("a", limit+1))))
		require.Equal(t, 1, d.Attempts)
		small := dial(t, target(rs...), roundRobin(), m.option, grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(limit)))
		connected(t, small, rs)
		f.cc = small
		before := rs[0].calls.Load() + rs[1].calls.Load()
		ctx = client.WithDecision(deadline(t), &d)
		require.Equal(t, codes.ResourceExhausted, status.Code(f.callWith(ctx, kind, strings.Repeat("a", limit+1))))
		require.Equal(t, before, rs[0].calls.Load()+rs[1].calls.Load())
		require.Equal(t, 1, d.Attempts)
		require.Zero(t, m.ongoing(t))
	})
}

// A request that crashes two replicas, or that two replicas answer with UNAVAILABLE, is not sent to a third. Another call
// with the prompt is sent.
func TestRequestIsSentToTwoReplicasAtMost(t *testing.T) {
	for name, how := range map[string]fault{"crash": crash, "UNAVAILABLE": endsWith("14")} {
		t.Run(name, func(t *testing.T) {
			kinds(t, func(t *testing.T, kind string) {
				f := newFaulty(t, how, 2)
				_, err := f.call(t, kind, "a")
				require.Equal(t, codes.Unavailable, status.Code(err))
				require.EqualValues(t, 2, f.got())
				require.Zero(t, f.good.calls.Load())
				require.Zero(t, f.ongoing(t))
				ctx := client.WithPin(deadline(t), f.good.addr)
				require.NoError(t, f.callWith(ctx, kind, "a"))
			})
		})
	}
}

// A failing fleet gets no more than the budget of retries. The errors of calls over the budget name the budget.
func TestRetryBudget(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		f := newFaulty(t, endsWith("14"), 2, `"retry_ratio":0.2`)
		before, began := f.got(), time.Now()
		const calls = 400
		over := int64(0)
		for i := range calls {
			_, err := f.call(t, kind, fmt.Sprint("prompt ", i))
			require.Equal(t, codes.Unavailable, status.Code(err))
			if errors.Is(err, client.ErrRetryBudget) {
				over++
				require.Contains(t, err.Error(), "retry_ratio")
				require.Contains(t, err.Error(), "says the replica")
			}
		}
		retried := f.got() - before - calls
		require.Equal(t, calls-over, retried, "every call was sent again, or its error names the reason")
		require.Positive(t, retried)
		windows := int64(time.Since(began)/(9*time.Second)) + 1 // of whole seconds, the first of which had begun
		require.LessOrEqual(t, retried, int64(0.2*(calls+50))+100*windows, "50 for the calls that made the connections, 100 a window")
		require.Equal(t, over, f.sum(t, "warmpath.retries.over_budget"))
		require.Equal(t, retried, f.sum(t, "warmpath.retries", telemetry.KeyReason.String(telemetry.RetryBroken)))
	})
}

// A call that no replica may serve is not retried.
func TestNoEligibleReplica(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		f := newFaulty(t, endsWith("14"), 0)
		err := f.callWith(client.WithPin(deadline(t), "nobody"), kind, "a")
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, `no replica of the fleet may serve the request: it is pinned to "nobody", which is not in the fleet`)
		require.Zero(t, f.sum(t, "warmpath.retries"))
	})
}

// Issue 12.3: another attempt after a plain RESOURCE_EXHAUSTED counts towards the retry budget.
func TestPlainRejectionsAreInTheBudget(t *testing.T) {
	f := newFaulty(t, endsWith("8"), 1, `"retry_ratio":0.001`)
	var calls, got int64
	var err error
	eventually(t, "the floor is used up", func() bool {
		calls, got = f.good.calls.Load(), f.got()
		_, err = f.call(t, "unary", "a")
		return err != nil
	})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.ErrorIs(t, err, client.ErrRetryBudget)
	require.EqualValues(t, got+1, f.got())
	require.Equal(t, calls, f.good.calls.Load())
}
