package router

import "github.com/warmpath/warmpath/balancer/policy"

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
