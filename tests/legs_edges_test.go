package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// opening passes the opening of each stream, of a call and of a prefill leg, to a function of the test.
func opening(f func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error)) grpc.DialOption {
	return grpc.WithChainStreamInterceptor(func(
		ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return f(ctx, func(ctx context.Context) (grpc.ClientStream, error) { return open(ctx, desc, cc, method, opts...) })
	})
}

// notified calls a function after each message that a stream receives.
type notified struct {
	grpc.ClientStream
	then func()
}

func (r notified) RecvMsg(m any) error {
	err := r.ClientStream.RecvMsg(m)
	if err == nil {
		r.then()
	}
	return err
}

// An interceptor inside warmpath's may change the route of an attempt. The prefill leg stays on its reserved replica.
func TestLegsOfAnotherRoute(t *testing.T) {
	f := startLegFleet(t, 2, 2)
	f.dial(t, client.WithConfig(config(`{"kv_aware":{}}`)), opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			return open(client.WithExclude(ctx, "nowhere"))
		}))
	q := request()
	last, d, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	requireLegs(t, f, q, last, d)
	f.idle(t)
}

// A retryPolicy cannot repeat a leg with a reserved replica. The call goes on with another pair.
func TestLegsWithRetryPolicy(t *testing.T) {
	f := startLegFleet(t, 2, 2)
	f.dial(t, grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"warmpath":{"policy":{"kv_aware":{}}}}],
		"methodConfig":[{"name":[{}],"retryPolicy":{"maxAttempts":4,"initialBackoff":"0.001s","maxBackoff":"0.001s",
		"backoffMultiplier":1,"retryableStatusCodes":["UNAVAILABLE"]}}]}`))
	var failed atomic.Bool
	for id, r := range f.by {
		r.instead(func(_ context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
			if id[0] == 'p' && failed.CompareAndSwap(false, true) {
				return nil, status.Error(codes.Unavailable, "down")
			}
			return r.usual(q), nil
		})
	}
	_, d, err := f.call(t, deadline(t), request())
	require.NoError(t, err)
	require.NotEmpty(t, d.Prefill)
	f.idle(t)
}

// nixlReplica answers each leg at once.
type nixlReplica struct {
	enginepb.UnimplementedVllmEngineServer
	legs atomic.Int64
}

func (r *nixlReplica) Generate(_ *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	r.legs.Add(1)
	return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: &enginepb.GenerateComplete{
		KvTransferParamsJson: proto.String("{}"),
	}}})
}

// A call that ends when its prefill leg has answered starts no decode leg, even if a decode leg would drain rather
// than be cancelled.
func TestLegsCancelBetween(t *testing.T) {
	var p, d nixlReplica
	prefills, _ := serveLegs(t, func(s *grpc.Server) { enginepb.RegisterVllmEngineServer(s, &p) })
	decodes, _ := serveLegs(t, func(s *grpc.Server) { enginepb.RegisterVllmEngineServer(s, &d) })
	m := newMeter(t)
	var cancel atomic.Pointer[context.CancelFunc]
	cc := dial(t, "between:///x", grpc.WithResolvers(newDirectory("between", members(
		policy.Attributes{ID: "p", Address: prefills, Role: policy.RolePrefill, Weight: 100},
		policy.Attributes{ID: "d", Address: decodes, Role: policy.RoleDecode, Weight: 1},
	))), client.WithConfig(config(`{"kv_aware":{}}`)), m.option, opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			return notified{s, func() {
				if f := cancel.Load(); f != nil {
					(*f)()
				}
			}}, err
		}))
	send := func(ctx context.Context) error {
		s, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, &enginepb.GenerateRequest{
			RequestId: "r", Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: request().GetTokenIds().Ids}},
		})
		for err == nil { // to the end, where its reservations are released
			_, err = s.Recv()
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	eventually(t, "a split call", func() bool { return send(deadline(t)) == nil && p.legs.Load() > 0 })
	idle := func() {
		eventually(t, "an end of all reservations", func() bool { return m.ongoing(t) == 0 })
	}
	idle()
	before := d.legs.Load()
	ctx, end := context.WithCancel(deadline(t))
	cancel.Store(&end)
	require.Equal(t, codes.Canceled, status.Code(send(ctx)))
	idle()
	require.Equal(t, before, d.legs.Load())
}

// held delays the header of a stream.
type held struct {
	grpc.ClientStream
	until <-chan struct{}
}

func (h held) Header() (metadata.MD, error) {
	md, err := h.ClientStream.Header()
	<-h.until
	return md, err
}

// A header of a failed attempt is not taken as a header of the next attempt.
func TestLegsHeaderOfAnEarlierAttempt(t *testing.T) {
	f := startLegFleet(t, 1, 3)
	var opened atomic.Int64
	second := make(chan struct{}) // closed when the second decode leg begins
	f.dial(t, client.WithConfig(config(`{"kv_aware":{}}`)), opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			switch opened.Add(1) {
			case 2: // of the first decode leg
				return held{s, second}, err
			case 4:
				close(second)
			}
			return s, err
		}))
	var fails atomic.Int64
	for id, r := range f.by {
		r.instead(func(ctx context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
			left := int64(-1)
			if id[0] == 'd' {
				left = fails.Add(-1)
			}
			switch left {
			case 1:
				_ = grpc.SendHeader(ctx, metadata.Pairs("a", "b"))
				fallthrough
			case 0:
				return nil, status.Error(codes.Unavailable, "down")
			}
			return r.usual(q), nil
		})
	}
	for range 20 {
		f.by["p0"].requests()
		second = make(chan struct{})
		fails.Store(2)
		opened.Store(0)
		s, err := vllmpb.NewInferenceClient(f.cc).GenerateStream(deadline(t), request())
		require.NoError(t, err)
		var both sync.WaitGroup
		both.Go(func() { _, _ = s.Header() })
		both.Go(func() { _, err = s.Recv() })
		both.Wait()
		require.NoError(t, err)
		require.Equal(t, 3, len(f.by["p0"].requests())) // not Len: it prints them
		_, err = s.Recv()                               // else it ends when memory is collected
		require.ErrorIs(t, err, io.EOF)
	}
	f.idle(t)
}

// If the channel has a new balancer, the next attempt keeps nothing of the last attempt's legs.
func TestLegsUnderAnotherBalancer(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	u := members(f.members...)
	u.serviceConfig = `{"loadBalancingConfig":[{"warmpath":{"policy":{"kv_aware":{}}}}]}`
	directory := newDirectory("other", u)
	f.cc = dial(t, "other:///x", grpc.WithResolvers(directory), f.m.option)
	f.splits(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	f.by["p0"].instead(func(ctx context.Context, _ *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
		f.by["p0"].instead(nil)
		close(entered)
		select {
		case <-leave:
		case <-ctx.Done():
		}
		return nil, status.Error(codes.Unavailable, "down")
	})
	result, q := make(chan error, 1), request()
	go func() {
		_, _, err := f.call(t, deadline(t), q)
		result <- err
	}()
	<-entered
	u.serviceConfig = `{"loadBalancingConfig":[{"round_robin":{}}]}`
	directory.set(u)
	eventually(t, "the other balancer", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // gRPC may lose a call
		defer cancel()
		_, d, err := f.call(t, ctx, request())
		return err == nil && d.Replica == ""
	})
	close(leave)
	require.NoError(t, <-result)
	f.idle(t)
}

// A mooncakeReplica belongs to a pair in which the decode replica waits for the rank of the prefill replica.
type mooncakeReplica struct {
	enginepb.UnimplementedVllmEngineServer
	ranks chan *int32 // of prefill legs
}

func (r mooncakeReplica) Generate(q *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	switch params := q.GetKvTransferParamsJson(); {
	case strings.Contains(params, `"do_remote_decode":true`):
		r.ranks <- q.DataParallelRank
	case params != "":
		rank := <-r.ranks
		if rank == nil || !strings.Contains(params, fmt.Sprintf(`"remote_engine_id":"e_dp%d"`, *rank)) {
			return status.Errorf(codes.InvalidArgument, "%s: not the rank that prefills", params)
		}
	}
	return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: new(enginepb.GenerateComplete)}})
}

// A decode leg names the rank of the engine that prefills, also if the policy chooses no rank.
func TestLegsOfARank(t *testing.T) {
	r := mooncakeReplica{ranks: make(chan *int32, 1)}
	register := func(s *grpc.Server) { enginepb.RegisterVllmEngineServer(s, r) }
	prefills, _ := serveLegs(t, register)
	decodes, _ := serveLegs(t, register)
	cc := dial(t, "ranks:///x", grpc.WithResolvers(newDirectory("ranks", members(
		policy.Attributes{ID: "p", Address: prefills, Role: policy.RolePrefill, Weight: 100, Ranks: 8, KVEngineID: "e"},
		policy.Attributes{ID: "d", Address: decodes, Role: policy.RoleDecode, Weight: 1},
	))), client.WithConfig(config(`{"kv_aware":{}}`)))
	for n := 0; n < 20; {
		var decision client.Decision
		s, err := enginepb.NewVllmEngineClient(cc).Generate(client.WithDecision(deadline(t), &decision), &enginepb.GenerateRequest{
			RequestId: "r", Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: request().GetTokenIds().Ids}},
		})
		for err == nil {
			_, err = s.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
		if decision.Prefill != "" {
			n++
		}
	}
}

// While replicas of one role are being connected, calls wait for them as in a channel of one replica.
func TestFirstCallsWaitForBothRoles(t *testing.T) {
	p, d := startLegReplica(t, "p"), startLegReplica(t, "d")
	pairOnly := `"dialects":[{"like":"/vllm.Inference/Generate","kv":{"params":"10.3",
		"prefill":{"8.1":"1"},"decode":{"10.3.1[room].4":"$room"}}}]`
	for silent, others := range map[string]string{"p": "d", "d": "p"} {
		l := listenLoopback(t) // accepts connections, and sends nothing
		t.Cleanup(func() { require.NoError(t, l.Close()) })
		addrs := map[string]string{"p": p.addr, "d": d.addr}
		addrs[silent] = l.Addr().String()
		cc := dial(t, "first:///x", grpc.WithResolvers(newDirectory("first", members(
			policy.Attributes{ID: "p", Address: addrs["p"], Role: policy.RolePrefill},
			policy.Attributes{ID: "d", Address: addrs["d"], Role: policy.RoleDecode},
		))), client.WithConfig(`{"policy":{"kv_aware":{}},`+pairOnly+`}`))
		stub := vllmpb.NewInferenceClient(cc)
		eventually(t, "connection to "+others, func() bool {
			_, err := stub.Generate(client.WithPin(deadline(t), others), request())
			return err == nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := stub.Generate(ctx, request())
		require.Equal(t, codes.DeadlineExceeded, status.Code(err), err)
		cancel()
	}
}

// A first message that cannot be decoded ends the call, as any other one does, and its decode leg.
func TestLegsWithAnAnswerThatIsNone(t *testing.T) {
	var p nixlReplica
	prefills, _ := serveLegs(t, func(s *grpc.Server) { enginepb.RegisterVllmEngineServer(s, &p) })
	l, legs := listenLoopback(t), atomic.Int64{}
	d := grpc.NewServer(grpc.ForceServerCodecV2(rawBytes{}), everyMethod(func(_ any, s grpc.ServerStream) error {
		var q []byte
		if err := s.RecvMsg(&q); err != nil {
			return err
		}
		if method, _ := grpc.MethodFromServerStream(s); strings.HasSuffix(method, "/Generate") { // else it is an Abort
			legs.Add(1)
		}
		if err := s.SendMsg([]byte{0xff}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}))
	go func() { _ = d.Serve(l) }()
	t.Cleanup(d.Stop)
	m := newMeter(t)
	cc := dial(t, "none:///x", grpc.WithResolvers(newDirectory("none", members(
		policy.Attributes{ID: "p", Address: prefills, Role: policy.RolePrefill, Weight: 100},
		policy.Attributes{ID: "d", Address: l.Addr().String(), Role: policy.RoleDecode, Weight: 1},
	))), client.WithConfig(config(`{"kv_aware":{}}`)), m.option)
	for p.legs.Load() == 0 {
		legs.Store(0)
		s, err := enginepb.NewVllmEngineClient(cc).Generate(deadline(t), &enginepb.GenerateRequest{
			RequestId: "r", Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: request().GetTokenIds().Ids}},
		})
		require.NoError(t, err)
		_, err = s.Recv()
		require.Equal(t, codes.Internal, status.Code(err), err)
	}
	require.EqualValues(t, 1, legs.Load())
	eventually(t, "an end of all reservations", func() bool { return m.ongoing(t) == 0 })
}

// salted adds its own cache salt to every message.
type salted struct{ grpc.ClientStream }

func (s salted) SendMsg(m any) error {
	q := proto.CloneOf(m.(*vllmpb.GenerateRequest))
	q.Kv.CacheSalt = "of the interceptor"
	return s.ClientStream.SendMsg(q)
}

// If an interceptor inside warmpath's changes the message, both legs carry the changed message: they have one prompt.
func TestLegsOfAnotherMessage(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	f.dial(t, client.WithConfig(config(`{"kv_aware":{}}`)), opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			return salted{s}, err
		}))
	q := request()
	last, d, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	q.Kv.CacheSalt = "of the interceptor"
	requireLegs(t, f, q, last, d)
	f.idle(t)
}

// A call ends with the error of an interceptor inside that leaves the stream of a decode leg open.
func TestLegsLeftOpen(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	var opened atomic.Int64
	f.dial(t, client.WithConfig(config(`{"kv_aware":{}}`)), opening(
		func(ctx context.Context, open func(context.Context) (grpc.ClientStream, error)) (grpc.ClientStream, error) {
			s, err := open(ctx)
			if err == nil && opened.Add(-1) == 0 {
				s = leftOpen{s}
			}
			return s, err
		}))
	f.by["d0"].instead(func(ctx context.Context, _ *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	opened.Store(2)
	s, err := vllmpb.NewInferenceClient(f.cc).GenerateStream(deadline(t), request())
	require.NoError(t, err)
	_, err = s.Recv()
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	f.idle(t)
}

// leftOpen is a stream whose messages an interceptor refuses.
type leftOpen struct{ grpc.ClientStream }

func (leftOpen) RecvMsg(any) error { return status.Error(codes.InvalidArgument, "refused") }
