package router

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
)

// Health puts what outlier detection finds into force in a Router. The Router's mutex guards it.
type Health struct {
	router *Router
	seen   atomic.Uint64 // the Detector's Version in force; written with mu held
}

// Outliers returns the Router's outlier detection. [Health.Sync] follows what changes it.
func (r *Router) Outliers() *outlier.Detector { return r.outliers }

// Outlier returns the replica's record in outlier detection.
func (r *Router) Outlier(rep *policy.Replica) *outlier.Replica { return liveOf(rep).outlier }

// SetServing notes whether a connected replica reports that it serves. Unknown ids are ignored.
func (h *Health) SetServing(id string, ok bool) {
	if rep := h.router.view.Load().byID(id); rep != nil {
		h.router.outliers.SetServing(liveOf(rep).outlier, ok)
		h.Sync()
	}
}

// Look looks at the fleet as a pick would, for a host that has had none for a while.
func (h *Health) Look() {
	h.router.outliers.Look(h.router.opts.Now())
	h.Sync()
}

// Sync lets requests that wait choose again where outlier detection has changed.
func (h *Health) Sync() {
	if h.stale() {
		h.router.mu.Lock()
		defer h.router.mu.Unlock()
		if h.stale() {
			h.force()
		}
	}
}

// stale reports whether outlier detection has changed since force. It takes no lock.
func (h *Health) stale() bool { return h.router.outliers.Version() != h.seen.Load() }

// force puts into force what outlier detection has found. It is never called while a request chooses: it lets those
// that wait choose again. Called with mu held.
func (h *Health) force() {
	h.seen.Store(h.router.outliers.Version())
	h.router.queue.requeue()
}

// Outrun notes that another replica has answered in time what was given up on this one as [Late]: as much evidence
// again.
func (h *Health) Outrun(late *policy.Replica) {
	h.router.outliers.Outrun(liveOf(late).outlier)
	h.Sync()
}
