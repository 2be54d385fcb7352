package balancer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/lazy"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
	"github.com/warmpath/warmpath/internal/router"
)

// endpoints are those of the resolver's list. Used with lb.mu held, but for reachable.
type endpoints struct {
	reachable atomic.Pointer[reachable]

	eager   bool // all connections are to be open
	all     *resolver.EndpointMap[*endpoint]
	members []router.Member
	states  [connectivity.Shutdown + 1]int // endpoints, by their state; Shutdown is not counted
	failed  balancer.Picker                // of the endpoint that failed last
	unwell  int                            // endpoints whose replica does not serve
	warned  bool                           // it is logged that no replica serves
}

// endpoint is one set of addresses, and the connection to it: a pick_first balancer, under one that waits for the first
// pick in a fleet too large for one connection each. Both may be called from any goroutine, but not under lb.mu, which
// is taken under their locks.
type endpoint struct {
	balancer.ClientConn // to the channel; endpoint intercepts what the balancer calls
	*host
	lb *lb

	// Guarded by lb.mu.
	id      string            // of the replica that is there
	as      resolver.Endpoint // as the resolver lists it
	child   balancer.Balancer
	closed  bool
	reports *balancer.State // what the connection reported last; nil = nothing yet
	tried   bool            // the connection was ready, or could not be made
	health  healthReport

	given []resolver.Address // to the connection; of gRPC's serialised methods alone
}

// set rebuilds the list of replicas, sorted by id: the resolver's order is random. It returns the endpoints that count,
// of several with the same id or the same addresses the first, and those that left, to be closed.
func (l *endpoints) set(b *lb, all []resolver.Endpoint) (kept, left []*endpoint) {
	before := l.all
	l.all = resolver.NewEndpointMap[*endpoint]()
	l.members = make([]router.Member, 0, len(all))
	byID := make(map[string]*host, len(all))
	for _, ep := range all {
		attrs := fleet.FromEndpoint(ep)
		if _, twice := l.all.Get(ep); twice || len(ep.Addresses) == 0 || byID[attrs.ID] != nil {
			continue
		}
		e, ok := before.Get(ep)
		if !ok {
			e = &endpoint{ClientConn: b.ClientConn, lb: b, host: new(host)}
			e.state.Store(gone)
		}
		e.id, e.as, byID[attrs.ID] = attrs.ID, ep, e.host
		l.all.Set(ep, e)
		l.members = append(l.members, router.Member{Attributes: attrs, Host: e.host})
		kept = append(kept, e)
	}
	for ep, e := range before.All() {
		if _, ok := l.all.Get(ep); !ok {
			l.put(e, gone) // a reservation there that was not sent yet goes elsewhere
			e.closed = true
			e.unwatch()
			left = append(left, e)
		}
	}
	l.reach(byID)
	slices.SortFunc(l.members, func(x, y router.Member) int { return cmp.Compare(x.ID, y.ID) })
	l.eager = len(kept) <= EagerConnections
	return kept, left
}

// update passes an endpoint on to its connection, if its addresses are not those that the connection has. Called
// without lb.mu, by gRPC's serialised methods, as set is.
func (e *endpoint) update(s resolver.State, opts balancer.BuildOptions) error {
	if e.child != nil && slices.EqualFunc(e.as.Addresses, e.given, resolver.Address.Equal) {
		return nil
	}
	if e.child == nil {
		var child balancer.Balancer
		if build := balancer.Get(pickfirst.Name).Build; e.lb.endpoints.eager {
			child = build(e, opts)
		} else {
			child = lazy.NewBalancer(e, opts, build)
		}
		e.lb.mu.Lock()
		e.child = child
		e.lb.mu.Unlock()
	}
	e.given, s.Endpoints = e.as.Addresses, []resolver.Endpoint{e.as}
	return e.child.UpdateClientConnState(balancer.ClientConnState{ResolverState: s})
}

// open opens the connection if it is not, where all are to be open. Called with lb.mu held.
func (e *endpoint) open() {
	if e.lb.endpoints.eager && e.child != nil && e.connectivity() == connectivity.Idle {
		go e.child.ExitIdle() // not from here: connections take lb.mu under their locks
	}
}

// UpdateState is called by the connection when it changes.
func (e *endpoint) UpdateState(s balancer.State) {
	b := e.lb
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || e.closed {
		return
	}
	e.unwatch()
	e.reports = &s
	b.endpoints.put(e, e.watch(&s))
	e.open()
	b.changed(e)
}

// changed puts into force that an endpoint has changed. Called with mu held.
func (b *lb) changed(e *endpoint) {
	l := &b.endpoints
	switch s := e.state.Load(); s.ConnectivityState {
	case connectivity.TransientFailure:
		l.failed, e.tried = s.Picker, true
	case connectivity.Ready:
		e.tried = true
		l.reach(l.reachable.Load().byID)
	}
	l.warnUnwell(b)
	if b.updating {
		return
	}
	if binding := b.binding.Load(); binding != nil {
		l.force(binding.Router, e)
	}
	b.publish()
}

// NewSubConn refuses one for an endpoint that was closed while a pick opened it.
func (e *endpoint) NewSubConn(addrs []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	e.lb.mu.Lock()
	closed := e.closed || e.lb.closed
	e.lb.mu.Unlock()
	if closed {
		return nil, errGone
	}
	return e.ClientConn.NewSubConn(addrs, o) //lint:ignore SA1019 the interface that pick_first calls has no other
}

// put puts the state of an endpoint into force, and counts it.
func (l *endpoints) put(e *endpoint, s *balancer.State) {
	l.states[e.connectivity()]--
	l.states[s.ConnectivityState]++
	e.state.Store(s)
}

// aggregate returns the best state of an endpoint.
func (l *endpoints) aggregate() connectivity.State {
	for _, s := range []connectivity.State{connectivity.Ready, connectivity.Connecting, connectivity.Idle} {
		if l.states[s] > 0 {
			return s
		}
	}
	return connectivity.TransientFailure
}

// connect is force for all endpoints at once.
func (l *endpoints) connect(r *router.Router) {
	for _, e := range l.all.Values() {
		r.Health.SetServing(e.id, !e.health.unwell())
		r.Fleet.SetComing(e.id, l.coming(e))
	}
	r.Fleet.SetConnections(func(rep *policy.Replica) bool { return l.pickable(hostOf(rep)) })
	for _, e := range l.all.Values() {
		l.drain(r, e)
	}
}

// coming reports whether a connection is being opened for the first time.
func (l *endpoints) coming(e *endpoint) bool { return l.eager && !e.tried }

// pickable reports whether a pick may end here: the connection is ready or, in a fleet too large for one connection
// each, can be opened by a pick.
func (l *endpoints) pickable(h *host) bool {
	switch h.connectivity() {
	case connectivity.Ready:
		return true
	case connectivity.Idle, connectivity.Connecting:
		return !l.eager
	}
	return false
}
