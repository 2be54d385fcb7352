package chaos

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
	"github.com/warmpath/warmpath/lab/enginesim/kvpublish"
	"github.com/warmpath/warmpath/lab/faultproxy"
)

// Spec is what an engine is to be like.
type Spec struct {
	// Preset, KVTokens, Speed and MaxOngoing are as in grpcserver.Config.
	Preset     string
	KVTokens   int
	Speed      float64
	MaxOngoing int
	// KVEvents lets it publish its KV events through gRPC.
	KVEvents bool
	// Grace is how long calls under way may take after a Stop; 0 cuts them at once.
	Grace time.Duration
}

// Engine is one engine that runs. One goroutine uses it.
type Engine interface {
	// Addr is where it listens.
	Addr() string
	// Stop asks it to end as SIGTERM does, and waits until it has.
	Stop()
	// Kill ends it as SIGKILL does.
	Kill()
	// Pause stops it as SIGSTOP does, until Resume; it returns false where that cannot be done.
	Pause() bool
	Resume()
}

// Launcher starts an engine at a free port of loopback.
type Launcher func(context.Context, Spec) (Engine, error)

// Processes starts engines as processes of their own, see [drive.StartProcess].
func Processes(command func(Spec) *exec.Cmd) Launcher {
	return func(ctx context.Context, spec Spec) (Engine, error) {
		return drive.StartProcess(ctx, command(spec))
	}
}

// InProcess starts an engine in this process.
func InProcess(ctx context.Context, spec Spec) (Engine, error) {
	lis, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s, err := Serve(lis, spec)
	if err != nil {
		return nil, err
	}
	return &inProcess{s, spec.Grace}, nil
}

// Serve starts the engine that a Spec describes.
func Serve(lis net.Listener, spec Spec) (*grpcserver.Server, error) {
	c := grpcserver.Config{
		Engine: enginesim.Config{Preset: spec.Preset, KVTokens: spec.KVTokens}, Speed: spec.Speed,
		MaxOngoing: spec.MaxOngoing,
	}
	if spec.KVEvents {
		c.KVEvents = kvpublish.NewLog(0)
	}
	return grpcserver.Start(lis, c)
}

type inProcess struct {
	server *grpcserver.Server
	grace  time.Duration
}

func (e *inProcess) Addr() string { return e.server.Addr().String() }

func (e *inProcess) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), e.grace)
	defer cancel()
	e.server.Stop(ctx)
}

func (e *inProcess) Kill()       { e.server.Kill() }
func (e *inProcess) Pause() bool { return false }
func (e *inProcess) Resume()     {}

// replica is one replica of the fleet: an address that stays, and an engine behind it that comes and goes.
// The scenario's goroutine uses it.
type replica struct {
	id     string
	spec   Spec
	launch Launcher
	proxy  *faultproxy.Proxy
	engine Engine
	lives  int // engines before this one
}

func newReplica(ctx context.Context, id string, spec Spec, launch Launcher) (*replica, error) {
	engine, err := launch(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	proxy, err := faultproxy.Listen(ctx, engine.Addr())
	if err != nil {
		engine.Kill()
		return nil, err
	}
	return &replica{id: id, spec: spec, launch: launch, proxy: proxy, engine: engine}, nil
}

// start puts a new engine behind the address, in the place of one that has ended.
func (r *replica) start(ctx context.Context) error {
	engine, err := r.launch(ctx, r.spec)
	if err != nil {
		return fmt.Errorf("%s: %w", r.id, err)
	}
	r.engine = engine
	r.lives++
	r.proxy.SetServer(engine.Addr())
	return nil
}

// pause hangs the replica: its process where that can be stopped, else its connections.
func (r *replica) pause() {
	if !r.engine.Pause() {
		r.silence()
	}
}

func (r *replica) resume() {
	r.engine.Resume()
	r.proxy.Set(faultproxy.Fault{})
}

// silence lets nothing pass to or from the replica until resume.
func (r *replica) silence() { r.proxy.Set(faultproxy.Fault{Blackhole: true}) }

func (r *replica) close() {
	r.proxy.Close()
	r.engine.Kill()
}

func (r *replica) endpoint() resolver.Endpoint {
	e := policy.Attributes{ID: r.id, Address: r.proxy.Addr(), Instance: strconv.Itoa(r.lives)}
	if r.spec.KVEvents {
		e.KVEvents = "grpc:vllm"
	}
	return fleet.Endpoint(e)
}

// startReplicas starts replicas number from..to.
func startReplicas(ctx context.Context, from, to int, spec Spec, launch Launcher) (all []*replica, err error) {
	for i := from; i < to; i++ {
		r, err := newReplica(ctx, "r"+strconv.Itoa(i), spec, launch)
		if err != nil {
			closeReplicas(all)
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

func closeReplicas(all []*replica) {
	var ended sync.WaitGroup
	for _, r := range all {
		ended.Go(r.close)
	}
	ended.Wait()
}
