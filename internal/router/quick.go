package router

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Quick is how plain requests are reserved without the Router's lock, for a policy that has a ChooseQuick and
// observes nothing, in a Router whose randomness was not given. The bound of a replica is kept exactly, and a
// reservation counts at once for every other pick; only of two picks at the very same moment neither need see the
// other.
type Quick struct {
	slow   atomic.Uint32 // why picks take the lock; 0 = they need not
	router *Router
	choose func(*policy.Request, policy.View) (*policy.Replica, policy.Reason) // nil = no pick is quick
}

// Pick picks and reserves a plain request, and reports whether it did. The host ends the reservation with Release or
// Refused, exactly once. It has no prefill share, and observers are not called for it.
func (k *Quick) Pick(q *policy.Request) (*policy.Replica, policy.Reason, bool) {
	if k.choose == nil || k.slow.Load() != 0 || !plain(q) {
		return nil, "", false
	}
	r := k.router
	rep, why := k.choose(q, r.view.Load().whole)
	if rep == nil || !rep.State().Take() {
		return nil, "", false
	}
	// What takes the replica out of the fleet clears connected before it reads the
	// book, so one of the two sees the other.
	if rep.State().Flags.Load() != state.Connected {
		k.Release(rep)
		return nil, "", false
	}
	if q.Session != "" {
		r.Fleet.sessions.note(q, liveOf(rep))
	}
	return rep, why, true
}

// Release ends a reservation of Pick, as [Reservation.Release] does.
func (k *Quick) Release(rep *policy.Replica) {
	ended := k.slow.Load() == 0
	if ended {
		rep.State().Book.Add(-1 << state.TokenBits)
		if k.slow.Load() == 0 {
			return
		}
	}
	r := k.router
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics
	if !ended {
		rep.State().Book.Add(-1 << state.TokenBits)
	}
	r.queue.serve(rep)
}

// Refused is [Reservation.Refused] for a reservation of Pick.
func (k *Quick) Refused(rep *policy.Replica, report load.Report) {
	r := k.router
	r.mu.Lock()
	rep.State().Book.Add(-1 << state.TokenBits)
	r.queue.refused(rep)
	r.mu.Unlock()
	r.Report(rep.ID, report)
}

// Ended takes what the end of a call shows of the replica's health: nothing where it succeeded and the replica is not
// suspected.
func (k *Quick) Ended(rep *policy.Replica, o policy.Outcome) {
	k.router.outliers.Ended(liveOf(rep).outlier, nil, &o)
	k.router.Health.Sync()
}

// plain reports whether the request narrows the choice in no way.
func plain(q *policy.Request) bool {
	return q.Pin == "" && q.Model == "" && q.Adapter == "" &&
		len(q.Exclude) == 0 && len(q.Allow) == 0 && len(q.State().Tried) == 0
}

// Why a pick takes the lock.
const (
	held      = 1 << iota // a request waits, or the Router is closed
	unwell                // a replica is not well
	rolling               // a Rollout keeps requests from the policy
	reporting             // reports of replicas count, and expire at picks
)

// hold sets whether quick picks, and releases, concern any other request. A
// waiter is counted before it looks at the books for the last time. Called with
// mu held.
func (k *Quick) hold() {
	r := k.router
	k.hinder(held, len(r.queue.waiters) > 0 || r.queue.closed)
}

// hinder sets or clears why picks take the lock.
func (k *Quick) hinder(why uint32, on bool) {
	if on {
		k.slow.Or(why)
	} else {
		k.slow.And(^why)
	}
}
