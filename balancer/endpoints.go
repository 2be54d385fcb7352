package balancer

import (
	"cmp"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/resolver"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/routing"
)

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

// setMembers rebuilds the list of replicas, sorted by id: the resolver's order is
// random. It returns the endpoints that count: of several with the same id or the
// same addresses that is the first. Called with mu held.
func (b *lb) setMembers(config *lbConfig, all []resolver.Endpoint) []resolver.Endpoint {
	old := b.endpoints
	b.endpoints = resolver.NewEndpointMap[*endpoint]()
	b.members = b.members[:0:0]
	kept := make([]resolver.Endpoint, 0, len(all))
	ids := make(map[string]bool, len(all))
	renamed := make(map[string]string)
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
			renamed[e.id] = attrs.ID
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
	if len(renamed) > 0 {
		b.connections.rename(renamed)
	}
	slices.SortFunc(b.members, func(x, y routing.Member) int { return cmp.Compare(x.ID, y.ID) })
	b.eager.Store(len(kept)*max(config.ConnectionsPerReplica, 1) <= EagerConnections)
	return kept
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
