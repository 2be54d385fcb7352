package tests

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
)

// A legReplica answers legs of requests as vLLM's frontend does, and records the requests.
type legReplica struct {
	vllmpb.UnimplementedInferenceServer
	id   string
	addr string
	stop func()

	mu  sync.Mutex
	got []*vllmpb.GenerateRequest
	// answer replaces the usual answer.
	answer func(ctx context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error)
}

func startLegReplica(t testing.TB, id string) *legReplica {
	t.Helper()
	r := &legReplica{id: id}
	r.serve(t, listenLoopback(t))
	return r
}

func (r *legReplica) serve(t testing.TB, l net.Listener) {
	r.addr, r.stop = serveLegsOn(t, l, func(s *grpc.Server) { vllmpb.RegisterInferenceServer(s, r) })
}

// serveLegs serves until the test ends, or stop.
func serveLegs(t testing.TB, register func(*grpc.Server), opts ...grpc.ServerOption) (addr string, stop func()) {
	t.Helper()
	return serveLegsOn(t, listenLoopback(t), register, opts...)
}

func serveLegsOn(
	t testing.TB, l net.Listener, register func(*grpc.Server), opts ...grpc.ServerOption,
) (addr string, stop func()) {
	s, done := grpc.NewServer(opts...), make(chan struct{})
	register(s)
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	stop = sync.OnceFunc(func() {
		s.Stop()
		<-done
	})
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

// requests returns the requests since the last call.
func (r *legReplica) requests() []*vllmpb.GenerateRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

// instead sets the answer.
func (r *legReplica) instead(answer func(context.Context, *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *legReplica) Generate(ctx context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
	r.mu.Lock()
	r.got = append(r.got, q)
	answer := r.answer
	r.mu.Unlock()
	if answer != nil {
		return answer(ctx, q)
	}
	return r.usual(q), nil
}

func (r *legReplica) usual(q *vllmpb.GenerateRequest) *vllmpb.GenerateResponse {
	finish := &vllmpb.FinishInfo{NumOutputTokens: q.Stopping.GetMaxNewTokens()}
	if q.GetKv().GetKvTransferParams().GetFields()["do_remote_decode"].GetBoolValue() {
		finish.KvTransferParams = handed(r.id)
	}
	return &vllmpb.GenerateResponse{
		PromptInfo: &vllmpb.PromptInfo{NumPromptTokens: uint32(len(q.GetTokenIds().GetIds()))},
		Outputs:    &vllmpb.Output{NumTokens: q.Stopping.GetMaxNewTokens(), FinishInfo: finish, Text: r.id},
	}
}

func (r *legReplica) GenerateStream(q *vllmpb.GenerateRequest, s grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	m, err := r.Generate(s.Context(), q)
	if err != nil {
		return err
	}
	return s.Send(m)
}

// handed is the hand-over of a replica, in a form that a second encoding would change.
func handed(id string) *structpb.Struct {
	s, _ := structpb.NewStruct(map[string]any{"remote_engine_id": id, "remote_port": 5600.0, "remote_block_ids": []any{3.0, 1.0, 2.0}})
	return s
}

// A legFleet is a channel to replicas with roles. Prefill replicas are so much faster that every request is split.
type legFleet struct {
	cc      *grpc.ClientConn
	by      map[string]*legReplica
	m       *meter
	members []policy.Attributes
}

func startLegFleet(t testing.TB, prefills, decodes int, more ...string) *legFleet {
	t.Helper()
	f := &legFleet{by: map[string]*legReplica{}, m: newMeter(t)}
	add := func(id, role string, weight float64) {
		r := startLegReplica(t, id)
		f.by[id] = r
		f.members = append(f.members, policy.Attributes{ID: id, Address: r.addr, Role: role, Weight: weight})
	}
	for i := range prefills {
		add(fmt.Sprint("p", i), policy.RolePrefill, 100)
	}
	for i := range decodes {
		add(fmt.Sprint("d", i), policy.RoleDecode, 1)
	}
	f.dial(t, client.WithConfig(config(`{"kv_aware":{}}`, more...)))
	return f
}

// dial replaces the fleet's channel.
func (f *legFleet) dial(t testing.TB, opts ...grpc.DialOption) {
	t.Helper()
	d := newDirectory("legs", members(f.members...))
	f.cc = dial(t, "legs:///x", append(opts, grpc.WithResolvers(d), f.m.option)...)
	f.splits(t)
}

// splits waits until each replica has served a leg.
func (f *legFleet) splits(t testing.TB) {
	t.Helper()
	for id := range f.by {
		eventually(t, "connection to "+id, func() bool {
			if id[0] == 'd' {
				_, err := vllmpb.NewInferenceClient(f.cc).Generate(client.WithPin(deadline(t), id), request())
				return err == nil
			}
			_, d, err := f.call(t, deadline(t), request())
			return err == nil && d.Prefill == id
		})
	}
	for _, r := range f.by {
		r.requests()
	}
}

var prompts int

// request returns a request that shares no prefix with others.
func request() *vllmpb.GenerateRequest {
	prompts++
	ids := make([]uint32, 4000)
	for i := range ids {
		ids[i] = uint32(prompts*10_000 + i)
	}
	return &vllmpb.GenerateRequest{
		RequestId: fmt.Sprint("r", prompts),
		Prompt:    &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: ids}},
		Stopping:  &vllmpb.StoppingCriteria{MaxNewTokens: 50},
		Kv:        &vllmpb.KvParams{CacheSalt: "salt"},
	}
}

// call makes a streaming call.
func (f *legFleet) call(t testing.TB, ctx context.Context, q *vllmpb.GenerateRequest) (last *vllmpb.GenerateResponse, d client.Decision, err error) {
	t.Helper()
	s, err := vllmpb.NewInferenceClient(f.cc).GenerateStream(client.WithDecision(ctx, &d), q)
	for err == nil {
		var m *vllmpb.GenerateResponse
		if m, err = s.Recv(); err == nil {
			last = m
		}
	}
	if err == io.EOF {
		err = nil
	}
	return last, d, err
}

// idle waits until nothing is reserved.
func (f *legFleet) idle(t testing.TB) {
	t.Helper()
	eventually(t, "an end of all reservations", func() bool { return f.m.ongoing(t) == 0 })
}

// A request goes to a prefill replica with one output token, and its hand-over goes verbatim to a decode replica. The
// application sees one call.
func TestLegsOfAStream(t *testing.T) {
	f := startLegFleet(t, 2, 2)
	q := request()
	last, d, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	requireLegs(t, f, q, last, d)
	f.idle(t)
}

func TestLegsOfAUnaryCall(t *testing.T) {
	f := startLegFleet(t, 2, 2)
	var d client.Decision
	q := request()
	last, err := vllmpb.NewInferenceClient(f.cc).Generate(client.WithDecision(deadline(t), &d), q)
	require.NoError(t, err)
	requireLegs(t, f, q, last, d)
	f.idle(t)
}

func requireLegs(t testing.TB, f *legFleet, q *vllmpb.GenerateRequest, last *vllmpb.GenerateResponse, d client.Decision) {
	t.Helper()
	require.Contains(t, d.Prefill, "p")
	require.Contains(t, d.Replica, "d")
	require.Equal(t, d.Replica, last.Outputs.Text)
	require.Equal(t, 1, d.Attempts)
	require.Equal(t, 4000, d.Usage.PromptTokens)
	require.Equal(t, 50, d.Usage.OutputTokens)
	prefill, decode := f.by[d.Prefill].requests(), f.by[d.Replica].requests()
	require.Len(t, prefill, 1)
	require.Len(t, decode, 1)
	want := proto.CloneOf(q)
	want.Stopping = &vllmpb.StoppingCriteria{MaxNewTokens: 1}
	want.Stopping.ProtoReflect().SetUnknown(prefill[0].Stopping.ProtoReflect().GetUnknown()) // min_new_tokens
	want.Kv.KvTransferParams, _ = structpb.NewStruct(map[string]any{"do_remote_decode": true})
	require.True(t, proto.Equal(want, prefill[0]), "%v", prefill[0])
	want = proto.CloneOf(q)
	want.Kv.KvTransferParams = handed(d.Prefill)
	require.True(t, proto.Equal(want, decode[0]), "%v", decode[0])
}

// A leg whose replica refuses it or crashes is repeated on another replica, and the call is served.
func TestLegsRetry(t *testing.T) {
	fails := func(c codes.Code) func(context.Context, *legReplica) error {
		return func(context.Context, *legReplica) error { return status.Error(c, "it fails") }
	}
	dies := func(ctx context.Context, r *legReplica) error {
		go r.stop()
		<-ctx.Done()
		return ctx.Err()
	}
	for _, tt := range []struct {
		name            string
		first           string // the leg whose first request fails
		fail            func(ctx context.Context, r *legReplica) error
		prefill, decode int // requests of all replicas
	}{
		{"prefill fails", "p", fails(codes.Internal), 2, 1},
		{"prefill dies", "p", dies, 2, 1},
		{"the transfer fails", "d", fails(codes.Internal), 2, 2},
		{"decode dies", "d", dies, 2, 2},
		{"decode is unavailable", "d", fails(codes.Unavailable), 2, 2},
		{"decode refuses", "d", fails(codes.ResourceExhausted), 1, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := startLegFleet(t, 2, 3)
			var failed atomic.Bool
			for id, r := range f.by {
				if id[:1] != tt.first {
					continue
				}
				r.instead(func(ctx context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
					if failed.CompareAndSwap(false, true) {
						return nil, tt.fail(ctx, r)
					}
					return r.usual(q), nil
				})
			}
			_, d, err := f.call(t, deadline(t), request())
			require.NoError(t, err)
			require.Equal(t, 2, d.Attempts)
			require.NotEmpty(t, d.Prefill)
			n := map[string]int{}
			for id, r := range f.by {
				n[id[:1]] += len(r.requests())
			}
			require.Equal(t, map[string]int{"p": tt.prefill, "d": tt.decode}, n)
			f.idle(t)
		})
	}
}

// A decode replica takes the KV cache once: the prefill replica then gives the blocks to other requests, and the engine of
// another decode replica would read those without an error. Whatever a decode leg ends with after its replica has begun,
// no other one is told of the same blocks.
func TestLegsHandOverOnce(t *testing.T) {
	for _, end := range []codes.Code{codes.OK, codes.Unavailable, codes.Internal, codes.NotFound, codes.Canceled} {
		t.Run(end.String(), func(t *testing.T) {
			f := startLegFleet(t, 2, 3)
			var decodes, prefills atomic.Int32
			for id, r := range f.by {
				r.instead(func(ctx context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
					a := r.usual(q)
					switch {
					case id[:1] == "p":
						blocks := structpb.NewNumberValue(float64(prefills.Add(1)))
						a.Outputs.FinishInfo.KvTransferParams.Fields["remote_block_ids"] = blocks
					case decodes.Add(1) == 1 && end == codes.OK: // the replica dies
						go r.stop()
						<-ctx.Done()
						return nil, ctx.Err()
					case decodes.Load() == 1:
						return nil, status.Error(end, "it fails")
					}
					return a, nil
				})
			}
			_, _, err := f.call(t, deadline(t), request())
			require.NoError(t, err)
			require.Equal(t, []int32{2, 2}, []int32{prefills.Load(), decodes.Load()})
			told := make(map[float64]int)
			for _, r := range f.by {
				for _, q := range r.requests() {
					if blocks := q.GetKv().GetKvTransferParams().GetFields()["remote_block_ids"]; blocks != nil {
						told[blocks.GetNumberValue()]++
					}
				}
			}
			require.Equal(t, map[float64]int{1: 1, 2: 1}, told)
			f.idle(t)
		})
	}
}

// A prefill replica that hands nothing over does not fail the call: the decode leg computes the prompt.
func TestLegsWithoutHandOver(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	f.by["p0"].instead(func(_ context.Context, q *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
		return &vllmpb.GenerateResponse{}, nil
	})
	q := request()
	_, _, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	require.True(t, proto.Equal(q, f.by["d0"].requests()[0]))
	f.idle(t)
}

// An error of the request itself ends the call at once, with its status.
func TestLegsFinalStatus(t *testing.T) {
	f := startLegFleet(t, 2, 2)
	for _, r := range f.by {
		if r.id[0] == 'p' {
			r.instead(func(context.Context, *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
				return nil, status.Error(codes.InvalidArgument, "too long")
			})
		}
	}
	_, d, err := f.call(t, deadline(t), request())
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.LessOrEqual(t, d.Attempts, 1)
	f.idle(t)
}

// A call that is cancelled during either leg leaves no reservation.
func TestLegsCancel(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	for _, id := range []string{"p0", "d0"} {
		ctx, cancel := context.WithCancel(deadline(t))
		f.by[id].instead(func(leg context.Context, _ *vllmpb.GenerateRequest) (*vllmpb.GenerateResponse, error) {
			cancel()
			<-leg.Done()
			return nil, leg.Err()
		})
		_, _, err := f.call(t, ctx, request())
		require.Equal(t, codes.Canceled, status.Code(err))
		f.by[id].instead(nil)
		f.idle(t)
	}
}

// Requests with transfer parameters of the application, or with two outputs, are not split.
func TestLegsNotSplit(t *testing.T) {
	f := startLegFleet(t, 1, 1)
	q := request()
	q.Kv.KvTransferParams = handed("mine")
	_, d, err := f.call(t, deadline(t), q)
	require.NoError(t, err)
	require.Empty(t, d.Prefill)
	require.Equal(t, "d0", d.Replica)
	require.True(t, proto.Equal(q, slices.Concat(f.by["d0"].requests())[0]))
	require.Empty(t, f.by["p0"].requests())
}
