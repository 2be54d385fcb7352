package balancer

import (
	"cmp"
	"errors"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/base"
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

	eager      bool // all connections are to be open
	all        *resolver.EndpointMap[*endpoint]
	members    []router.Member
	left       []*conn                        // to be closed at the end of the update under way
	updates    uint64                         // of the list
	states     [connectivity.Shutdown + 1]int // endpoints, by their state; Shutdown is not counted
	failed     balancer.Picker                // of the endpoint that failed last
	perReplica int                            // connections
	streams    int                            // that a connection takes; 0 = not known
}

// endpoint is one set of addresses, and the connections to it. It is connected if one of them is.
type endpoint struct {
	*host
	lb *lb

	// Guarded by lb.mu.
	id    string            // of the replica that is there
	as    resolver.Endpoint // as the resolver lists it
	seen  uint64            // the last update of the list that has it
	conns []*conn
}

// conn is one connection: a pick_first balancer, under one that waits for the first pick in a fleet too large for one
// connection each. Both may be called from any goroutine, but not under lb.mu, which is taken under their locks.
type conn struct {
	balancer.ClientConn // to the channel; conn intercepts what the balancer calls
	endpoint            *endpoint

	// Guarded by lb.mu.
	child  balancer.Balancer
	state  balancer.State
	closed bool

	calls atomic.Int64
	done  func(balancer.DoneInfo) // ends a call; made once, so that picking does not allocate
}

// set rebuilds the list of replicas, sorted by id: the resolver's order is random. It returns the endpoints that count:
// of several with the same id or the same addresses that is the first.
func (l *endpoints) set(b *lb, config *lbConfig, all []resolver.Endpoint) []*endpoint {
	l.updates++
	l.streams, l.perReplica = config.MaxStreamsPerConnection, max(config.ConnectionsPerReplica, 1)
	l.members = make([]router.Member, 0, len(all))
	byID := make(map[string]*host, len(all))
	kept := make([]*endpoint, 0, len(all))
	for _, ep := range all {
		if len(ep.Addresses) == 0 {
			continue
		}
		attrs := fleet.FromEndpoint(ep)
		e, ok := l.all.Get(ep)
		if ok && e.seen == l.updates || byID[attrs.ID] != nil {
			continue
		}
		if !ok {
			e = &endpoint{lb: b, host: new(host)}
			e.picker.Store(gone)
			l.all.Set(ep, e)
		}
		e.id, e.as, e.seen, byID[attrs.ID] = attrs.ID, ep, l.updates, e.host
		l.members = append(l.members, router.Member{Attributes: attrs, Host: e.host})
		kept = append(kept, e)
	}
	for ep, e := range l.all.All() {
		if e.seen != l.updates {
			l.all.Delete(ep)
			l.put(e, gone) // a reservation there that was not sent yet goes elsewhere
			l.drop(e, 0)
		}
	}
	l.reach(byID)
	slices.SortFunc(l.members, func(x, y router.Member) int { return cmp.Compare(x.ID, y.ID) })
	l.eager = len(kept)*l.perReplica <= EagerConnections
	return kept
}

// drop leaves an endpoint so many connections. The others are closed at the end of the update.
func (l *endpoints) drop(e *endpoint, keep int) {
	for _, c := range e.conns[keep:] {
		c.closed = true
		l.left = append(l.left, c)
	}
	e.conns = e.conns[:keep:keep]
}

// update passes an endpoint on to its connections, as many as are wanted now. Called without lb.mu.
func (e *endpoint) update(s resolver.State, opts balancer.BuildOptions) error {
	l := &e.lb.endpoints
	e.lb.mu.Lock()
	for len(e.conns) < l.perReplica {
		c := &conn{ClientConn: e.lb.ClientConn, endpoint: e}
		c.state.Picker = base.NewErrPicker(balancer.ErrNoSubConnAvailable)
		c.done = func(balancer.DoneInfo) { c.calls.Add(-1) }
		e.conns = append(e.conns, c)
	}
	if len(e.conns) > l.perReplica {
		l.drop(e, l.perReplica)
		l.report(e)
	}
	conns, eager := e.conns, l.eager
	s.Endpoints = []resolver.Endpoint{e.as}
	e.lb.mu.Unlock()
	var errs error
	for _, c := range conns {
		if c.child == nil {
			child, build := balancer.Balancer(nil), balancer.Get(pickfirst.Name).Build
			if eager {
				child = build(c, opts)
			} else {
				child = lazy.NewBalancer(c, opts, build)
			}
			e.lb.mu.Lock()
			c.child = child
			e.lb.mu.Unlock()
		}
		errs = errors.Join(errs, c.child.UpdateClientConnState(balancer.ClientConnState{ResolverState: s}))
	}
	return errs
}

// open opens the connections of an endpoint that are not, if all are to be open or another one of them is. Called with
// lb.mu held.
func (e *endpoint) open() {
	idle := func(c *conn) bool { return c.state.ConnectivityState == connectivity.Idle }
	if !e.lb.endpoints.eager && !slices.ContainsFunc(e.conns, func(c *conn) bool { return !idle(c) }) {
		return
	}
	for _, c := range e.conns {
		if c.child != nil && idle(c) {
			go c.child.ExitIdle() // not from here: connections take lb.mu under their locks
		}
	}
}

// UpdateState is called by the connection when it changes.
func (c *conn) UpdateState(s balancer.State) {
	e, b, l := c.endpoint, c.endpoint.lb, &c.endpoint.lb.endpoints
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || c.closed {
		return
	}
	c.state = s
	l.report(e)
	e.open()
	switch s.ConnectivityState {
	case connectivity.TransientFailure:
		l.failed = s.Picker
	case connectivity.Ready:
		l.reach(l.reachable.Load().byID)
	}
	if b.updating {
		return
	}
	if binding := b.binding.Load(); binding != nil {
		l.setStreams(binding.Router, e.id, e.host)
		binding.Router.Fleet.SetConnected(e.id, l.pickable(e.host))
	}
	b.publish()
}

// NewSubConn refuses one for a connection that was closed while a pick opened it.
func (c *conn) NewSubConn(addrs []resolver.Address, o balancer.NewSubConnOptions) (balancer.SubConn, error) {
	c.endpoint.lb.mu.Lock()
	closed := c.closed || c.endpoint.lb.closed
	c.endpoint.lb.mu.Unlock()
	if closed {
		return nil, errGone
	}
	return c.ClientConn.NewSubConn(addrs, o) //lint:ignore SA1019 the interface that pick_first calls has no other
}

// report puts the state of an endpoint's connections into force. Called with lb.mu held.
func (l *endpoints) report(e *endpoint) {
	s := &childState{State: e.conns[0].state, ready: 1}
	if len(e.conns) > 1 {
		*s = together(e.conns)
	}
	l.put(e, s)
}

// put puts the state of an endpoint into force, and counts it.
func (l *endpoints) put(e *endpoint, s *childState) {
	l.states[e.connectivity()]--
	l.states[s.ConnectivityState]++
	e.picker.Store(s)
}

// together is the state of several connections: the best one.
func together(conns []*conn) childState {
	var in [connectivity.Shutdown + 1]leastUsed
	for _, c := range conns {
		in[c.state.ConnectivityState] = append(in[c.state.ConnectivityState], used{c, c.state.Picker})
	}
	for _, state := range bestFirst {
		if all := in[state]; len(all) > 0 {
			s := childState{State: all[len(all)-1].state, ready: len(all)}
			if state == connectivity.Ready {
				s.Picker = all
			}
			return s
		}
	}
	return childState{State: conns[0].state}
}

// bestFirst are the states of connections.
var bestFirst = []connectivity.State{
	connectivity.Ready, connectivity.Connecting, connectivity.Idle, connectivity.TransientFailure,
}

// leastUsed picks among the connections that are ready the one with the fewest calls.
type leastUsed []used

type used struct {
	*conn
	picker balancer.Picker
}

// Pick counts the call in the same step, so that of calls that come together each sees
// those before it.
func (p leastUsed) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	for {
		least, calls := p[0], p[0].calls.Load()
		for i := 1; i < len(p) && calls > 0; i++ {
			if n := p[i].calls.Load(); n < calls {
				least, calls = p[i], n
			}
		}
		if !least.calls.CompareAndSwap(calls, calls+1) {
			continue
		}
		res, err := least.picker.Pick(info)
		if err != nil {
			least.calls.Add(-1)
			return res, err
		}
		res.Done = chain(res.Done, least.done)
		return res, nil
	}
}

// aggregate returns the best state of an endpoint.
func (l *endpoints) aggregate() connectivity.State {
	for _, s := range bestFirst {
		if l.states[s] > 0 {
			return s
		}
	}
	return connectivity.TransientFailure
}

// connect puts the states of all connections into force in a Router.
func (l *endpoints) connect(r *router.Router) {
	for _, m := range l.members {
		l.setStreams(r, m.ID, m.Host.(*host))
	}
	r.Fleet.SetConnections(func(rep *policy.Replica) bool { return l.pickable(hostOf(rep)) })
}

// setStreams sets how many calls the connections to a replica take, where that is known.
func (l *endpoints) setStreams(r *router.Router, id string, h *host) {
	streams := l.streams
	if s := h.picker.Load(); s.ConnectivityState == connectivity.Ready {
		streams *= s.ready // else one, that a pick opens
	}
	r.Fleet.SetStreams(id, streams)
}

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
