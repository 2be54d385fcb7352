package prefixaffinity

import (
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// FleetChanged implements [routing.FleetObserver].
func (p *Policy) FleetChanged(c routing.FleetChange) { p.held.FleetChanged(c) }

// CacheChanged implements [routing.CacheObserver]: what is told of a replica goes
// before what was routed there. Ray's rule does not know of it.
func (p *Policy) CacheChanged(changes []routing.CacheChange) {
	if !p.ray {
		p.held.CacheChanged(changes)
	}
}

// ReplicaCapacity implements [routing.CapacityObserver]: what was routed to a replica
// counts as long as its KV cache can hold it.
func (p *Policy) ReplicaCapacity(id string, kvTokens int) { p.held.SetCapacity(id, kvTokens) }

// quorum returns how many holders make a block shared: more than the share of
// those that serve the model, and more than rendezvous.Few unless that is all of them.
func quorum(f *cacheview.Fleet, model string, share float64) int {
	n := f.Serving(model)
	return max(int(share*float64(n))+1, min(rendezvous.Few+1, n), 2)
}
