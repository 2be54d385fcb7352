package balancer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
	"google.golang.org/grpc/connectivity"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/call"
	"github.com/warmpath/warmpath/internal/lookaside"
	"github.com/warmpath/warmpath/internal/requestkey"
	"github.com/warmpath/warmpath/internal/router"
)

// lb is the balancer of one call.
//
// gRPC serialises the balancer's own methods. The endpoints' connections report
// beside them, and picks run beside everything.
type lb struct {
	balancer.ClientConn // to the channel
	opts                balancer.BuildOptions
	notices             notices

	// binding is the Router in use with its configuration; replaced under mu.
	binding atomic.Pointer[call.Binding]

	// mu guards the fields below. It is not held while an endpoint's connections are
	// called, whose own locks are taken before it; the handle's and the Router's are
	// taken after it.
	mu        sync.Mutex
	config    *lbConfig
	handle    *call.Handle
	table     *requestkey.Table // of config, with the handle's dialects; nil where neither is in force yet
	unwatch   func()
	endpoints endpoints
	updating  bool // endpoints are being updated: what they report is put into force after it
	events    events
	server    server
	closed    bool

	aborts *aborts
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
		h = call.HandleFrom(s.ResolverState.Attributes)
	}
	watch := lookaside.From(s.ResolverState)
	var r *router.Router
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
	kept := b.endpoints.set(b, config, s.ResolverState.Endpoints)
	b.configure(config, h, r)
	b.updating = true
	b.mu.Unlock()
	b.notices.announce(config)
	err = b.endpoints.update(kept, s.ResolverState, b.opts)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.updating = false
	for _, e := range kept {
		if e.state == connectivity.Idle && b.endpoints.eager.Load() { // of a fleet that was larger
			go e.conns.ExitIdle()
		}
	}
	b.endpoints.connect(b.binding.Load().Router)
	b.publish()
	return err
}

// publish gives gRPC a picker. While nothing is connected that is one which queues calls, or fails them with the
// error of the connection that failed last. Called with mu held.
func (b *lb) publish() {
	binding := b.binding.Load()
	if binding != nil && len(binding.Router.View().Connected()) > 0 {
		s := balancer.State{ConnectivityState: connectivity.Ready, Picker: &picker{lb: b}}
		if b.endpoints.eager.Load() { // else connections are opened by picks: as good as ready
			s.ConnectivityState = b.endpoints.aggregate()
		}
		b.ClientConn.UpdateState(s)
		return
	}
	s := balancer.State{ConnectivityState: b.endpoints.aggregate()}
	s.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
	switch {
	case binding != nil && b.endpoints.all.Len() == 0:
		err := fmt.Errorf("warmpath: the fleet is empty: %s names no replica", b.notices.target)
		s = balancer.State{ConnectivityState: connectivity.TransientFailure, Picker: base.NewErrPicker(err)}
	case s.ConnectivityState == connectivity.TransientFailure:
		s.Picker = b.endpoints.failed
	case s.ConnectivityState == connectivity.Ready: // the Router is not in force yet
		s.ConnectivityState = connectivity.Connecting
	}
	b.ClientConn.UpdateState(s)
}

// ResolverError is called when the resolver fails. A status that it failed with is not the call's: gRPC would fail
// calls that are to wait for a connection, and others with INTERNAL.
func (b *lb) ResolverError(err error) {
	b.mu.Lock()
	all := b.endpoints.all.Values()
	b.mu.Unlock()
	if len(all) == 0 {
		b.ClientConn.UpdateState(balancer.State{
			ConnectivityState: connectivity.TransientFailure,
			Picker:            base.NewErrPicker(errors.New(err.Error())),
		})
		return
	}
	for _, e := range all {
		e.conns.ResolverError(err)
	}
}

// UpdateSubConnState is never called: states come through listeners.
func (b *lb) UpdateSubConnState(balancer.SubConn, balancer.SubConnState) {
	logger.Error("UpdateSubConnState: unexpected call")
}

// ExitIdle opens the connections that are not, if all are to be open.
func (b *lb) ExitIdle() {
	if !b.endpoints.eager.Load() {
		return
	}
	b.mu.Lock()
	all := b.endpoints.all.Values()
	b.mu.Unlock()
	for _, e := range all {
		e.conns.ExitIdle()
	}
}

// Close ends the balancer: queued calls go back to gRPC. What
// was learned stays with the channel's handle, if it has one.
func (b *lb) Close() {
	all, unused := b.leave()
	b.aborts.close()
	for _, e := range all {
		e.conns.Close()
	}
	b.retire(unused...)
}

// leave lets go of everything but the endpoints' connections, which it returns, with the Routers that are to be closed.
func (b *lb) leave() (all []*endpoint, unused []*router.Router) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all = b.endpoints.all.Values()
	b.closed = true
	b.events.end()
	b.server.leave()
	b.endpoints.connections.clear()
	if b.unwatch != nil {
		b.unwatch()
	}
	// The Router may outlive the balancer: it is not to hold on to the connections,
	// and through them to the call.
	for _, e := range all {
		e.picker.Store(nil)
	}
	switch binding := b.binding.Load(); {
	case binding == nil:
	case b.handle == nil:
		unused = append(unused, binding.Router)
	default:
		binding.Router.Disconnect()
		unused = b.handle.Detach(binding)
	}
	return all, unused
}

// retire closes Routers. Called without mu held: a policy may take its time.
func (b *lb) retire(unused ...*router.Router) {
	for _, r := range unused {
		if err := r.Close(); err != nil {
			b.notices.logger().Warn("warmpath: a policy was not closed in order", "error", err)
		}
	}
}

// announceBare announces a channel without interceptors.
func (b *lb) announceBare() {
	b.mu.Lock()
	c, bare := b.config, b.handle == nil
	b.mu.Unlock()
	if bare {
		b.notices.describe(c)
	}
}

var errGone = errors.New("warmpath: no replica that the call may use is connected")
