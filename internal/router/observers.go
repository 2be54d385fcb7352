package router

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
)

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

// CacheChanged passes changes of the replicas' caches to the policy; it does nothing where the policy
// does not observe caches or the Router is closed. Ids that are not in the fleet are
// ignored by the policy. One goroutine at a time per replica calls it.
func (r *Router) CacheChanged(changes []policy.CacheChange) {
	if r.ObservesCache() && r.gate.enter() {
		defer r.gate.leave()
		r.hosted.cacheChanged(changes)
	}
}

// ObservesCache reports whether the policy or its shadow observes caches: whether CacheChanged does anything.
func (r *Router) ObservesCache() bool { return r.hosted.observeCache() }

// Report takes a replica's own report: the load goes to [load.Tracker.Report] where the policy looks at it, the size of
// the cache to [Fleet.SetCapacity], and that it drains to [Fleet.Drain].
func (r *Router) Report(id string, report load.Report) {
	if report.KVTokens > 0 {
		r.Fleet.SetCapacity(id, report.KVTokens)
	}
	if report.Draining {
		r.Fleet.Drain(id)
	}
	if r.takesLoad {
		r.Load.Report(id, report)
	}
}

// SetCapacity passes to the policy how many tokens the KV cache of a replica holds, if
// that is news. Unknown ids and sizes that are not positive are ignored.
func (f *Fleet) SetCapacity(id string, kvTokens int) {
	r := f.router
	rep := r.View().ByID(id)
	if rep == nil || kvTokens <= 0 || liveOf(rep).KVTokens.Swap(int64(kvTokens)) == int64(kvTokens) {
		return
	}
	if r.gate.enter() {
		defer r.gate.leave()
		r.hosted.capacityChanged(id, kvTokens)
	}
}
