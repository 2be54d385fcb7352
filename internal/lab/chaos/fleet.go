package chaos

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/internal/lab/faultproxy"
)

// replica is one replica of the fleet: an address that stays, and an engine behind it that comes and goes.
// The scenario's goroutine uses it.
type replica struct {
	id     string
	spec   Spec
	launch Launcher
	proxy  *faultproxy.Proxy
	engine Engine // nil while there is none
	lives  int    // engines before this one
}

func newReplica(ctx context.Context, id string, spec Spec, launch Launcher) (*replica, error) {
	r := &replica{id: id, spec: spec, launch: launch}
	engine, err := launch(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	r.engine = engine
	if r.proxy, err = faultproxy.Listen(ctx, engine.Addr()); err != nil {
		engine.Kill()
		return nil, err
	}
	return r, nil
}

// start puts a new engine behind the address.
func (r *replica) start(ctx context.Context) (err error) {
	if r.engine, err = r.launch(ctx, r.spec); err != nil {
		return fmt.Errorf("%s: %w", r.id, err)
	}
	r.lives++
	r.proxy.SetServer(r.engine.Addr())
	return nil
}

// stop ends the engine as SIGTERM does.
func (r *replica) stop() {
	r.engine.Stop()
	r.engine = nil
}

// kill ends the engine as SIGKILL does.
func (r *replica) kill() {
	r.engine.Kill()
	r.engine = nil
}

// pause hangs the replica: its process where that can be stopped, else its connections.
func (r *replica) pause() {
	if !r.engine.Pause() {
		r.proxy.Set(faultproxy.Fault{Blackhole: true})
	}
}

func (r *replica) resume() {
	r.engine.Resume()
	r.proxy.Set(faultproxy.Fault{})
}

func (r *replica) close() {
	r.proxy.Close()
	if r.engine != nil {
		r.engine.Kill()
	}
}

func (r *replica) entry() fleet.Replica {
	e := fleet.Replica{ID: r.id, Address: r.proxy.Addr(), Instance: strconv.Itoa(r.lives)}
	if r.spec.KVEvents {
		e.KVEvents = "grpc:vllm"
	}
	return e
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

func entries(all []*replica) []fleet.Replica {
	es := make([]fleet.Replica, len(all))
	for i, r := range all {
		es[i] = r.entry()
	}
	return es
}
