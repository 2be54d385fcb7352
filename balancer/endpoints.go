package balancer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/pickfirst"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
)

// endpoint is one set of addresses, and the connections to it.
type endpoint struct {
	balancer.ClientConn // to the channel; endpoint intercepts UpdateState of its connections
	lb                  *lb
	conns               *several

	// Guarded by lb.mu.
	id    string // of the replica that is there
	state connectivity.State
	seen  uint64 // the last update of the list that has it
	gone  bool   // no update has it any more

	*host
}

// listed is an endpoint as the resolver lists it.
type listed struct {
	*endpoint
	as resolver.Endpoint
}

// endpoints are those of the resolver's list. Used with lb.mu held, but for the atomics and the connections.
type endpoints struct {
	eager       atomic.Bool  // all connections are to be open
	perReplica  atomic.Int32 // connections
	connections connections

	all     *resolver.EndpointMap[*endpoint]
	members []router.Member
	left    []*endpoint                    // to be closed at the end of the update under way
	updates uint64                         // of the list
	states  [connectivity.Shutdown + 1]int // endpoints, by their state
	failed  balancer.Picker                // of the endpoint that failed last
	streams int                            // that a connection takes; 0 = not known
}

// set rebuilds the list of replicas, sorted by id: the resolver's order is random. It returns the endpoints that count:
// of several with the same id or the same addresses that is the first.
func (l *endpoints) set(b *lb, config *lbConfig, all []resolver.Endpoint) []listed {
	l.updates++
	l.streams = config.MaxStreamsPerConnection
	l.members = make([]router.Member, 0, len(all))
	kept := make([]listed, 0, len(all))
	ids := make(map[string]bool, len(all))
	renamed := make(map[string]string)
	for _, ep := range all {
		if len(ep.Addresses) == 0 {
			continue
		}
		attrs := fleet.FromEndpoint(ep)
		e, ok := l.all.Get(ep)
		if ok && e.seen == l.updates || ids[attrs.ID] {
			continue
		}
		if !ok {
			e = &endpoint{ClientConn: b.ClientConn, lb: b, state: connectivity.Shutdown, host: new(host)}
			l.all.Set(ep, e)
		}
		if e.id != "" && e.id != attrs.ID {
			renamed[e.id] = attrs.ID
		}
		e.id, e.seen, ids[attrs.ID] = attrs.ID, l.updates, true
		l.members = append(l.members, router.Member{Attributes: attrs, Host: e.host})
		kept = append(kept, listed{e, ep})
	}
	l.dropUnlisted()
	if len(renamed) > 0 {
		l.connections.rename(renamed)
	}
	slices.SortFunc(l.members, func(x, y router.Member) int { return cmp.Compare(x.ID, y.ID) })
	l.perReplica.Store(int32(config.ConnectionsPerReplica))
	l.eager.Store(len(kept)*max(config.ConnectionsPerReplica, 1) <= EagerConnections)
	return kept
}

// dropUnlisted takes out the endpoints that the last update does not have.
func (l *endpoints) dropUnlisted() {
	for ep, e := range l.all.All() {
		if e.seen == l.updates {
			continue
		}
		l.all.Delete(ep)
		l.left = append(l.left, e)
		l.moves(e, connectivity.Shutdown)
		e.gone = true
		e.picker.Store(nil) // a reservation there that was not sent yet goes elsewhere
		l.connections.set(e.id, nil)
	}
}

// update passes the endpoints on to their connections, and closes those of endpoints that left. It returns the first
// error. Called without lb.mu.
func (l *endpoints) update(kept []listed, s resolver.State, opts balancer.BuildOptions) (first error) {
	s = pickfirst.EnableHealthListener(s)
	for _, e := range kept {
		if e.conns == nil {
			e.conns = newSeveral(e, opts, &l.perReplica, !l.eager.Load())
		}
		s.Endpoints = []resolver.Endpoint{e.as}
		if err := e.conns.UpdateClientConnState(balancer.ClientConnState{ResolverState: s}); err != nil && first == nil {
			first = err
		}
	}
	for _, e := range l.left {
		e.conns.Close()
	}
	l.left = nil
	if len(kept) == 0 {
		return balancer.ErrBadResolverState
	}
	return first
}

// UpdateState is called by the connections when one of them changes. The work does not grow with the fleet.
func (e *endpoint) UpdateState(s balancer.State) {
	b, l := e.lb, &e.lb.endpoints
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || e.gone {
		return
	}
	l.moves(e, s.ConnectivityState)
	e.picker.Store(&childState{s})
	if s.ConnectivityState == connectivity.TransientFailure {
		l.failed = s.Picker
	}
	l.connections.set(e.id, readyConnection(s))
	if s.ConnectivityState == connectivity.Idle && l.eager.Load() {
		go e.conns.ExitIdle() // not from here: the connections hold their locks
	}
	if b.updating {
		return
	}
	if binding := b.binding.Load(); binding != nil {
		l.setStreams(binding.Router, e.id, e.host)
		binding.Router.SetConnected(e.id, l.pickable(e.host))
	}
	b.publish()
}

// readyConnection is the connection of an endpoint for calls to that replica, nil while it is not ready.
func readyConnection(s balancer.State) balancer.SubConn {
	if s.ConnectivityState != connectivity.Ready {
		return nil
	}
	res, err := s.Picker.Pick(balancer.PickInfo{})
	if err != nil {
		return nil
	}
	if res.Done != nil {
		res.Done(balancer.DoneInfo{})
	}
	return res.SubConn
}

// moves counts an endpoint in another state; Shutdown is none.
func (l *endpoints) moves(e *endpoint, to connectivity.State) {
	l.states[e.state]--
	l.states[to]++
	e.state = to
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

// connect puts the states of all connections into force in a Router.
func (l *endpoints) connect(r *router.Router) {
	for _, m := range l.members {
		l.setStreams(r, m.ID, m.Host.(*host))
	}
	r.SetConnections(func(rep *policy.Replica) bool { return l.pickable(hostOf(rep)) })
}

// setStreams sets how many calls the connections to a replica take, where that is known.
func (l *endpoints) setStreams(r *router.Router, id string, h *host) {
	streams := l.streams
	if streams > 0 {
		if s := h.picker.Load(); s != nil {
			streams *= max(ready(s.State), 1) // one that is opened by a pick
		}
	}
	r.SetStreams(id, streams)
}

// pickable reports whether a pick may end here: the connection is ready or, in a fleet too large for one connection
// each, can be opened by a pick.
func (l *endpoints) pickable(h *host) bool {
	switch h.connectivity() {
	case connectivity.Ready:
		return true
	case connectivity.Idle, connectivity.Connecting:
		return !l.eager.Load()
	}
	return false
}

// declareModels reports whether replicas declare models or adapters.
func (l *endpoints) declareModels() bool {
	return slices.ContainsFunc(l.members, func(m router.Member) bool { return len(m.Models)+len(m.Adapters) > 0 })
}
