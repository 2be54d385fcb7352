package balancer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/balancer/telemetry"
	"github.com/warmpath/warmpath/internal/channel"
)

// lb is the balancer of one channel.
//
// gRPC serialises the balancer's own methods. UpdateState, which the child calls,
// may run beside them, and picks run beside everything.
type lb struct {
	balancer.ClientConn // to the channel; lb intercepts UpdateState
	opts                balancer.BuildOptions
	child               balancer.Balancer
	eager               atomic.Bool
	bareOnce            sync.Once

	// binding is the Router in use with its configuration; replaced under mu.
	binding atomic.Pointer[channel.Binding]

	// mu guards the fields below. It is not held while the child is called, since
	// the child calls back into UpdateState; endpointsharding's own lock is taken
	// before it, the handle's and the Router's after it.
	mu        sync.Mutex
	config    *lbConfig
	handle    *channel.Handle
	unwatch   func()
	members   []routing.Member
	endpoints map[string]*endpoint // by replica id
	state     balancer.State       // last one from the child
	closed    bool
}

// endpoint is the connection to one replica.
type endpoint struct {
	// picker is the child's, replaced on every change of its state.
	picker atomic.Pointer[childState]
}

type childState struct {
	balancer.State
	exitIdle func()
}

// ready reports whether a call may be sent now.
func (e *endpoint) ready() bool {
	s := e.picker.Load()
	return s != nil && s.ConnectivityState == connectivity.Ready
}

// UpdateClientConnState takes a new list of endpoints or a new configuration.
func (b *lb) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*lbConfig)
	if !ok {
		return fmt.Errorf("warmpath: unexpected balancer config of type %T", s.BalancerConfig)
	}
	b.eager.Store(len(s.ResolverState.Endpoints) <= EagerConnections)

	b.mu.Lock()
	b.setMembers(s.ResolverState)
	err := b.configure(config, channel.HandleFrom(s.ResolverState.Attributes))
	b.mu.Unlock()
	if err != nil {
		b.ResolverError(err)
		return err
	}
	return b.child.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: pickfirst.EnableHealthListener(s.ResolverState),
	})
}

// setMembers rebuilds the list of replicas, sorted by id: the resolver's order is
// random. Called with mu held.
func (b *lb) setMembers(s resolver.State) {
	b.members = b.members[:0:0]
	old := b.endpoints
	b.endpoints = make(map[string]*endpoint, len(s.Endpoints))
	for _, ep := range s.Endpoints {
		if len(ep.Addresses) == 0 {
			continue
		}
		attrs := fleet.FromEndpoint(ep)
		if b.endpoints[attrs.ID] != nil {
			continue
		}
		e := old[attrs.ID]
		if e == nil {
			e = &endpoint{}
		}
		b.endpoints[attrs.ID] = e
		b.members = append(b.members, routing.Member{Attributes: attrs, Host: e})
	}
	slices.SortFunc(b.members, func(x, y routing.Member) int { return cmp.Compare(x.ID, y.ID) })
}

// configure puts the configuration and the members into force. The Router stays
// the same while the configuration does; a new balancer of a channel that was
// idle gets the one that the channel's handle kept. Called with mu held.
func (b *lb) configure(c *lbConfig, h *channel.Handle) error {
	attach := h != nil && b.handle == nil
	if attach {
		b.handle = h
	}
	old := b.binding.Load()
	if old == nil || old.Key != c.key {
		r, err := b.router(c, old == nil)
		if err != nil {
			return fmt.Errorf("warmpath: %w", err)
		}
		b.install(c, r)
	}
	b.config = c
	if attach {
		h.Attach(b.binding.Load())
	}
	b.binding.Load().Router.SetFleet(b.members)
	b.connect(b.binding.Load().Router)
	return nil
}

// router returns the Router that the handle kept for the configuration, if this
// is the balancer's first, or else a new one. Called with mu held.
func (b *lb) router(c *lbConfig, first bool) (*routing.Router, error) {
	if first && b.handle != nil {
		if r := b.handle.Take(c.key); r != nil {
			return r, nil
		}
	}
	return c.NewRouter(nil)
}

// install makes a Router the one in use. Called with mu held.
func (b *lb) install(c *lbConfig, r *routing.Router) {
	old := b.binding.Load()
	next := &channel.Binding{
		Router:      r,
		Policy:      c.Policy.Name,
		Uses:        b.uses(r),
		Dialects:    c.dialects,
		SessionKeys: c.sessions,
		MaxAttempts: c.MaxAttempts,
		Key:         c.key,
	}
	r.SetFleet(b.members)
	b.connect(r)
	b.binding.Store(next)
	b.observe(next)
	if old == nil {
		return
	}
	if b.handle != nil {
		b.handle.Replace(old, next)
	}
	// Whoever waits there goes to gRPC and meets the new Router in the picker.
	_ = old.Router.Close()
}

// uses is what a request key must hold: what the policy looks at, and the model
// and adapter where replicas declare some. Called with mu held.
func (b *lb) uses(r *routing.Router) routing.Uses {
	uses := r.Uses()
	for _, m := range b.members {
		if len(m.Models)+len(m.Adapters) > 0 {
			return uses | dialect.WantModel
		}
	}
	return uses
}

// observe records the metrics of the Router in use, and of no other. Called with
// mu held.
func (b *lb) observe(binding *channel.Binding) {
	if b.unwatch != nil {
		b.unwatch()
		b.unwatch = nil
	}
	recorder := telemetry.Default()
	if b.handle != nil {
		recorder = b.handle.Telemetry
	}
	stop, err := recorder.Watch(binding.Policy, binding.Router)
	if err != nil {
		logger.Warningf("metrics of the router are not observed: %v", err)
		return
	}
	b.unwatch = stop
}

// connect tells a Router which of its replicas have a connection. Called with mu held.
func (b *lb) connect(r *routing.Router) {
	for id, e := range b.endpoints {
		r.SetConnected(id, b.pickable(e))
	}
}

// pickable reports whether a pick may end here: the connection is ready or, in
// a fleet too large for one connection each, can be opened by a pick.
func (b *lb) pickable(e *endpoint) bool {
	if b.eager.Load() {
		return e.ready()
	}
	s := e.picker.Load()
	return s != nil && s.ConnectivityState != connectivity.TransientFailure
}

// UpdateState is called by the child whenever a connection changes.
func (b *lb) UpdateState(s balancer.State) {
	children := endpointsharding.ChildStatesFromPicker(s.Picker)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.state = s
	var router *routing.Router
	if binding := b.binding.Load(); binding != nil {
		router = binding.Router
	}
	for _, c := range children {
		id := fleet.FromEndpoint(c.Endpoint).ID
		e := b.endpoints[id]
		if e == nil {
			continue
		}
		e.picker.Store(&childState{State: c.State, exitIdle: c.ExitIdle})
		if router != nil {
			router.SetConnected(id, b.pickable(e))
		}
		if c.State.ConnectivityState == connectivity.Idle && b.eager.Load() {
			c.ExitIdle()
		}
	}
	b.publish()
}

// publish gives gRPC a picker. While nothing is connected that is the child's
// own, which queues calls or fails them with the connections' errors. Called
// with mu held.
func (b *lb) publish() {
	if binding := b.binding.Load(); binding == nil || len(binding.Router.View().Connected()) == 0 {
		b.ClientConn.UpdateState(b.state)
		return
	}
	b.ClientConn.UpdateState(balancer.State{ConnectivityState: b.connectivity(), Picker: &picker{lb: b}})
}

// connectivity is what the channel reports of itself. A fleet whose connections
// are opened by picks is as good as ready.
func (b *lb) connectivity() connectivity.State {
	if b.eager.Load() {
		return b.state.ConnectivityState
	}
	return connectivity.Ready
}

// bind attaches the balancer to the handle that its first pick brought along,
// with the Router that the handle kept if there is one.
func (b *lb) bind(h *channel.Handle) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != nil || b.closed {
		return
	}
	b.handle = h
	if r := h.Take(b.config.key); r != nil {
		b.install(b.config, r)
	} else {
		b.observe(b.binding.Load()) // through the channel's own meter
	}
	h.Attach(b.binding.Load())
}

// ResolverError is called when the resolver fails.
func (b *lb) ResolverError(err error) {
	b.mu.Lock()
	fresh := b.config == nil
	b.mu.Unlock()
	if fresh {
		b.ClientConn.UpdateState(balancer.State{
			ConnectivityState: connectivity.TransientFailure,
			Picker:            base.NewErrPicker(err),
		})
		return
	}
	b.child.ResolverError(err)
}

// UpdateSubConnState is never called: states come through listeners.
func (b *lb) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {
	logger.Error("UpdateSubConnState: unexpected call")
}

// ExitIdle opens the connections that are not, if all are to be open.
func (b *lb) ExitIdle() {
	if b.eager.Load() {
		b.child.ExitIdle()
	}
}

// Close ends the balancer: whoever waits in the queue goes back to gRPC. What
// was learned stays with the channel's handle, if it has one.
func (b *lb) Close() {
	b.child.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.unwatch != nil {
		b.unwatch()
	}
	binding := b.binding.Load()
	if binding == nil {
		return
	}
	if b.handle == nil {
		_ = binding.Router.Close()
		return
	}
	b.handle.Detach(binding)
	binding.Router.Disconnect()
}

var errGone = errors.New("warmpath: the replica that the call is pinned to is not connected")
