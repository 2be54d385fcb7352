package grpcserver

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/kvtransfer"
	"github.com/warmpath/warmpath/lab/workload"
)

// nixlPrefill are the parameters of a prefill leg with NIXL.
const nixlPrefill = `{"do_remote_decode":true}`

// legs starts a prefill and a decode engine.
func legs(t *testing.T, c Connector, more func(*Disaggregation)) (p, d *Server, toP, toD *grpc.ClientConn) {
	start1 := func(r Role) (*Server, *grpc.ClientConn) {
		dis := &Disaggregation{Role: r, Connector: c}
		if more != nil {
			more(dis)
		}
		return start(t, Config{Virtual: true, Disaggregation: dis})
	}
	p, toP = start1(Prefill)
	d, toD = start1(Decode)
	return p, d, toP, toD
}

// with sets the parameters of a leg.
func with(r *enginepb.GenerateRequest, params string) *enginepb.GenerateRequest {
	r.KvTransferParamsJson = &params
	return r
}

// free checks that an engine holds nothing.
func free(t *testing.T, s *Server) {
	require.Eventually(t, func() bool {
		st := s.Stats()
		return st.KV.Held == 0 && st.Load.UsedTokens == 0 && st.Ongoing == 0
	}, 30*time.Second, time.Millisecond)
}

func TestNIXLLegs(t *testing.T) {
	p, d, toP, toD := legs(t, NIXL, nil)
	ids := tokens(0, 100)
	first := generate(t.Context(), toP, with(engineRequest("one", ids, 1, false), nixlPrefill))
	require.NoError(t, first.err)
	params := first.complete.GetKvTransferParamsJson()
	require.Contains(t, params, `"remote_block_ids": [[1, 2, 3, 4, 5, 6, 7]]`)
	st := p.Stats()
	require.Equal(t, kvtransfer.Stats{Held: 1}, st.KV)
	require.Equal(t, 112, st.Load.UsedTokens)

	got := generate(t.Context(), toD, with(engineRequest("one", ids, 40, true), params))
	require.NoError(t, got.err)
	require.Len(t, got.chunks, 40)
	require.Equal(t, workload.Token(workload.OutputSeed("one"), 0), got.chunks[0].TokenIds[0])
	require.EqualValues(t, 99, d.Stats().Engine.ReceivedTokens)
	require.EqualValues(t, 1, figure(t, got.trailer, TrailerComputed))
	free(t, p)
	require.Equal(t, kvtransfer.Stats{Pulled: 1}, p.Stats().KV)
	require.Equal(t, []int{0, 1, 0}, []int{p.Stats().Whole, p.Stats().Prefills, p.Stats().Decodes})
	require.Equal(t, []int{0, 0, 1}, []int{d.Stats().Whole, d.Stats().Prefills, d.Stats().Decodes})

	// The pulled KV is freed.
	again := generate(t.Context(), toD, with(engineRequest("one", ids, 40, true), params))
	require.Equal(t, codes.Internal, status.Code(again.err))
	// A decode engine serves whole requests too.
	require.NoError(t, generate(t.Context(), toD, engineRequest("whole", ids, 4, true)).err)
	require.Equal(t, 1, d.Stats().Whole)
}

func TestInferenceLegs(t *testing.T) {
	p, d, toP, toD := legs(t, NIXL, nil)
	request := func(output uint32, params *structpb.Struct) *vllmpb.GenerateRequest {
		return &vllmpb.GenerateRequest{
			RequestId: "one", Prompt: &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: tokens(0, 64)}},
			Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: output}, Kv: &vllmpb.KvParams{KvTransferParams: params},
		}
	}
	first, err := vllmpb.NewInferenceClient(toP).Generate(t.Context(), request(1, asStruct(nixlPrefill)))
	require.NoError(t, err)
	params := first.GetOutputs().GetFinishInfo().GetKvTransferParams()
	changed := proto.CloneOf(params)
	changed.Fields["tp_size"] = structpb.NewNumberValue(2)
	_, err = vllmpb.NewInferenceClient(toD).Generate(t.Context(), request(8, changed))
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	got, err := vllmpb.NewInferenceClient(toD).Generate(t.Context(), request(8, params))
	require.NoError(t, err)
	require.EqualValues(t, 8, got.GetOutputs().GetNumTokens())
	free(t, p)
	free(t, d)
	require.Equal(t, kvtransfer.Stats{Pulled: 1}, p.Stats().KV)
}

func TestLegsAreRefused(t *testing.T) {
	_, _, toP, toD := legs(t, NIXL, nil)
	ids := tokens(0, 32)
	first := generate(t.Context(), toP, with(engineRequest("one", ids, 1, false), nixlPrefill))
	require.NoError(t, first.err)
	params := first.complete.GetKvTransferParamsJson()
	for name, c := range map[string]struct {
		to     *grpc.ClientConn
		output uint32
		params string
		want   codes.Code
	}{
		"a prefill leg of two tokens":   {toP, 2, nixlPrefill, codes.InvalidArgument},
		"a prefill leg at decode":       {toD, 1, nixlPrefill, codes.InvalidArgument},
		"a decode leg at prefill":       {toP, 4, params, codes.InvalidArgument},
		"neither leg":                   {toP, 1, `{}`, codes.InvalidArgument},
		"no JSON":                       {toP, 1, `{`, codes.InvalidArgument},
		"no reference":                  {toD, 4, `{"do_remote_prefill":true}`, codes.InvalidArgument},
		"parameters written anew":       {toD, 4, strings.ReplaceAll(params, `": `, `":`), codes.InvalidArgument},
		"an unknown reference":          {toD, 4, strings.ReplaceAll(params, `"one-`, `"two-`), codes.Internal},
		"a prefill engine that is gone": {toD, 4, strings.ReplaceAll(params, `_port": `, `_port": 1, "x": `), codes.Internal},
	} {
		g := generate(t.Context(), c.to, with(engineRequest(name, ids, c.output, true), c.params))
		require.Equal(t, c.want, status.Code(g.err), "%s: %v", name, g.err)
	}
	require.NoError(t, generate(t.Context(), toD, with(engineRequest("one", ids, 4, true), params)).err, "the KV is still there")
}

func TestAbortFreesHeldKV(t *testing.T) {
	p, _, toP, toD := legs(t, NIXL, nil)
	ids := tokens(0, 32)
	first := generate(t.Context(), toP, with(engineRequest("one", ids, 1, false), nixlPrefill))
	require.NoError(t, first.err)
	_, err := enginepb.NewVllmEngineClient(toP).Abort(t.Context(), &enginepb.AbortRequest{RequestIds: []string{"one"}})
	require.NoError(t, err)
	free(t, p)
	require.Equal(t, kvtransfer.Stats{Dropped: 1}, p.Stats().KV)
	late := generate(t.Context(), toD, with(engineRequest("one", ids, 4, true), first.complete.GetKvTransferParamsJson()))
	require.Equal(t, codes.Internal, status.Code(late.err))
}

func TestLeaseEnds(t *testing.T) {
	p, _, toP, toD := legs(t, NIXL, func(d *Disaggregation) { d.Lease = time.Millisecond })
	ids := tokens(0, 32)
	first := generate(t.Context(), toP, with(engineRequest("one", ids, 1, false), nixlPrefill))
	require.NoError(t, first.err)
	free(t, p)
	require.Equal(t, kvtransfer.Stats{Expired: 1}, p.Stats().KV)
	late := generate(t.Context(), toD, with(engineRequest("one", ids, 4, true), first.complete.GetKvTransferParamsJson()))
	require.Equal(t, codes.Internal, status.Code(late.err))
}

// With Mooncake either leg may begin.
func TestMooncakeLegs(t *testing.T) {
	p, d, toP, toD := legs(t, Mooncake, nil)
	ids := tokens(0, 64)
	prefill := with(engineRequest("one", ids, 1, false), `{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":"x"}`)
	decode := func(engine string) *enginepb.GenerateRequest {
		return with(engineRequest("one", ids, 8, true), `{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":"x",`+
			`"remote_engine_id":"`+engine+`","remote_bootstrap_addr":"http://`+p.KVAddr()+`"}`)
	}
	for _, decodeFirst := range []bool{false, true} {
		var calls sync.WaitGroup
		if decodeFirst {
			calls.Go(func() { require.NoError(t, generate(t.Context(), toD, decode(p.KVEngineID())).err) })
			require.Eventually(t, func() bool { return d.Stats().Ongoing == 1 }, 30*time.Second, time.Millisecond)
		}
		g := generate(t.Context(), toP, prefill)
		require.NoError(t, g.err)
		require.Nil(t, g.complete.KvTransferParamsJson)
		if !decodeFirst {
			require.Equal(t, codes.InvalidArgument, status.Code(generate(t.Context(), toD, decode("other")).err))
			require.NoError(t, generate(t.Context(), toD, decode(p.KVEngineID())).err)
		}
		calls.Wait()
		free(t, p)
		free(t, d)
	}
	require.Equal(t, kvtransfer.Stats{Pulled: 2}, p.Stats().KV)
}

// roomRequest makes a leg with a bootstrap room at a prefill engine.
func roomRequest(t *testing.T, p *Server, room int32) *sglangpb.GenerateRequest {
	host, port, err := net.SplitHostPort(p.KVAddr())
	require.NoError(t, err)
	n, err := strconv.Atoi(port)
	require.NoError(t, err)
	return &sglangpb.GenerateRequest{
		RequestId: "one", Tokenized: &sglangpb.TokenizedInput{InputIds: tokens(0, 64)},
		SamplingParams: &sglangpb.SamplingParams{MaxNewTokens: proto.Uint32(8)}, Stream: true,
		DisaggregatedParams: &sglangpb.DisaggregatedParams{BootstrapHost: host, BootstrapPort: int32(n), BootstrapRoom: room},
	}
}

// sglang reads an answer to its end.
func sglang(ctx context.Context, cc *grpc.ClientConn, r *sglangpb.GenerateRequest) (last *sglangpb.GenerateComplete, err error) {
	stream, err := sglangpb.NewSglangSchedulerClient(cc).Generate(ctx, r)
	for err == nil {
		var m *sglangpb.GenerateResponse
		if m, err = stream.Recv(); err == nil && m.GetComplete() != nil {
			last = m.GetComplete()
		}
	}
	if last != nil {
		err = nil
	}
	return last, err
}

func TestRooms(t *testing.T) {
	p, d, toP, toD := legs(t, Rooms, nil)
	var calls sync.WaitGroup
	for room := range int32(20) {
		calls.Go(func() {
			first, err := sglang(t.Context(), toP, roomRequest(t, p, room))
			require.NoError(t, err)
			require.EqualValues(t, 1, first.GetCompletionTokens())
		})
		calls.Go(func() {
			last, err := sglang(t.Context(), toD, roomRequest(t, p, room))
			require.NoError(t, err)
			require.EqualValues(t, 8, last.GetCompletionTokens())
		})
	}
	calls.Wait()
	free(t, p)
	free(t, d)
	require.Equal(t, kvtransfer.Stats{Pulled: 20}, p.Stats().KV)

	whole := roomRequest(t, p, 1)
	whole.DisaggregatedParams = nil
	for _, cc := range []*grpc.ClientConn{toP, toD} {
		_, err := sglang(t.Context(), cc, whole)
		require.Equal(t, codes.InvalidArgument, status.Code(err))
	}
	_, err := sglang(t.Context(), toP, roomRequest(t, d, 1))
	require.Equal(t, codes.InvalidArgument, status.Code(err), "the bootstrap server of another engine")
}

func TestRoomWithoutPartner(t *testing.T) {
	p, d, toP, toD := legs(t, Rooms, func(d *Disaggregation) { d.Timeout, d.Lease = time.Second/2, time.Second/2 })
	for _, cc := range []*grpc.ClientConn{toP, toD} {
		_, err := sglang(t.Context(), cc, roomRequest(t, p, 7))
		require.Equal(t, codes.Internal, status.Code(err))
	}
	free(t, p)
	free(t, d)
	// The slot is free again. On a busy machine the legs may miss each other.
	require.Eventually(t, func() bool {
		var prefill sync.WaitGroup
		defer prefill.Wait()
		prefill.Go(func() { _, _ = sglang(t.Context(), toP, roomRequest(t, p, 7)) })
		_, err := sglang(t.Context(), toD, roomRequest(t, p, 7))
		return err == nil
	}, 30*time.Second, time.Millisecond)
	free(t, p)
}

// Every moment is reported, in order, and an engine that crashes at one cuts its calls.
func TestMoments(t *testing.T) {
	for crash := range Moments {
		var mu sync.Mutex // guards what follows
		var seen []Moment
		var engines [2]*Server
		p, d, toP, toD := legs(t, NIXL, func(dis *Disaggregation) {
			leg := 0
			if dis.Role == Decode {
				leg = 1
			}
			dis.Moment = func(m Moment, id string) {
				mu.Lock()
				defer mu.Unlock()
				require.Equal(t, "one", id)
				if seen = append(seen, m); m == crash {
					engines[leg].Crash()
				}
			}
		})
		mu.Lock()
		engines = [2]*Server{p, d}
		mu.Unlock()
		ids := tokens(0, 64)
		g := generate(t.Context(), toP, with(engineRequest("one", ids, 1, false), nixlPrefill))
		if crash > PrefillAnswers {
			require.NoError(t, g.err)
			g = generate(t.Context(), toD, with(engineRequest("one", ids, 8, true), g.complete.GetKvTransferParamsJson()))
		}
		require.Equal(t, codes.Unavailable, status.Code(g.err), "%d: %v", crash, g.err)
		if crash < DecodeEnds {
			require.Empty(t, g.chunks, crash)
		}
		mu.Lock()
		require.Len(t, seen, int(crash)+1)
		for i, m := range seen {
			require.EqualValues(t, i, m)
		}
		mu.Unlock()
		p.Kill()
		d.Kill()
	}
}
