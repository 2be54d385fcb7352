package router

import (
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// How long a replica that refused counts as full: the first time, and at most while it
// goes on saying so.
const (
	firstHold = 25 * time.Millisecond
	mostHold  = 500 * time.Millisecond
)

// refusals are what a replica taught by refusing: for a time it is given no more
// reservations than it had left, one for each that ends. Then, while a request waits for
// it, one more is tried, twice as many each time that none was refused, so that what
// has gathered in the queue does not go there at once; when none waits, it is as
// before. Guarded by the Router's mutex.
type refusals struct {
	most  int64         // reservations; state.NoBound = there is no mark
	until time.Time     // the end of the mark, or of the last one
	hold  time.Duration // of the mark, or of the last one
	more  int64         // how many were tried beyond most when it last ended; 0 = none yet
}

// marked reports whether the replica counts as full.
func (f *refusals) marked() bool { return f.most != state.NoBound }

// Refused ends a reservation whose replica refused the request because it is full, by its own
// report, which is no failure: for 25 ms, longer if that happens again and at most
// 500 ms, the replica counts as full once it has as many reservations as it had then. What
// it reported is taken as by [Router.Report]. Later calls, and calls after Release, do
// nothing.
func (b *Reservation) Refused(report load.Report) {
	r := b.router
	if r == nil {
		return
	}
	held := false
	latest := r.lineage.latest.Load()
	latest.mu.Lock()
	if held = b.end(); held {
		latest.queue.refused(b.Decision.Replica)
	}
	latest.mu.Unlock()
	if held {
		r.Health.Sync()
		latest.Report(b.Decision.Replica.ID, report)
	}
}

// refused marks a replica that refused, unless it has left. The reservation was taken from its book.
func (u *queue) refused(rep *policy.Replica) {
	now := u.router.view.Load().byID(rep.ID)
	if now == nil || part.OfReplica(now).Book != part.OfReplica(rep).Book {
		return
	}
	l := liveOf(now)
	l.refuse(u.router.opts.Now())
	if u.marked.IsZero() || l.refusals.until.Before(u.marked) {
		u.marked = l.refusals.until
	}
	u.arm()
}

// refuse sets the mark, or lowers what it allows. Of requests that were sent together
// and refused one by one only the first sets it.
func (l *live) refuse(now time.Time) {
	f := &l.refusals
	if !f.marked() || f.more > 0 {
		if f.hold = min(2*f.hold, mostHold); now.Sub(f.until) >= mostHold {
			f.hold = firstHold
		}
		f.until, f.more = now.Add(f.hold), 0
	}
	f.most = l.Ongoing()
	l.bound()
}

// lift takes the mark away, and reports whether there was one.
func (l *live) lift() bool {
	was := l.refusals.marked()
	l.refusals.most, l.refusals.more = state.NoBound, 0
	l.bound()
	return was
}

// tick ends the marks whose time has come. It is called before picks, while there are marks. O(replicas) at the end of
// a mark.
func (u *queue) tick() {
	now := u.router.opts.Now()
	if now.Before(u.marked) {
		return
	}
	var first time.Time
	for _, rep := range u.router.view.Load().replicas {
		f := &liveOf(rep).refusals
		if f.marked() && !now.Before(f.until) {
			u.expired(rep, now)
		}
		if f.marked() && (first.IsZero() || f.until.Before(first)) {
			first = f.until
		}
	}
	u.marked = first
}

// expired ends a mark, or tries more while a request waits for the replica.
func (u *queue) expired(rep *policy.Replica, now time.Time) {
	l := liveOf(rep)
	f, ongoing := &l.refusals, l.Ongoing()
	if len(u.waiters) == 0 || ongoing < f.most {
		l.lift()
		return
	}
	if f.more == 0 {
		f.more = 1
	} else {
		f.more, f.hold = min(2*f.more, 1<<20), firstHold
	}
	f.most, f.until = ongoing+f.more, now.Add(f.hold)
	l.bound()
	u.serve(rep)
}

// insist takes the marks of the replicas away that a request would wait for, and reports
// whether there were any: a request that cannot wait is better sent than failed for what
// may be over, unless it would overtake one that does wait.
func (u *queue) insist(d *policy.Decision) bool {
	if len(u.waiters) > 0 || u.marked.IsZero() {
		return false
	}
	wanted, lifted := d.WaitFor, false
	if wanted == nil {
		wanted = u.router.view.Load().replicas
	}
	for _, rep := range wanted {
		lifted = liveOf(rep).lift() || lifted
	}
	return lifted
}
