package router

import (
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
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

// Look looks at the fleet as a pick would, for a host that has had none for a while.
func (h *Health) Look() {
	r := h.router
	r.outliers.Look(r.opts.Now())
	h.Sync()
}

// attend looks at the fleet before a pick, if that is due. It is never called while a request chooses: it lets those
// that wait choose again. It returns the time if it read the clock, else the zero time. Called with mu held.
func (h *Health) attend(q *policy.Request) (now time.Time) {
	r := h.router
	if q.Answer == policy.AnswerUnseen && r.outliers.AllHealthy() {
		return now
	}
	now = r.opts.Now()
	r.outliers.Look(now)
	h.force()
	return now
}

// Sync lets requests that wait choose again where outlier detection has changed.
func (h *Health) Sync() {
	r := h.router
	if r.outliers.Version() == h.seen.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h.force()
}

// force is Sync. Called with mu held.
func (h *Health) force() {
	r := h.router
	changes := r.outliers.Version()
	if changes == h.seen.Load() {
		return
	}
	h.seen.Store(changes)
	r.quick.hold()
	r.queue.requeue()
}

// judge takes what the end of a call shows of the replica. Where an answer was seen, Answered has done it.
func (h *Health) judge(rep *policy.Replica, m state.Mark, o *policy.Outcome) {
	r := h.router
	r.outliers.Ended(liveOf(rep).outlier, m, o)
	h.Sync()
}

// Outrun notes that another replica has answered in time what was given up on this one as [Late]: as much evidence
// again.
func (h *Health) Outrun(late *policy.Replica) {
	r := h.router
	r.outliers.Outrun(liveOf(late).outlier)
	h.Sync()
}

// charge adds to a replica's book. Called with mu held.
func (h *Health) charge(l *live, ongoing, tokens int64) {
	l.Book.Add(ongoing<<state.TokenBits + tokens) // quick picks write it too
	if d := h.router.outliers; !d.AllHealthy() {
		d.Readmit(l.outlier)
	}
}
