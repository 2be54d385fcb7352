package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/proto"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/client"
	"github.com/warmpath/warmpath/internal/freeport"
	"github.com/warmpath/warmpath/lab/drive"
	enginepb "github.com/warmpath/warmpath/lab/enginesim/enginepb/vllm/grpc/engine"
)

// killWithin bounds every wait.
const killWithin = time.Minute

// A killEngine is an engine in its own process.
type killEngine struct {
	policy.Attributes
	process *drive.Process
}

// A killFleet is two prefill and two decode engines, each in its own process, and a channel to them. The fleet is the
// channel's stats handler: engines are killed when the channel sends or receives.
type killFleet struct {
	t       *testing.T
	flow    killFlow
	resume  bool
	engines map[string]*killEngine // by address
	order   []*killEngine
	cc      *grpc.ClientConn
	reader  *sdkmetric.ManualReader
	armed   atomic.Pointer[killPlan]
	idle    context.Context // of the requests that keep decode engines busy
	release context.CancelFunc
	busy    sync.WaitGroup
}

// A killMoment is an event of an RPC at an engine of a role, the n-th of its type.
type killMoment struct {
	name, role string
	event      stats.RPCStats
	n          int32
}

// A killPlan names the engines to kill at a moment.
type killPlan struct {
	killMoment
	victims string
	killed  chan []*killEngine
}

// A killCall is the state of a request, a killAttempt that of one of its RPCs.
type killCall struct{ prefill, decode atomic.Pointer[killEngine] }

type killAttempt struct {
	call     *killCall
	engine   atomic.Pointer[killEngine]
	messages atomic.Int32
}

type (
	killKey        struct{}
	killAttemptKey struct{}
)

func startKillFleet(t *testing.T, flow killFlow, resume bool) *killFleet {
	f := &killFleet{
		t: t, flow: flow, resume: resume, engines: map[string]*killEngine{}, reader: sdkmetric.NewManualReader(),
	}
	var all []policy.Attributes
	ids := []string{"p0", "p1", "d0", "d1"}
	ports := freeport.Find(2 * len(ids))
	for i, id := range ids {
		role := map[byte]string{'p': policy.RolePrefill, 'd': policy.RoleDecode}[id[0]]
		e := &killEngine{Attributes: policy.Attributes{ID: id, Role: role, Pair: "r1"}}
		e.Address, e.KVBootstrap = fmt.Sprint("127.0.0.1:", ports[2*i]), fmt.Sprint("127.0.0.1:", ports[2*i+1])
		f.start(e)
		t.Cleanup(func() { e.process.Kill() })
		f.order, f.engines[e.Address] = append(f.order, e), e
		all = append(all, e.Attributes)
	}
	text, err := json.Marshal(map[string]any{"replicas": all})
	require.NoError(t, err)
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(f.reader))
	t.Cleanup(func() { _ = meters.Shutdown(context.WithoutCancel(t.Context())) })
	config := `{"policy":{"kv_aware":{}},"retry_ratio":"off"}`
	if !resume {
		config = `{"policy":{"kv_aware":{}},"retry_ratio":"off","max_resumes":"off"}`
	}
	f.cc, err = client.New("warmpath-file://"+file(t, "fleet.yaml", string(text)), client.WithConfig(config),
		client.WithMeterProvider(meters), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStatsHandler(f),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond,
		}, MinConnectTimeout: 20 * time.Second}))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.cc.Close() })
	f.idle, f.release = context.WithCancel(t.Context())
	t.Cleanup(func() {
		f.release()
		f.busy.Wait()
	})
	for _, e := range f.order {
		f.ready(e)
	}
	return f
}

// start starts an engine at its addresses. A leg waits for the other for 30 s of the engine's time, 6 s of ours.
func (f *killFleet) start(e *killEngine) {
	self, err := os.Executable()
	require.NoError(f.t, err)
	e.process, err = drive.StartProcess(f.t.Context(), exec.Command(self, "engine", "--listen", e.Address,
		"--preset", "2xh100-8b", "--speed", "5", "--early-headers", "--role", e.Role,
		"--kv-connector", string(f.flow.connector), "--kv-listen", e.KVBootstrap))
	require.NoError(f.t, err)
}

// ready waits until the channel can call an engine, and keeps an engine that serves whole requests busy.
func (f *killFleet) ready(e *killEngine) {
	f.eventually("connection to "+e.ID, func() bool { return f.used(e) >= 0 })
	if e.Role == policy.RolePrefill || e.Role == policy.RoleDecode && !f.flow.whole {
		return
	}
	for i := range killIdle {
		f.busy.Go(func() {
			q := &enginepb.GenerateRequest{
				RequestId: "idle", SamplingParams: &enginepb.SamplingParams{MaxTokens: proto.Uint32(1_000_000)},
				Input: &enginepb.GenerateRequest_Tokenized{Tokenized: &enginepb.TokenizedInput{InputIds: []uint32{uint32(i)}}},
			}
			stream, err := enginepb.NewVllmEngineClient(f.cc).Generate(client.WithPin(f.idle, e.ID), q)
			if err == nil {
				_, _ = stream.Recv() // it ends with the test, or with the engine
			}
		})
	}
	f.eventually(e.ID+" is busy", func() bool { return f.gauge("warmpath.replica.ongoing", e.ID) >= killIdle })
}

// used is the number of used tokens in an engine's KV cache; negative if the engine does not answer.
func (f *killFleet) used(e *killEngine) int {
	ctx, cancel := context.WithTimeout(f.t.Context(), killWithin)
	defer cancel()
	a, err := enginepb.NewVllmEngineClient(f.cc).GetLoads(client.WithPin(ctx, e.ID), new(enginepb.GetLoadsRequest))
	if err != nil {
		return -1
	}
	return int(a.GetLoads()[0].GetNumUsedTokens() + a.GetLoads()[0].GetNumTotalReqs())
}

// load sends requests from a number of goroutines until stop.
func (f *killFleet) load(workers int) (stop func()) {
	var over atomic.Bool
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			for i := 0; !over.Load(); i++ {
				f.call(fmt.Sprintf("%d of %d", i, w))
			}
		})
	}
	stop = func() {
		over.Store(true)
		all.Wait()
	}
	f.t.Cleanup(stop)
	return stop
}

// killAt kills engines at the next such moment, and restarts them.
func (f *killFleet) killAt(m killMoment, victims string) {
	s := &killPlan{m, victims, make(chan []*killEngine, 1)}
	f.armed.Store(s)
	select {
	case killed := <-s.killed:
		for _, e := range killed {
			f.start(e)
		}
		for _, e := range killed {
			f.ready(e)
		}
	case <-time.After(killWithin):
		require.Fail(f.t, "no request had the moment", "%q, to kill %s", m.name, victims)
	}
}

// TagRPC implements [stats.Handler].
func (f *killFleet) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	c, ok := ctx.Value(killKey{}).(*killCall)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, killAttemptKey{}, &killAttempt{call: c})
}

// HandleRPC implements [stats.Handler].
func (f *killFleet) HandleRPC(ctx context.Context, event stats.RPCStats) {
	a, ok := ctx.Value(killAttemptKey{}).(*killAttempt)
	if !ok {
		return
	}
	n := int32(1)
	switch x := event.(type) {
	case *stats.OutHeader:
		e := f.engines[x.RemoteAddr.String()]
		a.engine.Store(e)
		switch e.Role {
		case policy.RolePrefill:
			a.call.prefill.Store(e)
		case policy.RoleDecode:
			a.call.decode.Store(e)
		}
	case *stats.InPayload:
		n = a.messages.Add(1)
	}
	e, s := a.engine.Load(), f.armed.Load()
	if e != nil && s != nil && s.role == e.ID[:1] && s.n == n && reflect.TypeOf(s.event) == reflect.TypeOf(event) &&
		(!f.flow.whole || a.call.prefill.Load() != nil) && f.armed.CompareAndSwap(s, nil) {
		f.kill(s, a.call)
	}
}

// kill kills the engines of a request.
func (f *killFleet) kill(s *killPlan, c *killCall) {
	var killed []*killEngine
	for _, role := range s.victims {
		e := c.decode.Load()
		if role == 'p' {
			e = c.prefill.Load()
		}
		if e == nil { // the request has not reached that engine yet
			e = f.order[strings.IndexRune("p.d.", role)]
		}
		e.process.Kill()
		killed = append(killed, e)
	}
	s.killed <- killed
}

// TagConn implements [stats.Handler].
func (*killFleet) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn implements [stats.Handler].
func (*killFleet) HandleConn(context.Context, stats.ConnStats) {}

// nothingReserved waits until neither the channel nor an engine has a reservation.
func (f *killFleet) nothingReserved() {
	f.release()
	f.busy.Wait()
	for _, name := range []string{"warmpath.replica.ongoing", "warmpath.queue.length"} {
		f.eventually(name, func() bool { return f.gauge(name, "") == 0 })
	}
	for _, e := range f.order {
		f.eventually(e.ID+" holds nothing", func() bool { return f.used(e) == 0 })
	}
}

// gauge is the sum of a metric, of one replica if an id is given.
func (f *killFleet) gauge(name, replica string) (sum int64) {
	var all metricdata.ResourceMetrics
	require.NoError(f.t, f.reader.Collect(f.t.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points []metricdata.DataPoint[int64]
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = d.DataPoints
			case metricdata.Gauge[int64]:
				points = d.DataPoints
			}
			for _, p := range points {
				id, _ := p.Attributes.Value("warmpath.replica")
				if m.Name == name && (replica == "" || id.AsString() == replica) {
					sum += p.Value
				}
			}
		}
	}
	return sum
}

func (f *killFleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	require.Eventually(f.t, ok, killWithin, 5*time.Millisecond, what)
}
