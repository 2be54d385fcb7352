package router

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/state"
)

// PickQuick picks and reserves a plain request without the lock if the policy has a
// ChooseQuick, and reports whether it did. The bound of a replica is kept
// exactly, and the reservation counts at once for every other pick; only of two
// picks at the very same moment neither need see the other. The host ends the
// reservation with ReleaseQuick, exactly once; it has no prefill share, and observers
// are not called for it. A Router whose randomness was given, or whose policy
// observes, never picks quickly.
func (r *Router) PickQuick(q *policy.Request) (*policy.Replica, policy.Reason, bool) {
	if r.quick == nil || r.shared.slow.Load() != 0 || !plain(q) {
		return nil, "", false
	}
	rep, why := r.quick(q, r.view.Load())
	if rep == nil || !rep.State().Take() {
		return nil, "", false
	}
	// What takes the replica out of the fleet clears connected before it reads the
	// book, so one of the two sees the other.
	if rep.State().Flags.Load() != state.Connected {
		r.ReleaseQuick(rep)
		return nil, "", false
	}
	if r.sessions != nil {
		r.sessions.note(q.Session, liveOf(rep))
	}
	return rep, why, true
}

// ReleaseQuick ends a reservation of PickQuick.
func (r *Router) ReleaseQuick(rep *policy.Replica) {
	rep.State().Book.Add(-1 << state.TokenBits)
	if r.shared.slow.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released(rep)
}

// CompleteQuick takes how a quick reservation ended: what it shows of the replica's health.
func (r *Router) CompleteQuick(rep *policy.Replica, o policy.Outcome) {
	if r.outliers.Ejects() && (o.Err != nil || r.Health(rep).Suspected()) {
		r.judge(rep, outlier.Mark{}, &o)
	}
}

// Health returns the evidence about a replica. It stays the same while the replica is in the fleet.
func (r *Router) Health(rep *policy.Replica) *outlier.Replica { return liveOf(rep).outlier }

// plain reports whether the request narrows the choice in no way.
func plain(q *policy.Request) bool {
	return q.Pin == "" && q.Model == "" && q.Adapter == "" &&
		len(q.Exclude) == 0 && len(q.Allow) == 0 && len(q.TriedIDs()) == 0
}

// Why a pick takes the lock.
const (
	held      = 1 << iota // a request waits, a replica that left has reservations or is not well, or the Router is closed
	rolling               // a Rollout keeps requests from the policy
	reporting             // reports of replicas count, and expire at picks
)

// hold sets whether quick picks and releases concern any other request. A
// waiter is counted before it looks at the books for the last time. Called with
// mu held.
func (r *Router) hold() {
	if r.queue.queued > 0 || len(r.departed) > 0 || !r.outliers.AllHealthy() || r.queue.closed {
		r.shared.slow.Or(held)
		return
	}
	r.shared.slow.And(^uint32(held))
}
