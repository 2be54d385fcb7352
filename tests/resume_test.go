package tests

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/workload"
)

// resuming is a config whose streams go on at another replica, as those of every config do that does not turn it off.
const resuming = `{"policy":{"round_robin":{}}}`

// breaking is an engine whose streams break before a given message, as those of a crashed replica.
type breaking struct {
	enginepb.UnimplementedVllmEngineServer
	addr  string
	calls atomic.Int64
	// end ends a stream before message i of an attempt, counted from 0. nil = the stream goes on.
	end func(ctx context.Context, i int) error
	// rooms maps a room's number to the channel on which the legs of a request meet.
	rooms *sync.Map
	// seen has the requests since the last call of requests.
	mu   sync.Mutex
	seen []proto.Message
}

// breakingInference and breakingSGLang are the engine's other services.
type breakingInference struct {
	vllmpb.UnimplementedInferenceServer
	b *breaking
}

type breakingSGLang struct {
	sglangpb.UnimplementedSglangSchedulerServer
	b *breaking
}

// breakings serves several engines on loopback, with one function for their ends.
func breakings(t testing.TB, n int, end func(at *breaking, ctx context.Context, i int) error) (all []*breaking, target string) {
	var addrs []string
	var rooms sync.Map
	for range n {
		l := listenLoopback(t)
		b := &breaking{addr: l.Addr().String(), rooms: &rooms}
		b.end = func(ctx context.Context, i int) error { return end(b, ctx, i) }
		s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
		enginepb.RegisterVllmEngineServer(s, b)
		vllmpb.RegisterInferenceServer(s, &breakingInference{b: b})
		sglangpb.RegisterSglangSchedulerServer(s, &breakingSGLang{b: b})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		all, addrs = append(all, b), append(addrs, b.addr)
	}
	return all, "warmpath:///" + strings.Join(addrs, ",")
}

// requests returns the requests since the last call.
func (b *breaking) requests() []proto.Message {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen
	b.seen = nil
	return seen
}

// note records a request.
func (b *breaking) note(q proto.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen = append(b.seen, proto.Clone(q))
}

// meet waits for the other leg of a request.
func (b *breaking) meet(ctx context.Context, room int32) {
	door, _ := b.rooms.LoadOrStore(room, make(chan struct{}))
	select {
	case door.(chan struct{}) <- struct{}{}:
	case <-door.(chan struct{}):
	case <-ctx.Done():
	}
}

// generate calls send for each index of the stream until it returns an error, with the output of the request.
func (b *breaking) generate(
	stream grpc.ServerStream, id string, prompt []uint32, most int, send func(i int, token func(int) uint32) error,
) error {
	b.calls.Add(1)
	if err := stream.SendHeader(metadata.Pairs("at", b.addr)); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("at", b.addr))
	from := enginesim.FromTokens(id, prompt, most, 16, 0).OutputFrom
	token := func(i int) uint32 { return workload.Token(workload.OutputSeed(id), from+i) }
	for i := 0; ; i++ {
		if err := b.end(stream.Context(), i); err != nil {
			return err
		}
		if err := send(i, token); err != nil {
			return err
		}
	}
}

// errDone ends a stream normally.
var errDone = fmt.Errorf("done")

func inOrder(err error) error {
	if err == errDone {
		return nil
	}
	return err
}

func (b *breaking) Generate(q *enginepb.GenerateRequest, s grpc.ServerStreamingServer[enginepb.GenerateResponse]) error {
	b.note(q)
	prompt, most := q.GetTokenized().GetInputIds(), int(q.GetSamplingParams().GetMaxTokens())
	if q.SamplingParams == nil {
		most = 16
	}
	if q.GetText() != "" {
		prompt = workload.TextTokens(q.GetText())
	}
	n := uint32(len(prompt))
	return inOrder(b.generate(s, q.RequestId, prompt, most, func(i int, token func(int) uint32) error {
		switch {
		case i > most:
			return errDone
		case i == most:
			return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Complete{Complete: &enginepb.GenerateComplete{
				OutputIds: []uint32{token(i - 1)}, FinishReason: "length", PromptTokens: n, CompletionTokens: 1}}})
		}
		return s.Send(&enginepb.GenerateResponse{Response: &enginepb.GenerateResponse_Chunk{Chunk: &enginepb.GenerateStreamChunk{
			TokenIds: []uint32{token(i)}, PromptTokens: n, CompletionTokens: 1}}})
	}))
}

func (f *breakingInference) GenerateStream(q *vllmpb.GenerateRequest, s grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	f.b.note(q)
	prompt, most := q.GetTokenIds().GetIds(), int(q.GetStopping().GetMaxNewTokens())
	if q.GetKv().GetKvTransferParams().GetFields()["do_remote_decode"].GetBoolValue() {
		if err := f.b.end(s.Context(), 0); err != nil {
			return err
		}
		return s.Send(&vllmpb.GenerateResponse{Outputs: &vllmpb.Output{FinishInfo: &vllmpb.FinishInfo{KvTransferParams: handed(f.b.addr)}}})
	}
	return inOrder(f.b.generate(s, q.RequestId, prompt, most, func(i int, token func(int) uint32) error {
		if i == most {
			return errDone
		}
		m := &vllmpb.GenerateResponse{Outputs: &vllmpb.Output{
			Text: workload.TokenText(token(i)), NumTokens: 1, TokenIds: []uint32{token(i)}}}
		if i == 0 {
			m.PromptInfo = &vllmpb.PromptInfo{NumPromptTokens: uint32(len(prompt))}
		}
		if i == most-1 {
			m.Outputs.FinishInfo = &vllmpb.FinishInfo{NumOutputTokens: uint32(most), FinishReason: vllmpb.FinishInfo_FINISH_REASON_LENGTH}
		}
		return s.Send(m)
	}))
}

func (f *breakingSGLang) Generate(q *sglangpb.GenerateRequest, s grpc.ServerStreamingServer[sglangpb.GenerateResponse]) error {
	f.b.note(q)
	prompt, most := q.GetTokenized().GetInputIds(), int(q.GetSamplingParams().GetMaxNewTokens())
	if p := q.GetDisaggregatedParams(); p != nil {
		if err := f.b.end(s.Context(), 0); err != nil {
			return err
		}
		f.b.meet(s.Context(), p.BootstrapRoom)
	}
	n := uint32(len(prompt))
	return inOrder(f.b.generate(s, q.RequestId, prompt, most, func(i int, token func(int) uint32) error {
		m := &sglangpb.GenerateResponse{RequestId: q.RequestId}
		switch {
		case i > most:
			return errDone
		case i == most:
			m.Response = &sglangpb.GenerateResponse_Complete{Complete: &sglangpb.GenerateComplete{
				OutputIds: []uint32{token(i - 1)}, FinishReason: "length", PromptTokens: n, CompletionTokens: uint32(most)}}
		default:
			m.Response = &sglangpb.GenerateResponse_Chunk{Chunk: &sglangpb.GenerateStreamChunk{
				TokenIds: []uint32{token(i)}, PromptTokens: n, CompletionTokens: uint32(i + 1)}}
		}
		return s.Send(m)
	}))
}

func promptIDs(n int) []uint32 {
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	return ids
}

func engineStream(id string, most uint32) *enginepb.GenerateRequest {
	return &enginepb.GenerateRequest{RequestId: id, Stream: true, SamplingParams: &enginepb.SamplingParams{MaxTokens: &most},
		Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: promptIDs(40)}}}
}

func inferenceStream(id string, most uint32) *vllmpb.GenerateRequest {
	return &vllmpb.GenerateRequest{RequestId: id, Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: most},
		Prompt: &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: promptIDs(40)}}}
}

func sglangStream(id string, most uint32) *sglangpb.GenerateRequest {
	return &sglangpb.GenerateRequest{RequestId: id, Stream: true, SamplingParams: &sglangpb.SamplingParams{MaxNewTokens: &most},
		Tokenized: &sglangpb.TokenizedInput{InputIds: promptIDs(40)}}
}

// received is the part of a stream that an application has.
type received struct {
	messages        []proto.Message
	header, trailer metadata.MD
	err             error
}

// receive makes a call and reads it to its end. It changes the request as soon as it is sent.
func receive(ctx context.Context, cc *grpc.ClientConn, q proto.Message, each func(proto.Message)) (r received) {
	method, answer := "/vllm.Inference/GenerateStream", proto.Message(new(vllmpb.GenerateResponse))
	switch q.(type) {
	case *enginepb.GenerateRequest:
		method, answer = "/vllm.grpc.engine.VllmEngine/Generate", new(enginepb.GenerateResponse)
	case *sglangpb.GenerateRequest:
		method, answer = "/sglang.grpc.scheduler.SglangScheduler/Generate", new(sglangpb.GenerateResponse)
	}
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return received{err: err}
	}
	if r.err = s.SendMsg(q); r.err == nil {
		r.err = s.CloseSend()
	}
	for r.err == nil {
		m := proto.Clone(answer)
		if r.err = s.RecvMsg(m); r.err == nil {
			proto.Reset(q)
			r.messages = append(r.messages, m)
			each(m)
		}
	}
	r.header, _ = s.Header()
	r.trailer = s.Trailer()
	return r
}

func nothing(proto.Message) {}

// reached waits until all replicas are connected, and drops the calls that this took from the counts.
func reached(t *testing.T, cc *grpc.ClientConn, all []*breaking) {
	for _, b := range all {
		eventually(t, "connected", func() bool {
			return receive(client.WithPin(deadline(t), b.addr), cc, engineStream("x", 1), nothing).err == io.EOF
		})
	}
	for _, b := range all {
		b.calls.Store(0)
		b.requests()
	}
}

const outputOf = 9 // tokens of an answer

// streamsOf has the requests by their service.
var streamsOf = map[string]func(id string, most uint32) proto.Message{
	"VllmEngine":      func(id string, most uint32) proto.Message { return engineStream(id, most) },
	"Inference":       func(id string, most uint32) proto.Message { return inferenceStream(id, most) },
	"SglangScheduler": func(id string, most uint32) proto.Message { return sglangStream(id, most) },
}

// dying ends the first n attempts of the test before the messages with these indexes. Calls that only connect are not
// counted.
func dying(code codes.Code, at ...int) func(*breaking, context.Context, int) error {
	var attempts atomic.Int64
	var mu sync.Mutex
	mine := make(map[context.Context]int)
	return func(_ *breaking, ctx context.Context, i int) error {
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("whole")) > 0 || len(md.Get("die")) == 0 {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		n, ok := mine[ctx]
		if !ok {
			n = int(attempts.Add(1)) - 1
			mine[ctx] = n
		}
		if n < len(at) && i == at[n] {
			return status.Error(code, "the engine is stopping")
		}
		return nil
	}
}

func toDie(t testing.TB) context.Context {
	return metadata.AppendToOutgoingContext(deadline(t), "die", "yes")
}

// Wherever a stream breaks, the application gets the messages of an unbroken stream, with the header of the first
// attempt and the trailer of the last.
func TestResumedStreamIsTheWholeStream(t *testing.T) {
	for name, request := range streamsOf {
		for at := 1; at <= outputOf; at++ {
			for _, code := range []codes.Code{codes.Unavailable, codes.Internal, codes.Canceled} {
				t.Run(fmt.Sprintf("%s/%d/%s", name, at, code), func(t *testing.T) {
					all, target := breakings(t, 3, dying(code, at))
					m := newMeter(t)
					cc := dial(t, target, client.WithConfig(resuming), m.option)
					reached(t, cc, all)
					var whole, d client.Decision
					want := receive(client.WithDecision(deadline(t), &whole), cc, request("a", outputOf), nothing)
					require.Equal(t, io.EOF, want.err)
					require.Zero(t, whole.Resumed)
					got := receive(client.WithDecision(toDie(t), &d), cc, request("a", outputOf), nothing)
					require.Equal(t, io.EOF, got.err)
					require.Len(t, got.messages, len(want.messages))
					for i := range want.messages {
						require.True(t, proto.Equal(want.messages[i], got.messages[i]), "%d: %v, %v", i, want.messages[i], got.messages[i])
					}
					require.Equal(t, whole.Usage, d.Usage)
					moved := at < len(want.messages)
					if require.Equal(t, moved, d.Resumed == 1); moved {
						require.Equal(t, d.Address, got.trailer.Get("at")[0])
						require.NotEqual(t, d.Address, got.header.Get("at")[0])
						require.EqualValues(t, 1, m.sum(t, "warmpath.resumes", telemetry.KeyReason.String(telemetry.DidResume)))
					}
					require.Zero(t, m.ongoing(t))
				})
			}
		}
	}
}

// A stream is resumed twice, whether the next replica crashes before or after its first message, and not a third
// time.
func TestResumeAgain(t *testing.T) {
	for name, request := range streamsOf {
		for _, places := range [][]int{{3, 0}, {3, 2}, {1, 1}, {3, 0, 0}, {2, 2, 1}} {
			t.Run(fmt.Sprint(name, places), func(t *testing.T) {
				all, target := breakings(t, 5, dying(codes.Unavailable, places...))
				m := newMeter(t)
				cc := dial(t, target, client.WithConfig(resuming), m.option)
				reached(t, cc, all)
				want := receive(deadline(t), cc, request("a", outputOf), nothing)
				got := receive(toDie(t), cc, request("a", outputOf), nothing)
				if len(places) > 2 {
					require.Equal(t, codes.Unavailable, status.Code(got.err))
					require.EqualValues(t, 1, m.sum(t, "warmpath.resumes", telemetry.KeyReason.String(telemetry.NotResumed)))
				} else {
					require.Equal(t, io.EOF, got.err)
					require.Len(t, got.messages, len(want.messages))
				}
				for i := range got.messages {
					require.True(t, proto.Equal(want.messages[i], got.messages[i]), "%d", i)
				}
				require.Zero(t, m.ongoing(t))
			})
		}
	}
}

// splitStreams has requests in two legs, of 50 tokens.
var splitStreams = map[string]func() proto.Message{
	"Inference":       func() proto.Message { return request() },
	"SglangScheduler": func() proto.Message { return sglangStream("a", 50) },
}

// When the decode replica of a split request crashes after the first message, the request is split again, also if no
// replica serves it whole.
func TestDecodeLegIsResumed(t *testing.T) {
	for service, request := range splitStreams {
		t.Run(service, func(t *testing.T) {
			f := startResumedLegs(t, request, nil, 3)
			d := f.ends(t, request(), 1)
			prefill, decode := f.all[0].requests(), f.all[1].requests()
			if d.Address == f.all[2].addr {
				decode = f.all[2].requests()
			}
			require.Len(t, prefill, 2)
			require.Len(t, decode, 1)
			for _, leg := range []proto.Message{prefill[1], decode[0]} {
				switch q := leg.(type) {
				case *vllmpb.GenerateRequest:
					require.NotEmpty(t, q.GetKv().GetKvTransferParams().GetFields())
					require.Len(t, q.GetTokenIds().GetIds(), f.prompt+3)
				case *sglangpb.GenerateRequest:
					first := prefill[0].(*sglangpb.GenerateRequest)
					require.NotEqual(t, first.DisaggregatedParams.BootstrapRoom, q.DisaggregatedParams.BootstrapRoom)
					require.Len(t, q.Tokenized.InputIds, f.prompt+3)
					require.EqualValues(t, 47, q.SamplingParams.GetMaxNewTokens())
				}
			}
		})
	}
}

// The legs of a resumed stream fail too: the stream is resumed a second time.
func TestResumedLegsFail(t *testing.T) {
	for service, request := range splitStreams {
		for leg, at := range map[string][]int{"prefill": {3}, "decode": {3, 0}} {
			t.Run(service+"/"+leg, func(t *testing.T) {
				prefill := []int(nil)
				if leg == "prefill" {
					prefill = []int{-1, 0}
				}
				startResumedLegs(t, request, prefill, at...).ends(t, request(), 2)
			})
		}
	}
}

// resumedLegs is a fleet of one prefill and two decode replicas.
type resumedLegs struct {
	all    []*breaking
	cc     *grpc.ClientConn
	m      *meter
	prompt int // tokens of a request
}

// startResumedLegs starts replicas of each role that crash before the messages with these indexes.
func startResumedLegs(t *testing.T, request func() proto.Message, prefill []int, decode ...int) *resumedLegs {
	t.Helper()
	f := &resumedLegs{m: newMeter(t)}
	f.all, _ = breakings(t, 3, dying(codes.Unavailable, decode...))
	prefills := dying(codes.Unavailable, prefill...)
	var fleet []policy.Attributes
	for i, b := range f.all {
		a := policy.Attributes{ID: fmt.Sprint("d", i), Address: b.addr, Role: policy.RoleDecode, Weight: 1}
		if i == 0 {
			a.ID, a.Role, a.Weight = "p", policy.RolePrefill, 100
			b.end = func(ctx context.Context, i int) error {
				if i > 0 {
					return errDone
				}
				return prefills(b, ctx, i)
			}
		}
		fleet = append(fleet, a)
	}
	f.cc = dial(t, "resumed:///x", grpc.WithResolvers(newDirectory("resumed", members(fleet...))),
		client.WithConfig(strings.Replace(resuming, "round_robin", "kv_aware", 1)), f.m.option)
	var d client.Decision
	for _, a := range fleet {
		eventually(t, "connection to "+a.ID, func() bool {
			ctx := client.WithDecision(deadline(t), &d)
			if a.Role == policy.RolePrefill {
				return receive(ctx, f.cc, request(), nothing).err == io.EOF && d.Prefill == a.ID
			}
			return receive(client.WithPin(ctx, a.ID), f.cc, request(), nothing).err == io.EOF
		})
	}
	f.prompt = d.Usage.PromptTokens
	for _, b := range f.all {
		b.requests()
	}
	return f
}

// ends reads a stream to its end, which must be resumed so many times.
func (f *resumedLegs) ends(t *testing.T, q proto.Message, resumed int) (d client.Decision) {
	t.Helper()
	id, ids := q.(interface{ GetRequestId() string }).GetRequestId(), []uint32(nil)
	got := receive(client.WithDecision(toDie(t), &d), f.cc, q, func(m proto.Message) { ids = append(ids, newTokens(m)...) })
	require.Equal(t, io.EOF, got.err)
	require.True(t, checkOutput(id, ids, 50))
	require.Equal(t, resumed, d.Resumed)
	require.Equal(t, f.prompt, d.Usage.PromptTokens)
	require.Equal(t, 50, d.Usage.OutputTokens)
	require.Equal(t, "p", d.Prefill)
	eventually(t, "nothing is reserved", func() bool { return f.m.ongoing(t) == 0 })
	return d
}
