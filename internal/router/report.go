package router

import "time"

// DefaultReportTTL is how long a replica's report of its load counts.
const DefaultReportTTL = 2 * time.Second

// A ReplicaReport is what a replica reports of itself, all its callers counted: in a
// trailer, by an RPC, through a look-aside server.
type ReplicaReport struct {
	Ongoing      int   // requests under way, those that wait included; negative = not reported
	QueuedTokens int64 // uncached prompt tokens not yet prefilled; negative = not reported
	// KVTokens is the size of its KV cache in tokens; 0 = not reported.
	KVTokens int
	// Draining: it takes no new sessions; see [Router.ReplicaDrains].
	Draining bool
}

// Report takes a replica's own report. What it reports beyond our own reservations is the
// load of others, in the place of what [Router.SetPeerLoad] set before: of the two
// the later counts. A report counts for Options.ReportTTL from now; after that, at the
// next pick, what SetPeerLoad set last counts again. What is not reported stays as
// SetPeerLoad set it. Only load expires; the size of the cache goes to
// [Router.ReplicaCapacity] and stays. Unknown ids are ignored, and so is load where the
// policy does not look at it. O(1).
func (r *Router) Report(id string, report ReplicaReport) {
	if report.KVTokens > 0 {
		r.ReplicaCapacity(id, report.KVTokens)
	}
	if report.Draining {
		r.ReplicaDrains(id)
	}
	if !r.takesLoad || report.Ongoing < 0 && report.QueuedTokens < 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.view.Load().ByID(id)
	if rep == nil {
		return
	}
	l := liveOf(rep)
	ongoing, tokens := unbook(l.peer)
	if report.Ongoing >= 0 {
		ongoing = report.Ongoing - rep.Ongoing()
	}
	if report.QueuedTokens >= 0 {
		tokens = report.QueuedTokens - int64(rep.QueuedTokens())
	}
	r.setPeer(l, bookOf(ongoing, tokens))
	if !l.listed {
		l.listed = true
		r.reports = append(r.reports, l)
		r.shared.slow.Or(reporting)
	}
	l.reported = r.opts.Now()
	if len(r.reports) == 1 {
		r.expiry = l.reported.Add(r.opts.ReportTTL)
	}
}

// TakesReports reports whether Report does anything.
func (r *Router) TakesReports() bool { return r.takesLoad || r.own.CapacityChanged != nil }

// expire drops the reports that are too old. Called with mu held, at a pick, if there
// are any.
func (r *Router) expire() {
	now := r.opts.Now()
	if now.Before(r.expiry) {
		return
	}
	fresh := r.reports[:0]
	for _, l := range r.reports {
		end := l.reported.Add(r.opts.ReportTTL)
		switch {
		case l.reported.IsZero(): // overtaken by SetPeerLoad, or left
			l.listed = false
		case now.Before(end):
			if len(fresh) == 0 || end.Before(r.expiry) {
				r.expiry = end
			}
			fresh = append(fresh, l)
		default:
			l.listed, l.reported = false, time.Time{}
			r.setPeer(l, l.peer)
		}
	}
	clear(r.reports[len(fresh):])
	if r.reports = fresh; len(fresh) == 0 {
		r.shared.slow.And(^uint32(reporting))
	}
}

// ReplicaCapacity passes to the policy how many tokens the KV cache of a replica holds, if
// that is news. Unknown ids and sizes that are not positive are ignored.
func (r *Router) ReplicaCapacity(id string, kvTokens int) {
	rep := r.View().ByID(id)
	if rep == nil || kvTokens <= 0 || liveOf(rep).KVTokens.Swap(int64(kvTokens)) == int64(kvTokens) {
		return
	}
	if r.gate.enter() {
		defer r.gate.leave()
		r.hosted.capacityChanged(id, kvTokens)
	}
}
