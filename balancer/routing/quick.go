package routing

import (
	"math/rand/v2"

	"github.com/warmpath/warmpath/internal/outlier"
)

// A QuickChooser is a Policy that can choose for a plain request without the
// Router's lock: one that names no replica, model or adapter, on its first
// attempt, while nobody waits. It is for hosts that pick and release in tens of
// nanoseconds and keep nothing in between.
type QuickChooser interface {
	// ChooseQuick is Choose, called by many goroutines at once. It returns nil to
	// leave the request to Choose: when it does not find an available replica at
	// once, or when tiers matter. It uses no randomness of the View's.
	ChooseQuick(q *Request, v *View) (*Replica, Reason)
}

// PickQuick picks and books a plain request without the lock if the policy is a
// QuickChooser, and reports whether it did. The bound of a replica is kept
// exactly, and the booking counts at once for every other pick; only of two
// picks at the very same moment neither need see the other. The host ends the
// booking with ReleaseQuick, exactly once; it has no prefill share, and observers
// are not told of it. A Router whose randomness was given, or whose policy
// observes, never picks quickly.
func (r *Router) PickQuick(q *Request) (*Replica, Reason, bool) {
	if r.quick == nil || r.shared.slow.Load() != 0 || !q.plain() {
		return nil, "", false
	}
	rep, why := r.quick.ChooseQuick(q, r.view.Load())
	if rep == nil || !rep.live.take() {
		return nil, "", false
	}
	// Who takes the replica out of the fleet clears connected before it reads the
	// book, so one of the two sees the other.
	if rep.live.state.Load() != connectedBit {
		r.ReleaseQuick(rep)
		return nil, "", false
	}
	if r.sessions != nil {
		r.sessions.note(q.Session, rep.live)
	}
	return rep, why, true
}

// ReleaseQuick ends a booking of PickQuick.
func (r *Router) ReleaseQuick(rep *Replica) {
	rep.live.book.Add(-1 << tokenBits)
	if r.shared.slow.Load() == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released(rep)
}

// CompleteQuick tells how a quick booking ended: what it says of the replica's health.
func (r *Router) CompleteQuick(rep *Replica, o Outcome) {
	if r.outliers.Ejects() && (o.Err != nil || rep.live.outlier.Suspected()) {
		r.judge(rep, outlier.Mark{}, &o)
	}
}

// take adds a booking unless the replica is full.
func (l *live) take() bool {
	most := l.max.Load()
	if most == noBound {
		l.book.Add(1 << tokenBits)
		return true
	}
	for {
		book := l.book.Load()
		if book>>tokenBits >= most {
			return false
		}
		if l.book.CompareAndSwap(book, book+1<<tokenBits) {
			return true
		}
	}
}

// plain reports whether the request narrows the choice in no way.
func (q *Request) plain() bool {
	return q.Pin == "" && q.Model == "" && q.Adapter == "" && len(q.Exclude) == 0 && len(q.Allow) == 0 && len(q.tried) == 0
}

// Why a pick takes the lock.
const (
	held      = 1 << iota // somebody waits, a replica that left has bookings or is not well, or the Router is closed
	rolling               // a Rollout keeps requests from the policy
	reporting             // reports of replicas count, and expire at picks
)

// hold tells quick picks and releases whether they concern anybody else. A
// waiter is counted before it looks at the books for the last time. Called with
// mu held.
func (r *Router) hold() {
	if r.queued > 0 || len(r.departed) > 0 || !r.outliers.AllHealthy() || r.closed {
		r.shared.slow.Or(held)
		return
	}
	r.shared.slow.And(^uint32(held))
}

// QuickLeastOfTwo is LeastOfTwo for ChooseQuick.
func (v *View) QuickLeastOfTwo() *Replica {
	n := uint64(len(v.connected))
	if n < 3 || len(v.near[0])+len(v.near[1]) > 0 {
		return nil
	}
	x := rand.Uint64()
	i, j := x>>32*n>>32, x&(1<<32-1)*(n-1)>>32
	if j >= i {
		j++
	}
	first, second := v.connected[i], v.connected[j]
	if !first.Open() || !second.Open() {
		return nil
	}
	return fewerOngoing(first, second)
}

// Open reports whether a plain request may be given to the replica now. It is
// for ChooseQuick.
func (r *Replica) Open() bool {
	return !r.Draining && r.live.state.Load() == connectedBit && !r.Full()
}
