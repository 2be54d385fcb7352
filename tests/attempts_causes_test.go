package tests

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/client"
	warmpathv1 "github.com/warmpath/warmpath/proto/warmpath/v1"
)

// startRefusing starts a replica that refuses every stream with warmpath's trailer.
func startRefusing(t *testing.T) *replica {
	return start(t, &replica{stream: rejects(t).stream})
}

// rejects makes a replica that refuses every call as full.
func rejects(t *testing.T) *replica {
	raw, err := proto.Marshal(&warmpathv1.Rejection{Ongoing: 1, MaxOngoing: 1})
	require.NoError(t, err)
	trailer, full := metadata.Pairs(warmpathv1.TrailerRejection, string(raw)), status.Error(codes.ResourceExhausted, "full")
	return &replica{
		unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
			_ = grpc.SetTrailer(ctx, trailer)
			return nil, full
		},
		stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
			s.SetTrailer(trailer)
			return full
		},
	}
}

// Issue 12.3: calls in backoff after a refusal are in the queue and count towards its bound.
func TestRefusedCallsWaitInTheQueue(t *testing.T) {
	m := newMeter(t)
	r := startRefusing(t)
	cc := dial(t, target(r), client.WithConfig(config(`{"round_robin":{}}`, `"max_queued_requests":1`, `"backoff":{"initial":"1m","maximum":"1m"}`)), m.option)
	connected(t, cc, []*replica{r})
	call := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a")))
			done <- err
		}()
		return done
	}
	ctx, cancel := context.WithCancel(deadline(t))
	first := call(ctx)
	eventually(t, "the first waits for its third attempt", func() bool {
		return r.calls.Load() == 2 && m.sum(t, "warmpath.queue.length") == 1
	})
	second := <-call(deadline(t))
	require.Equal(t, codes.ResourceExhausted, status.Code(second))
	require.ErrorContains(t, second, "max_queued_requests")
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-first))
	require.Zero(t, m.sum(t, "warmpath.queue.length"))
	require.Zero(t, m.ongoing(t))
}

// Issue 12.12: while a call waits for another attempt, the non-blocking methods of its stream return at once.
func TestNothingBlocksWhileACallWaits(t *testing.T) {
	m := newMeter(t)
	r := startRefusing(t)
	cc := dial(t, target(r), client.WithConfig(config(`{"round_robin":{}}`, `"backoff":{"initial":"1m","maximum":"1m"}`)), m.option)
	connected(t, cc, []*replica{r})
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	s, err := cc.NewStream(ctx, serverStream, streamingMethod)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(prompt("a")))
	done := make(chan error, 1)
	go func() { done <- s.RecvMsg(&testpb.StreamingOutputCallResponse{}) }()
	eventually(t, "it waits", func() bool { return m.sum(t, "warmpath.queue.length") == 1 })
	require.NoError(t, s.CloseSend())
	require.NoError(t, s.Context().Err())
	s.Trailer()
	header := make(chan error, 1)
	go func() { _, err := s.Header(); header <- err }()
	cancel()
	require.Equal(t, codes.Canceled, status.Code(<-done), "Issue 12.14: not the status of the last attempt")
	require.NoError(t, <-header)
}

// Issue 12.13: the message of a status does not decide whether the status is the replica's.
func TestCausesDoNotDependOnMessages(t *testing.T) {
	for _, text := range []string{"stream terminated by RST_STREAM with error code: INTERNAL_ERROR", "error reading from server: EOF"} {
		kinds(t, func(t *testing.T, kind string) {
			var calls atomic.Int64
			fail := func() error { calls.Add(1); return status.Error(codes.Internal, text) }
			rs := []*replica{start(t, answering(false, fail)), start(t, answering(false, fail))}
			cc := dial(t, target(rs...), roundRobin())
			connectedExcept(t, cc, rs)
			calls.Store(0)
			var err error
			if kind == "unary" {
				_, err = testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a"))
			} else {
				_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(deadline(t), prompt("a")))
			}
			require.Equal(t, codes.Internal, status.Code(err))
			require.EqualValues(t, 2, calls.Load(), "as of any INTERNAL")
		})
	}
	kinds(t, func(t *testing.T, kind string) {
		unavailable := refusing(codes.Unavailable, "error reading from server: EOF")
		rs := []*replica{start(t, answering(false, unavailable)), start(t, answering(false, unavailable))}
		cc := dial(t, target(rs...), roundRobin())
		connectedExcept(t, cc, rs)
		for range 3 {
			_, err := testpb.NewTestServiceClient(cc).UnaryCall(deadline(t), simple("a"))
			require.Equal(t, codes.Unavailable, status.Code(err))
		}
	})
}

// Issue 28.14: a call that a full replica refuses goes back to the queue, also if the counts in the replica's text happen to be
// the size of the message, as in the text of a size limit.
func TestARefusalIsNoSizeLimit(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		size, refused := proto.Size(simple("a")), atomic.Bool{}
		if kind == "stream" {
			size = proto.Size(prompt("a"))
		}
		raw, err := proto.Marshal(&warmpathv1.Rejection{Ongoing: uint32(size), MaxOngoing: uint32(size)})
		require.NoError(t, err)
		trailer := metadata.Pairs(warmpathv1.TrailerRejection, string(raw))
		refuse := func(set func(metadata.MD)) error {
			if refused.Swap(true) {
				return nil
			}
			set(trailer)
			return status.Errorf(codes.ResourceExhausted, "%d requests are ongoing, the most is %d (max_ongoing_requests)", size, size)
		}
		r := start(t, &replica{
			unary: func(ctx context.Context, _ *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
				return new(testpb.SimpleResponse), refuse(func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
			},
			stream: func(_ *testpb.StreamingOutputCallRequest, s grpc.ServerStreamingServer[testpb.StreamingOutputCallResponse]) error {
				if err := refuse(s.SetTrailer); err != nil {
					return err
				}
				return s.Send(answer("ok"))
			},
		})
		stub := testpb.NewTestServiceClient(dial(t, target(r)))
		if kind == "unary" {
			_, err = stub.UnaryCall(deadline(t), simple("a"))
		} else {
			_, err = read(stub.StreamingOutputCall(deadline(t), prompt("a")))
		}
		require.NoError(t, err)
		require.EqualValues(t, 2, r.calls.Load())
	})
}

// Issue 12.14: a replica whose timer is slightly ahead resets the stream at the deadline. The call ends with
// DEADLINE_EXCEEDED.
func TestResetAtTheDeadlineIsFinal(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		var end atomic.Pointer[time.Time]
		ahead := func(f *http2.Framer, stream uint32) bool {
			<-time.After(time.Until(end.Load().Add(-20 * time.Millisecond)))
			return reset(http2.ErrCodeCancel)(f, stream)
		}
		f := newFaulty(t, ahead, 1)
		calls, asked := f.good.calls.Load(), int64(0)
		eventually(t, "a call reaches the replica before its deadline", func() bool {
			asked++
			at := time.Now().Add(200 * time.Millisecond)
			end.Store(&at)
			ctx, cancel := context.WithDeadline(client.WithSession(context.Background(), f.session), at)
			defer cancel()
			require.Equal(t, codes.DeadlineExceeded, status.Code(f.callWith(ctx, kind, "a")))
			return f.got() > 0
		})
		require.LessOrEqual(t, f.got(), asked, "earlier calls may have reached it late")
		require.Equal(t, calls, f.good.calls.Load())
	})
}

// timed gives unary and server-streaming calls a timeout by service config.
func timed(timeout string, more ...string) grpc.DialOption {
	return grpc.WithDefaultServiceConfig(timedConfig(timeout, more...))
}

func timedConfig(timeout string, more ...string) string {
	const service = `{"service":"grpc.testing.TestService","method":`
	return `{"loadBalancingConfig":[{"warmpath":` + config(`{"consistent_hash":{}}`, more...) + `}],
		"methodConfig":[{"name":[` + service + `"UnaryCall"},` + service + `"StreamingOutputCall"}],"timeout":"` + timeout + `"}]}`
}

// Issue 12.30: the timeout of a methodConfig bounds the wait in the queue, for room and for a backoff.
func TestMethodTimeoutBoundsTheQueue(t *testing.T) {
	t.Run("room", func(t *testing.T) {
		r, m := start(t, &replica{}), newMeter(t)
		cc := dial(t, target(r), timed("0.1s", `"max_ongoing_requests":1`), m.option)
		connected(t, cc, []*replica{r})
		holder, err := testpb.NewTestServiceClient(cc).FullDuplexCall(deadline(t)) // occupies the room
		require.NoError(t, err)
		defer runtime.KeepAlive(holder) // a stream that is dropped gives its room back
		ctx := deadline(t)
		_, err = testpb.NewTestServiceClient(cc).UnaryCall(ctx, simple("a"))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.NoError(t, ctx.Err())
		require.Zero(t, m.sum(t, "warmpath.queue.length"))
	})
	t.Run("backoff", func(t *testing.T) {
		r, m := startRefusing(t), newMeter(t)
		cc := dial(t, target(r), timed("0.1s", `"backoff":{"initial":"1m","maximum":"1m"}`), m.option)
		connected(t, cc, []*replica{r})
		ctx := deadline(t)
		_, err := read(testpb.NewTestServiceClient(cc).StreamingOutputCall(ctx, prompt("a")))
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
		require.NoError(t, ctx.Err())
		require.Zero(t, m.sum(t, "warmpath.queue.length"))
	})
}

// Issue 28.14: the timeout of a methodConfig bounds a call that began before the resolver's first result, too.
func TestMethodTimeoutBoundsTheFirstCalls(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		for name, first := range map[string]error{"silence": nil, "error": errors.New("no result yet")} {
			t.Run(name, func(t *testing.T) {
				r, d := start(t, rejects(t)), newDirectory("early", update{})
				d.err, d.mute = first, first == nil
				begun, errs := make(chan struct{}, 1), make(chan error)
				cc := dial(t, "early:///x", grpc.WithResolvers(d),
					grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, q, a any, cc *grpc.ClientConn,
						invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
						notify(begun)
						return invoke(ctx, method, q, a, cc, opts...)
					}),
					grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
						open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
						notify(begun)
						return open(ctx, desc, cc, method, opts...)
					}))
				stub, ctx := testpb.NewTestServiceClient(cc), deadline(t)
				go func() {
					if kind == "unary" {
						_, err := stub.UnaryCall(ctx, simple("a"), grpc.WaitForReady(true))
						errs <- err
						return
					}
					_, err := read(stub.StreamingOutputCall(ctx, prompt("a"), grpc.WaitForReady(true)))
					errs <- err
				}()
				<-begun
				d.set(state(timedConfig("0.1s", `"backoff":{"initial":"1m","maximum":"1m"}`), r))
				err := <-errs
				require.Equal(t, codes.DeadlineExceeded, status.Code(err), "%v", err)
				require.NoError(t, ctx.Err())
			})
		}
	})
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Issue 12.30: the timeout bounds all attempts together. Each attempt gets the remaining time.
func TestMethodTimeoutBoundsAllAttempts(t *testing.T) {
	kinds(t, func(t *testing.T, kind string) {
		var armed atomic.Bool
		first := func() error { // the first attempt fails, wherever it is
			if armed.CompareAndSwap(true, false) {
				return status.Error(codes.Unavailable, "not now")
			}
			return nil
		}
		rs := []*replica{start(t, answering(false, first)), start(t, answering(false, first))}
		ends := attemptEnds{}
		cc := dial(t, target(rs...), timed("30s"), grpc.WithStatsHandler(&ends))
		connectedExcept(t, cc, rs)
		ends.all = nil
		armed.Store(true)
		var err error
		if kind == "unary" {
			_, err = testpb.NewTestServiceClient(cc).UnaryCall(context.Background(), simple("a"))
		} else {
			_, err = read(testpb.NewTestServiceClient(cc).StreamingOutputCall(context.Background(), prompt("a")))
		}
		require.NoError(t, err)
		require.Len(t, ends.all, 2)
		require.Equal(t, ends.all[0], ends.all[1], "the second attempt ends when the first would have")
	})
}

// attemptEnds keeps the deadline of each attempt of calls that come one after the other.
type attemptEnds struct {
	beginCounter
	all []time.Time
}

func (a *attemptEnds) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	end, _ := ctx.Deadline()
	a.all = append(a.all, end)
	return ctx
}

// Issue 12.31: streams that are never retried do not keep the messages that they sent.
func TestClientStreamsKeepNoLongBuffer(t *testing.T) {
	const messages, size = 40, 1 << 20 // less than the buffer of calls that are retried
	received, end := make(chan struct{}, messages), make(chan struct{})
	r := start(t, &replica{duplex: func(s grpc.BidiStreamingServer[testpb.StreamingOutputCallRequest, testpb.StreamingOutputCallResponse]) error {
		for range messages {
			if _, err := s.Recv(); err != nil {
				return err
			}
			received <- struct{}{}
		}
		<-end
		return nil
	}})
	cc := dial(t, target(r), roundRobin())
	connected(t, cc, []*replica{r})
	s, err := testpb.NewTestServiceClient(cc).FullDuplexCall(deadline(t))
	require.NoError(t, err)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // of pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	m := &testpb.StreamingOutputCallRequest{Payload: &testpb.Payload{Body: make([]byte, size)}}
	for range messages {
		require.NoError(t, s.Send(m))
		<-received
	}
	after := heap()
	close(end)
	require.Less(t, int64(after)-int64(before), int64(messages*size/4))
	_, _ = s.Recv()
}

// Issue 12.36: a call of Header before Recv, as in grpc-gateway, does not end the retries before a header arrives.
func TestHeaderBeforeRecvIsRetried(t *testing.T) {
	for _, broken := range []bool{false, true} {
		f := newFaulty(t, map[bool]fault{false: endsWith("14"), true: crash}[broken], 1)
		good := f.good.calls.Load()
		s, err := testpb.NewTestServiceClient(f.cc).StreamingOutputCall(client.WithSession(deadline(t), f.session), prompt("a"))
		require.NoError(t, err)
		_, err = s.Header()
		require.NoError(t, err)
		n, err := read(s, nil)
		require.NoError(t, err)
		require.Positive(t, n)
		require.EqualValues(t, 1, f.got())
		require.EqualValues(t, 1, f.good.calls.Load()-good)
	}
	// When no attempt is left, Header returns nothing and Recv returns the status.
	f := newFaulty(t, endsWith("14"), 2)
	s, err := testpb.NewTestServiceClient(f.cc).StreamingOutputCall(client.WithSession(deadline(t), f.session), prompt("a"))
	require.NoError(t, err)
	md, err := s.Header()
	require.NoError(t, err)
	require.Nil(t, md)
	_, err = s.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.EqualValues(t, 2, f.got())
}

// Issue 12.39: SendMsg(nil) sends an empty message, as gRPC does.
func TestNilIsAMessage(t *testing.T) {
	r := start(t, &replica{})
	cc := dial(t, target(r), roundRobin())
	s, err := cc.NewStream(deadline(t), serverStream, streamingMethod)
	require.NoError(t, err)
	require.NoError(t, s.SendMsg(nil))
	require.NoError(t, s.CloseSend())
	drain(t, s)
	require.EqualValues(t, 1, r.calls.Load())
}

// Issue 12.39: OnFinish runs when SendMsg fails with a status, since nothing else of the stream need be called.
func TestOnFinishAfterSendMsgFailed(t *testing.T) {
	for name, desc := range map[string]*grpc.StreamDesc{streamingMethod: serverStream, duplexMethod: bidiStream} {
		cc := dial(t, target(start(t, &replica{})), roundRobin())
		finished := make(chan error, 2)
		s, err := cc.NewStream(context.Background(), desc, name, grpc.MaxCallSendMsgSize(10), grpc.OnFinish(func(err error) { finished <- err }))
		require.NoError(t, err)
		err = s.SendMsg(prompt("longer than ten bytes"))
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.Equal(t, err, <-finished)
		require.Empty(t, finished)
	}
}

// Issue 12.39: a call whose context ends at once runs OnFinish once. The race detector checks the rest.
func TestOnFinishOfEndedContexts(t *testing.T) {
	cc := dial(t, target(start(t, &replica{})), roundRobin())
	for range 50 {
		ctx, cancel := context.WithCancel(context.Background())
		finished := make(chan error, 2)
		go cancel()
		s, err := cc.NewStream(ctx, serverStream, streamingMethod, grpc.OnFinish(func(err error) { finished <- err }))
		require.NoError(t, err)
		go func() { _ = s.SendMsg(prompt("a")) }()
		require.Equal(t, codes.Canceled, status.Code(<-finished))
		require.Empty(t, finished)
	}
}

// Issue 12.51: if an interceptor inside warmpath's makes retries, warmpath's retries do not multiply them.
func TestRetriesInsideAreNotMultiplied(t *testing.T) {
	const tries = 3
	unary := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) (err error) {
		for range tries {
			if err = invoke(ctx, method, req, reply, cc, opts...); err == nil {
				return nil
			}
		}
		return err
	}
	for name, how := range map[string]fault{"status": endsWith("14"), "connection": crash} {
		t.Run(name, func(t *testing.T) {
			rs := []*breaker{startBreaker(t, how), startBreaker(t, how), startBreaker(t, how), startBreaker(t, how)}
			f := &faulty{breakers: rs, meter: newMeter(t)}
			f.cc = dial(t, target(&rs[0].replica, &rs[1].replica, &rs[2].replica, &rs[3].replica), roundRobin(), grpc.WithChainUnaryInterceptor(unary))
			f.again(t)
			_, err := testpb.NewTestServiceClient(f.cc).UnaryCall(deadline(t), simple("a"))
			require.Equal(t, codes.Unavailable, status.Code(err))
			require.EqualValues(t, tries, f.got())
			require.Zero(t, f.sum(t, "warmpath.retries"))
		})
	}
}
