package balancer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	"github.com/warmpath/warmpath/balancer/tokenize"
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

// endpoint is the connection to one set of addresses.
type endpoint struct {
	id      string // of the replica that is there; guarded by lb.mu
	exiting bool   // asked to leave idle; guarded by lb.mu

	// picker is the child's, replaced on every change of its state.
	picker atomic.Pointer[childState]
	quick  atomic.Pointer[quick]
}

type childState struct{ balancer.State }

// connectivity is the state of the connection; Shutdown once it is gone for good.
func (e *endpoint) connectivity() connectivity.State {
	if s := e.picker.Load(); s != nil {
		return s.ConnectivityState
	}
	return connectivity.Shutdown
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
	r, err := b.router(config, h)
	if err != nil {
		b.mu.Unlock()
		err = fmt.Errorf("warmpath: %w", err)
		b.ResolverError(err)
		return err
	}
	b.server.watch = lookaside.From(s.ResolverState)
	s.ResolverState.Endpoints = b.setMembers(config, s.ResolverState.Endpoints)
	b.perReplica.Store(int32(config.ConnectionsPerReplica))
	b.configure(config, h, r)
	b.mu.Unlock()
	return b.child.UpdateClientConnState(balancer.ClientConnState{
		ResolverState: pickfirst.EnableHealthListener(s.ResolverState),
	})
}

// setMembers rebuilds the list of replicas, sorted by id: the resolver's order is
// random. It returns the endpoints that count: of several with the same id or the
// same addresses that is the first. Called with mu held.
func (b *lb) setMembers(config *lbConfig, all []resolver.Endpoint) []resolver.Endpoint {
	old := b.endpoints
	b.endpoints = resolver.NewEndpointMap[*endpoint]()
	b.members = b.members[:0:0]
	kept := make([]resolver.Endpoint, 0, len(all))
	ids := make(map[string]bool, len(all))
	for _, ep := range all {
		if len(ep.Addresses) == 0 {
			continue
		}
		attrs := fleet.FromEndpoint(ep)
		if _, twice := b.endpoints.Get(ep); twice || ids[attrs.ID] {
			continue
		}
		e, ok := old.Get(ep)
		if !ok {
			e = &endpoint{}
		}
		if e.id != "" && e.id != attrs.ID {
			b.connections.rename(e.id, attrs.ID)
		}
		e.id, ids[attrs.ID] = attrs.ID, true
		b.endpoints.Set(ep, e)
		b.members = append(b.members, routing.Member{Attributes: attrs, Host: e})
		kept = append(kept, ep)
	}
	for ep, e := range old.All() {
		if _, ok := b.endpoints.Get(ep); !ok {
			e.picker.Store(nil) // a booking of it that was not sent yet goes elsewhere
			b.connections.set(e.id, nil)
		}
	}
	slices.SortFunc(b.members, func(x, y routing.Member) int { return cmp.Compare(x.ID, y.ID) })
	b.eager.Store(len(kept)*max(config.ConnectionsPerReplica, 1) <= EagerConnections)
	return kept
}

// router returns a Router for a configuration that is not the one in force, else
// nil. The first of a new balancer is the one that the channel's handle kept, if
// there is one. Called with mu held.
func (b *lb) router(c *lbConfig, h *channel.Handle) (*routing.Router, error) {
	old := b.binding.Load()
	if old != nil && old.Key == c.key {
		return nil, nil
	}
	if old == nil && h != nil {
		if r := h.Take(c.key); r != nil {
			return r, nil
		}
	}
	return c.newRouter(h)
}

// newRouter builds a Router, and its tokenizer where there is one.
func (c *lbConfig) newRouter(h *channel.Handle) (*routing.Router, error) {
	if c.tokenizer == nil {
		return c.NewRouter(nil)
	}
	var o tokenize.Options
	if h != nil {
		o.Logger = h.Logger
	}
	t, err := tokenize.Open(*c.tokenizer, o)
	if err != nil {
		return nil, err
	}
	r, err := c.NewRouter(func(o *routing.Options) { o.Tokenizer = t })
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return r, nil
}

// configure puts the configuration and the members into force. r is nil where
// the Router stays the same. Called with mu held.
func (b *lb) configure(c *lbConfig, h *channel.Handle, r *routing.Router) {
	attach := h != nil && b.handle == nil
	b.server.warn(&c.Adoption)
	if attach || b.config == nil || b.config.key != c.key {
		b.table = dialects(c, h)
	}
	b.handle, b.config = h, c
	b.use(r)
	if attach {
		h.Attach(b.binding.Load())
	}
}

// use brings a Router, nil for the one in use, up to date and makes it the one
// in use. Called with mu held.
func (b *lb) use(r *routing.Router) {
	old := b.binding.Load()
	if r == nil {
		r = old.Router
	}
	if err := r.SetRollout(b.config.Rollout()); err != nil {
		logger.Error(err) // of a Router that is not ours
	}
	r.SetFleet(b.members)
	b.connect(r)
	b.followEvents(r)
	b.server.attach(r)
	next := &channel.Binding{
		Router:      r,
		Telemetry:   b.recorder(),
		Policy:      b.config.Deciding(),
		Central:     b.server.central(&b.config.Adoption),
		Uses:        b.uses(r),
		Dialects:    b.table,
		SessionKeys: b.config.sessions,
		PriorityKey: strings.ToLower(b.config.PriorityKey),
		MaxAttempts: b.config.MaxAttempts,
		Retries:     retries(b.config.Config),
		Abort:       b.aborts.abort,
		NeedsPrompt: b.config.RequirePrompt && r.Uses()&routing.UsesPrompt != 0,
		Key:         b.config.key,
	}
	if old != nil && old.Router == r && old.Uses == next.Uses && old.Telemetry == next.Telemetry && old.Dialects == next.Dialects &&
		old.Central == next.Central && old.Policy == next.Policy {
		return
	}
	b.binding.Store(next)
	b.observe(next)
	if old == nil {
		return
	}
	if b.handle != nil {
		b.handle.Replace(old, next)
	}
	if old.Router != r {
		// Whoever waits there goes to gRPC and meets the new Router in the picker.
		_ = old.Router.Close()
	}
}

// dialects are those of the config, and the application's where the config names none.
func dialects(c *lbConfig, h *channel.Handle) *dialect.Table {
	if h == nil || len(h.Dialects) == 0 {
		return c.dialects
	}
	t, err := c.dialects.With(h.Dialects...)
	if err != nil { // the application was told when it dialled
		return c.dialects
	}
	return t
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

// connect tells a Router which of its replicas have a connection. Called with mu held.
func (b *lb) connect(r *routing.Router) {
	for _, e := range b.endpoints.All() {
		b.tell(r, e)
	}
}

// tell tells a Router of the connections to a replica: whether there is one, and how many
// calls they take, where that is known. Called with mu held.
func (b *lb) tell(r *routing.Router, e *endpoint) {
	if streams := b.config.MaxStreamsPerConnection; streams > 0 {
		n := 1
		if s := e.picker.Load(); s != nil {
			n = max(ready(s.State), 1) // one that is opened by a pick
		}
		r.SetStreams(e.id, n*streams)
	} else {
		r.SetStreams(e.id, 0)
	}
	r.SetConnected(e.id, b.pickable(e))
}

// pickable reports whether a pick may end here: the connection is ready or, in
// a fleet too large for one connection each, can be opened by a pick.
func (b *lb) pickable(e *endpoint) bool {
	switch e.connectivity() {
	case connectivity.Ready:
		return true
	case connectivity.Idle, connectivity.Connecting:
		return !b.eager.Load()
	}
	return false
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
		if s.ConnectivityState == connectivity.Ready {
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

// bind attaches the balancer to the handle that its first pick brought along,
// with the Router that the handle kept if there is one.
func (b *lb) bind(h *channel.Handle) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != nil || b.closed {
		return
	}
	b.handle, b.table = h, dialects(b.config, h)
	b.use(h.Take(b.config.key))
	h.Attach(b.binding.Load())
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
