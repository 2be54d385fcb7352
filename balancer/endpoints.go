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
	"github.com/warmpath/warmpath/balancer/routing"
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

// host is what a Router has of an endpoint. The Router may outlive the balancer, so nothing here leads to the channel
// once picker is nil.
type host struct {
	// picker is that of the connections, replaced on every change of their state.
	picker atomic.Pointer[childState]
	quick  atomic.Pointer[quick]
}

type childState struct{ balancer.State }

// connectivity is the state of the connection; Shutdown once it is gone for good.
func (h *host) connectivity() connectivity.State {
	if s := h.picker.Load(); s != nil {
		return s.ConnectivityState
	}
	return connectivity.Shutdown
}

// listed is an endpoint as the resolver lists it.
type listed struct {
	*endpoint
	as resolver.Endpoint
}

// setMembers rebuilds the list of replicas, sorted by id: the resolver's order is
// random. It returns the endpoints that count: of several with the same id or the
// same addresses that is the first. Called with mu held.
func (b *lb) setMembers(config *lbConfig, all []resolver.Endpoint) []listed {
	b.updates++
	b.members = make([]routing.Member, 0, len(all))
	kept := make([]listed, 0, len(all))
	ids := make(map[string]bool, len(all))
	renamed := make(map[string]string)
	for _, ep := range all {
		if len(ep.Addresses) == 0 {
			continue
		}
		attrs := fleet.FromEndpoint(ep)
		e, ok := b.endpoints.Get(ep)
		if ok && e.seen == b.updates || ids[attrs.ID] {
			continue
		}
		if !ok {
			e = &endpoint{ClientConn: b.ClientConn, lb: b, state: connectivity.Shutdown, host: new(host)}
			b.endpoints.Set(ep, e)
		}
		if e.id != "" && e.id != attrs.ID {
			renamed[e.id] = attrs.ID
		}
		e.id, e.seen, ids[attrs.ID] = attrs.ID, b.updates, true
		b.members = append(b.members, routing.Member{Attributes: attrs, Host: e.host})
		kept = append(kept, listed{e, ep})
	}
	for ep, e := range b.endpoints.All() {
		if e.seen != b.updates {
			b.endpoints.Delete(ep)
			b.left = append(b.left, e)
			b.moves(e, connectivity.Shutdown)
			e.gone = true
			e.picker.Store(nil) // a booking of it that was not sent yet goes elsewhere
			b.connections.set(e.id, nil)
		}
	}
	if len(renamed) > 0 {
		b.connections.rename(renamed)
	}
	slices.SortFunc(b.members, func(x, y routing.Member) int { return cmp.Compare(x.ID, y.ID) })
	b.eager.Store(len(kept)*max(config.ConnectionsPerReplica, 1) <= EagerConnections)
	return kept
}

// updateEndpoints passes the endpoints on to their connections, and closes those of endpoints that left. It returns the
// first error.
func (b *lb) updateEndpoints(kept []listed, s resolver.State) (first error) {
	s = pickfirst.EnableHealthListener(s)
	for _, e := range kept {
		if e.conns == nil {
			e.conns = newSeveral(e, b.opts, &b.perReplica, !b.eager.Load())
		}
		s.Endpoints = []resolver.Endpoint{e.as}
		if err := e.conns.UpdateClientConnState(balancer.ClientConnState{ResolverState: s}); err != nil && first == nil {
			first = err
		}
	}
	for _, e := range b.left {
		e.conns.Close()
	}
	b.left = nil
	if len(kept) == 0 {
		return balancer.ErrBadResolverState
	}
	return first
}

// all returns the endpoints. Called with mu held.
func (b *lb) all() []*endpoint { return b.endpoints.Values() }

// UpdateState is called by the connections when one of them changes. The work does not grow with the fleet.
func (e *endpoint) UpdateState(s balancer.State) {
	b := e.lb
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || e.gone {
		return
	}
	b.moves(e, s.ConnectivityState)
	e.picker.Store(&childState{s})
	if s.ConnectivityState == connectivity.TransientFailure {
		b.failed = s.Picker
	}
	b.noteConnection(e, s)
	if s.ConnectivityState == connectivity.Idle && b.eager.Load() {
		go e.conns.ExitIdle() // not from here: the connections hold their locks
	}
	if b.updating {
		return
	}
	if binding := b.binding.Load(); binding != nil {
		b.tell(binding.Router, e)
	}
	b.publish()
}

// moves counts an endpoint in another state; Shutdown is none. Called with mu held.
func (b *lb) moves(e *endpoint, to connectivity.State) {
	b.states[e.state]--
	b.states[to]++
	e.state = to
}

// connect puts the states of all connections into force in a Router. Called with mu held.
func (b *lb) connect(r *routing.Router) {
	for _, m := range b.members {
		b.setStreams(r, m.ID, m.Host.(*host))
	}
	r.SetConnections(func(rep *routing.Replica) bool { return b.pickable(rep.Host().(*host)) })
}

// tell is connect for one endpoint. Called with mu held.
func (b *lb) tell(r *routing.Router, e *endpoint) {
	b.setStreams(r, e.id, e.host)
	r.SetConnected(e.id, b.pickable(e.host))
}

// setStreams sets how many calls the connections to a replica take, where that is known. Called with mu held.
func (b *lb) setStreams(r *routing.Router, id string, h *host) {
	streams := b.config.MaxStreamsPerConnection
	if streams > 0 {
		if s := h.picker.Load(); s != nil {
			streams *= max(ready(s.State), 1) // one that is opened by a pick
		}
	}
	r.SetStreams(id, streams)
}

// pickable reports whether a pick may end here: the connection is ready or, in
// a fleet too large for one connection each, can be opened by a pick.
func (b *lb) pickable(h *host) bool {
	switch h.connectivity() {
	case connectivity.Ready:
		return true
	case connectivity.Idle, connectivity.Connecting:
		return !b.eager.Load()
	}
	return false
}
