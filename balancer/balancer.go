package balancer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/balancer/endpointsharding"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/channel"
	"github.com/warmpath/warmpath/internal/lookaside"
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
	perReplica          atomic.Int32 // connections
	bareOnce            sync.Once

	// binding is the Router in use with its configuration; replaced under mu.
	binding atomic.Pointer[channel.Binding]

	// mu guards the fields below. It is not held while the child is called, since
	// the child calls back into UpdateState; endpointsharding's own lock is taken
	// before it, the handle's and the Router's after it.
	mu        sync.Mutex
	config    *lbConfig
	handle    *channel.Handle
	table     *dialect.Table // of config, with the handle's dialects; nil where neither is in force yet
	unwatch   func()
	members   []routing.Member
	endpoints *resolver.EndpointMap[*endpoint] // one per child
	state     balancer.State                   // last one from the child
	events    events
	server    server
	closed    bool

	connections connections
	aborts      *aborts
}

// UpdateClientConnState takes a new list of endpoints or a new configuration.
func (b *lb) UpdateClientConnState(s balancer.ClientConnState) error {
	config, ok := s.BalancerConfig.(*lbConfig)
	if !ok {
		return fmt.Errorf("warmpath: unexpected balancer config of type %T", s.BalancerConfig)
	}
	b.mu.Lock()
	h := b.handle
	if h == nil {
		h = channel.HandleFrom(s.ResolverState.Attributes)
	}
	watch := lookaside.From(s.ResolverState)
	var r *routing.Router
	err := policy.ErrNeedsServer
	if watch != nil || !config.NeedsServer() {
		r, err = b.router(config, h)
	}
	if err != nil {
		b.mu.Unlock()
		err = fmt.Errorf("warmpath: %w", err)
		b.ResolverError(err)
		return err
	}
	b.server.watch = watch
	s.ResolverState.Endpoints = b.setMembers(config, s.ResolverState.Endpoints)
	b.perReplica.Store(int32(config.ConnectionsPerReplica))
	b.configure(config, h, r)
	b.mu.Unlock()
	return b.child.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: pickfirst.EnableHealthListener(s.ResolverState),
	})
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
		e, ok := b.endpoints.Get(c.Endpoint)
		if !ok {
			continue
		}
		e.picker.Store(&childState{c.State})
		b.noteConnection(e, c.State)
		if router != nil {
			b.tell(router, e)
		}
		idle := c.State.ConnectivityState == connectivity.Idle && b.eager.Load()
		if idle && !e.exiting {
			c.ExitIdle()
		}
		e.exiting = idle
	}
	b.publish()
}

// publish gives gRPC a picker. While nothing is connected that is the child's
// own, which queues calls or fails them with the connections' errors. Called
// with mu held.
func (b *lb) publish() {
	if binding := b.binding.Load(); binding == nil || len(binding.Router.View().Connected()) == 0 {
		s := b.state
		switch {
		case binding != nil && b.endpoints.Len() == 0:
			s = balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(fmt.Errorf("warmpath: the fleet is empty: %s names no replica", b.opts.Target))}
		case s.ConnectivityState == connectivity.Ready:
			// Connected to those that just left the fleet; the child is about to be told.
			s = balancer.State{ConnectivityState: connectivity.Connecting, Picker: base.NewErrPicker(balancer.ErrNoSubConnAvailable)}
		}
		b.ClientConn.UpdateState(s)
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

// ResolverError is called when the resolver fails. A status that it failed with is not the call's: gRPC would fail calls
// that are to wait for a connection, and others with INTERNAL.
func (b *lb) ResolverError(err error) {
	b.mu.Lock()
	nobody := b.endpoints.Len() == 0
	b.mu.Unlock()
	if nobody {
		b.ClientConn.UpdateState(balancer.State{
			ConnectivityState: connectivity.TransientFailure,
			Picker:            base.NewErrPicker(errors.New(err.Error())),
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
	b.leave()
	b.aborts.close()
	b.child.Close()
}

func (b *lb) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.endEvents()
	b.server.leave()
	b.connections.clear()
	if b.unwatch != nil {
		b.unwatch()
	}
	// The Router may outlive the balancer: it is not to hold on to the connections,
	// and through them to the channel.
	for _, e := range b.endpoints.All() {
		e.picker.Store(nil)
	}
	binding := b.binding.Load()
	if binding == nil {
		return
	}
	if b.handle == nil {
		_ = binding.Router.Close()
		return
	}
	binding.Router.Disconnect()
	b.handle.Detach(binding)
}

var errGone = errors.New("warmpath: no replica that the call may use is connected")
