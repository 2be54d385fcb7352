package router

import "github.com/warmpath/warmpath/balancer/policy"

// observers are what a policy implements beside Policy; nil where it does not.
type observers struct {
	route policy.RouteObserver
	end   policy.CompletionObserver
	back  policy.WithdrawalObserver
	fleet policy.FleetObserver
	cache policy.CacheObserver
	size  policy.CapacityObserver
}

func observersOf(p policy.Policy) (o observers) {
	o.route, _ = p.(policy.RouteObserver)
	o.end, _ = p.(policy.CompletionObserver)
	o.back, _ = p.(policy.WithdrawalObserver)
	o.fleet, _ = p.(policy.FleetObserver)
	o.cache, _ = p.(policy.CacheObserver)
	o.size, _ = p.(policy.CapacityObserver)
	return o
}

// hosted are the observers of a Router's policies: the one in force, and its shadow.
type hosted []*observers

// fleetChanged is called with the Router's mutex held.
func (h hosted) fleetChanged(c policy.FleetChange) {
	if len(c.Added)+len(c.Removed)+len(c.Connected)+len(c.Disconnected) == 0 {
		return
	}
	for _, o := range h {
		if o.fleet != nil {
			o.fleet.FleetChanged(c)
		}
	}
}

func (h hosted) cacheChanged(changes []policy.CacheChange) {
	for _, o := range h {
		if o.cache != nil {
			o.cache.CacheChanged(changes)
		}
	}
}

func (h hosted) replicaCapacity(id string, kvTokens int) {
	for _, o := range h {
		if o.size != nil {
			o.size.ReplicaCapacity(id, kvTokens)
		}
	}
}

func (h hosted) observeCache() bool {
	for _, o := range h {
		if o.cache != nil {
			return true
		}
	}
	return false
}
