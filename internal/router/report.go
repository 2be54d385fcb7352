package router

import "github.com/warmpath/warmpath/internal/router/load"

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
