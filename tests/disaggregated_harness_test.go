package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/lab/enginesim"
	sglangpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/sglang/grpc/scheduler"
	vllmpb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/workload"
)

// Sizes of the requests that are split. Background calls on the decode replicas make splitting cheaper.
const (
	splitPrompt = 2000
	splitOutput = 6
	background  = 32
)

// kvFlow is a way to send a request that may be split: a method of an engine and its connector.
type kvFlow struct {
	name      string
	connector grpcserver.Connector
	// wholeAtDecode: decode replicas serve whole requests.
	wholeAtDecode bool
	send          func(context.Context, *grpc.ClientConn, kvRequest) (answered []uint32, messages int, err error)
}

// kvRequest is a request of any flow.
type kvRequest struct {
	id     string
	prompt []uint32
	output int
}

var kvFlows = []kvFlow{
	{"vllm.Inference stream", grpcserver.NIXL, true, kvSendStream},
	{"vllm.Inference unary", grpcserver.NIXL, true, kvSendUnary},
	{"VllmEngine NIXL", grpcserver.NIXL, true, kvSendEngine},
	{"VllmEngine Mooncake", grpcserver.Mooncake, true, kvSendEngine},
	{"SglangScheduler", grpcserver.Rooms, false, kvSendSGLang},
}

// kvPrompt is the prompt of a request: requests have nothing in common.
func kvPrompt(id string) []uint32 {
	seed, ids := workload.OutputSeed("prompt of "+id), make([]uint32, splitPrompt)
	for i := range ids {
		ids[i] = workload.Token(seed, i)
	}
	return ids
}

// kvReceive reads a stream to its end.
func kvReceive[M any](stream grpc.ServerStreamingClient[M], err error, tokens func(*M) []uint32) (ids []uint32, n int, _ error) {
	for err == nil {
		var m *M
		if m, err = stream.Recv(); err == nil {
			n++
			ids = append(ids, tokens(m)...)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return ids, n, err
}

func kvInference(r kvRequest) *vllmpb.GenerateRequest {
	return &vllmpb.GenerateRequest{
		RequestId: r.id, Prompt: &vllmpb.GenerateRequest_TokenIds{TokenIds: &vllmpb.TokenIds{Ids: r.prompt}},
		Stopping: &vllmpb.StoppingCriteria{MaxNewTokens: uint32(r.output)},
	}
}

func kvSendStream(ctx context.Context, cc *grpc.ClientConn, r kvRequest) ([]uint32, int, error) {
	stream, err := vllmpb.NewInferenceClient(cc).GenerateStream(ctx, kvInference(r))
	return kvReceive(stream, err, func(m *vllmpb.GenerateResponse) []uint32 { return m.GetOutputs().GetTokenIds() })
}

func kvSendUnary(ctx context.Context, cc *grpc.ClientConn, r kvRequest) ([]uint32, int, error) {
	m, err := vllmpb.NewInferenceClient(cc).Generate(ctx, kvInference(r))
	if err != nil {
		return nil, 0, err
	}
	return m.GetOutputs().GetTokenIds(), 1, nil
}

func kvEngineRequest(r kvRequest) *enginepb.GenerateRequest {
	return &enginepb.GenerateRequest{
		RequestId: r.id, Stream: true,
		SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(uint32(r.output)), Temperature: proto.Float32(0)},
		Input:          &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: r.prompt}},
	}
}

func kvSendEngine(ctx context.Context, cc *grpc.ClientConn, r kvRequest) ([]uint32, int, error) {
	stream, err := enginepb.NewVllmEngineClient(cc).Generate(ctx, kvEngineRequest(r))
	return kvReceive(stream, err, func(m *enginepb.GenerateResponse) []uint32 { return m.GetChunk().GetTokenIds() })
}

func kvSendSGLang(ctx context.Context, cc *grpc.ClientConn, r kvRequest) ([]uint32, int, error) {
	stream, err := sglangpb.NewSglangSchedulerClient(cc).Generate(ctx, &sglangpb.GenerateRequest{
		RequestId: r.id, Stream: true, SamplingParams: &sglangpb.SamplingParams{MaxNewTokens: proto.Uint32(uint32(r.output))},
		Tokenized: &sglangpb.TokenizedInput{InputIds: r.prompt},
	})
	return kvReceive(stream, err, func(m *sglangpb.GenerateResponse) []uint32 { return m.GetChunk().GetTokenIds() })
}

// kvOutput is the answer to a request.
func kvOutput(id string, output int) []uint32 {
	seed, ids := workload.OutputSeed(id), make([]uint32, output)
	for i := range ids {
		ids[i] = workload.Token(seed, i)
	}
	return ids
}

// kvEngine is one engine of a fleet.
type kvEngine struct {
	policy.Attributes
	server *grpcserver.Server
	// cut: the engine was killed.
	cut atomic.Bool
}

// kvFleet is engines with roles and a channel to them.
type kvFleet struct {
	t       testing.TB
	flow    kvFlow
	engines []*kvEngine
	cc      *grpc.ClientConn
	meter   *meter
	// wholeBefore is how many whole requests there were when the fleet was ready.
	wholeBefore int
	// background is the context of the background calls, release ends them.
	background context.Context
	release    context.CancelFunc
	busy       sync.WaitGroup
}

// long is a time of the engines, which runs 50 times as fast as the clock.
const long = 24 * time.Hour

// kvOptions are those of a fleet.
type kvOptions struct {
	prefills, decodes, boths int
	lease                    time.Duration // in engine time, 50 times as fast; of the other waits, too
	// pair is the label of an engine; nil = all have the same.
	pair func(id string) string
	// moment is called at each moment of each leg.
	moment func(e *kvEngine, m grpcserver.Moment, id string)
	config string
}

// startKVFleet starts a fleet and waits until it is connected.
func startKVFleet(t testing.TB, flow kvFlow, o kvOptions) *kvFleet {
	t.Helper()
	f := &kvFleet{t: t, flow: flow, meter: newMeter(t)}
	for _, group := range []struct {
		role policy.Attributes
		n    int
	}{
		{policy.Attributes{ID: "p", Role: policy.RolePrefill}, o.prefills},
		{policy.Attributes{ID: "d", Role: policy.RoleDecode}, o.decodes}, {policy.Attributes{ID: "b"}, o.boths},
	} {
		for i := range group.n {
			a := group.role
			a.ID += strconv.Itoa(i)
			f.engines = append(f.engines, startKVEngine(t, flow, a, o))
		}
	}
	var all []policy.Attributes
	for _, e := range f.engines {
		all = append(all, e.Attributes)
	}
	dir := newDirectory("kvfleet", members(all...))
	if o.config == "" {
		o.config = `{"policy":{"kv_aware":{}},"retry_ratio":"off"}` // the background fails too
	}
	f.cc = dial(t, "kvfleet:///x", grpc.WithResolvers(dir), client.WithConfig(o.config), f.meter.option)
	for _, e := range f.engines {
		f.connected(e.ID)
	}
	f.background, f.release = context.WithCancel(context.Background())
	t.Cleanup(func() {
		f.release()
		f.busy.Wait()
	})
	for _, e := range f.of("d") {
		f.occupy(e)
	}
	f.wholeBefore, _, _ = f.sums()
	return f
}

// connected waits until the channel can call a replica.
func (f *kvFleet) connected(id string) {
	f.t.Helper()
	health := healthpb.NewHealthClient(f.cc)
	ctx := deadline(f.t)
	eventually(f.t, "connection to "+id, func() bool {
		_, err := health.Check(client.WithPin(ctx, id), &healthpb.HealthCheckRequest{})
		return err == nil
	})
}

// startKVEngine serves an engine until the test ends.
func startKVEngine(t testing.TB, flow kvFlow, a policy.Attributes, o kvOptions) *kvEngine {
	t.Helper()
	e := &kvEngine{Attributes: a}
	d := &grpcserver.Disaggregation{
		Role: grpcserver.Role(a.Role), Connector: flow.connector, Lease: o.lease, Timeout: o.lease,
		EngineID: "engine of " + a.ID,
	}
	if o.moment != nil {
		d.Moment = func(m grpcserver.Moment, id string) { o.moment(e, m, id) }
	}
	e.server = startEngine(t, grpcserver.Config{
		Engine: enginesim.Config{Preset: "2xh100-8b"}, Speed: 50, Disaggregation: d,
	})
	e.Address, e.KVBootstrap = e.server.Addr().String(), e.server.KVAddr()
	if e.Pair = "r1"; o.pair != nil {
		e.Pair = o.pair(e.ID)
	}
	if flow.connector == grpcserver.Mooncake {
		e.KVEngineID = e.server.KVEngineID()
	}
	return e
}

// occupy keeps requests under way at a decode replica, so that a prefill there is costly.
func (f *kvFleet) occupy(e *kvEngine) {
	f.t.Helper()
	if !f.flow.wholeAtDecode {
		return
	}
	for i := range background {
		r := &enginepb.GenerateRequest{
			RequestId: "background", SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(100_000)},
			Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: []uint32{uint32(i)}}},
		}
		f.busy.Go(func() {
			stream, err := enginepb.NewVllmEngineClient(f.cc).Generate(client.WithPin(f.background, e.ID), r)
			if err == nil {
				_, _ = stream.Recv() // it ends with the test, or with the replica
			}
		})
	}
	eventually(f.t, e.ID+" is occupied", func() bool { return e.server.Stats().Ongoing >= background })
}

// call sends one request.
func (f *kvFleet) call(ctx context.Context, id string) (messages int, err error) {
	ids, n, err := f.flow.send(ctx, f.cc, kvRequest{id, kvPrompt(id), splitOutput})
	if want := kvOutput(id, splitOutput); err == nil && !slices.Equal(ids, want) {
		err = fmt.Errorf("request %s has the answer %v, not %v", id, ids, want)
	}
	return n, err
}

// of are the engines of a role: p, d or b.
func (f *kvFleet) of(role string) (all []*kvEngine) {
	for _, e := range f.engines {
		if strings.HasPrefix(e.ID, role) {
			all = append(all, e)
		}
	}
	return all
}

// sums adds up what the engines have counted.
func (f *kvFleet) sums() (whole, prefills, decodes int) {
	for _, e := range f.engines {
		s := e.server.Stats()
		whole, prefills, decodes = whole+s.Whole, prefills+s.Prefills, decodes+s.Decodes
	}
	return whole - f.wholeBefore, prefills, decodes
}

// transfers is how often KV was pulled, and how often a prefill leg was ended before.
func (f *kvFleet) transfers() (pulled, dropped int) {
	for _, e := range f.of("p") {
		s := e.server.Stats().KV
		pulled, dropped = pulled+s.Pulled, dropped+s.Dropped
	}
	return pulled, dropped
}

// nothingReserved waits until neither the client nor a running engine has a reservation.
func (f *kvFleet) nothingReserved() {
	f.t.Helper()
	f.release()
	f.busy.Wait()
	eventually(f.t, "nothing is reserved by the client", func() bool { return f.meter.ongoing(f.t) == 0 })
	for _, e := range f.engines {
		if e.cut.Load() {
			continue
		}
		eventually(f.t, e.ID+" holds nothing", func() bool {
			s := e.server.Stats()
			return s.Ongoing == 0 && s.KV.Held == 0 && s.Load.Running+s.Load.Waiting+s.Load.UsedTokens == 0
		})
	}
}

// killInTurn kills an engine that prefills, one that decodes, and then the other two. They are served again after calm,
// which lets calls pass.
func (f *kvFleet) killInTurn(o kvOptions, calm func()) {
	f.t.Helper()
	for _, victims := range [][]*kvEngine{f.of("p")[:1], f.of("d")[:1], {f.of("p")[1], f.of("d")[1]}} {
		for _, e := range victims {
			e.cut.Store(true)
			e.server.Kill()
		}
		calm()
		for _, e := range victims {
			f.restart(e, o)
		}
		calm()
	}
}

// restart serves a killed engine at its old addresses.
func (f *kvFleet) restart(e *kvEngine, o kvOptions) {
	f.t.Helper()
	d := &grpcserver.Disaggregation{
		Role: grpcserver.Role(e.Role), Connector: f.flow.connector, EngineID: "engine of " + e.ID,
		Lease: o.lease, Timeout: o.lease,
		Listen: e.KVBootstrap,
	}
	s, err := grpcserver.Start(listenAt(f.t, e.Address), grpcserver.Config{
		Engine: enginesim.Config{Preset: "2xh100-8b"}, Speed: 50, Disaggregation: d,
	})
	require.NoError(f.t, err)
	f.t.Cleanup(s.Kill)
	e.server = s
	e.cut.Store(false)
	f.connected(e.ID)
	if e.Role == policy.RoleDecode {
		f.occupy(e)
	}
}

// crash kills the engine as a crash would, without waiting.
func (e *kvEngine) crash() {
	if e.cut.CompareAndSwap(false, true) {
		e.server.Crash()
	}
}

// reserved is the running engine of a role that has more reservations than the background, nil if there is none.
func (f *kvFleet) reserved(role string) *kvEngine {
	for _, e := range f.of(role) {
		idle := int64(0)
		if e.Role == policy.RoleDecode && f.flow.wholeAtDecode {
			idle = background
		}
		if !e.cut.Load() && f.meter.sum(f.t, "warmpath.replica.ongoing", telemetry.KeyReplica.String(e.ID)) > idle {
			return e
		}
	}
	return nil
}
