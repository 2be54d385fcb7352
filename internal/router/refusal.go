package router

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
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

// alarm is the timer for requests that wait for a marked replica. Guarded by the Router's mutex.
type alarm struct {
	at   time.Time // zero = not set
	stop func()
}

func (a *alarm) off() {
	if !a.at.IsZero() {
		a.at = time.Time{}
		a.stop()
	}
}

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
	r.mu.Lock()
	held := b.end()
	if held {
		r.Fleet.refused(b.replica)
		r.Health.force()
	}
	r.mu.Unlock()
	if held {
		r.Report(b.replica.ID, report)
	}
}

// refused marks a replica that refused, unless it has left. Called with mu held,
// after the reservation was taken from the book.
func (f *Fleet) refused(rep *policy.Replica) {
	r := f.router
	if now := r.view.Load().ByID(rep.ID); now == nil || liveOf(now) != liveOf(rep) {
		f.forget(rep)
		return
	}
	r.queue.mark(rep)
}

// mark marks a replica that refused.
func (u *queue) mark(rep *policy.Replica) {
	l := liveOf(rep)
	l.refuse(u.opts.Now(), int64(rep.Ongoing()))
	if !slices.ContainsFunc(u.marked, func(m *policy.Replica) bool { return liveOf(m) == l }) {
		u.marked = append(u.marked, rep)
	}
	u.arm()
}

// refuse sets the mark, or lowers what it allows. Of requests that were sent together
// and refused one by one only the first sets it.
func (l *live) refuse(now time.Time, ongoing int64) {
	f := &l.refusals
	if !f.marked() || f.more > 0 {
		again := !f.until.IsZero() && now.Sub(f.until) < mostHold
		f.hold = min(2*f.hold, mostHold)
		if !again || f.hold == 0 {
			f.hold = firstHold
		}
		f.until, f.more = now.Add(f.hold), 0
	}
	f.most = ongoing
	l.bound()
}

// lift takes the mark away, and reports whether there was one.
func (l *live) lift() bool {
	was := l.refusals.marked()
	l.refusals.most, l.refusals.more = state.NoBound, 0
	l.bound()
	return was
}

// bound puts into force how many reservations the replica may have now.
func (l *live) bound() { l.Max.Store(min(l.Capacity.Load(), l.streams, l.refusals.most)) }

// tick ends the marks whose time has come. Called with mu held, before a pick.
func (u *queue) tick() {
	if len(u.marked) == 0 {
		return
	}
	now := u.opts.Now()
	for _, rep := range u.marked {
		if f := &liveOf(rep).refusals; f.marked() && !now.Before(f.until) {
			u.expired(rep, now)
		}
	}
	u.marked = slices.DeleteFunc(u.marked, func(rep *policy.Replica) bool { return !liveOf(rep).refusals.marked() })
}

// expired ends a mark, or tries more while a request waits for the replica.
func (u *queue) expired(rep *policy.Replica, now time.Time) {
	l := liveOf(rep)
	f, ongoing := &l.refusals, l.Ongoing()
	if u.queued == 0 || ongoing < f.most {
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
	u.serve(rep.ID)
}

// arm sets the alarm for when, while a request waits, a replica may get room by time
// alone: at the end of the first mark, or at the next look at those that are not well.
// Called with mu held.
func (u *queue) arm() {
	if u.queued == 0 || u.closed || len(u.marked) == 0 && u.outliers.AllHealthy() {
		u.alarm.off()
		return
	}
	now := u.opts.Now()
	var first time.Time
	sooner := func(at time.Time) {
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	for _, rep := range u.marked {
		if f := &liveOf(rep).refusals; f.marked() {
			sooner(f.until)
		}
	}
	if !u.outliers.AllHealthy() {
		sooner(later(u.outliers.Due(), now.Add(time.Millisecond)))
	}
	if first.IsZero() || first.Equal(u.alarm.at) {
		return
	}
	u.alarm.off()
	u.alarm = alarm{at: first, stop: u.opts.AfterFunc(max(first.Sub(now), 0), u.router.Health.ring)}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// insist takes the marks of the replicas away that a request would wait for, and reports
// whether there were any: a request that cannot wait is better sent than failed for what
// may be over, unless it would overtake one that does wait. Called with mu held.
func (u *queue) insist(d *policy.Decision) bool {
	if u.queued > 0 {
		return false
	}
	lifted := false
	for _, rep := range u.marked {
		l := liveOf(rep)
		if d.WaitFor == nil || slices.ContainsFunc(d.WaitFor, func(w *policy.Replica) bool { return liveOf(w) == l }) {
			lifted = l.lift() || lifted
		}
	}
	return lifted
}
