package router

import "github.com/warmpath/warmpath/balancer/policy"

// hosted are the observers of a Router's policies: the one in force, and its shadow.
type hosted []*policy.Observer

// fleetChanged is called with the Router's mutex held.
func (h hosted) fleetChanged(c policy.FleetChange) {
	if len(c.Added)+len(c.Removed)+len(c.Connected)+len(c.Disconnected) == 0 {
		return
	}
	for _, o := range h {
		if o.FleetChanged != nil {
			o.FleetChanged(c)
		}
	}
}

func (h hosted) cacheChanged(changes []policy.CacheChange) {
	for _, o := range h {
		if o.CacheChanged != nil {
			o.CacheChanged(changes)
		}
	}
}

func (h hosted) capacityChanged(id string, kvTokens int) {
	for _, o := range h {
		if o.CapacityChanged != nil {
			o.CapacityChanged(id, kvTokens)
		}
	}
}

func (h hosted) observeCache() bool {
	for _, o := range h {
		if o.CacheChanged != nil {
			return true
		}
	}
	return false
}
