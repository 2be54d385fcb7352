package routing

import (
	"math"
	"time"
)

// round is how often the fleet is looked at, at picks, while anything is to be watched.
const round = 100 * time.Millisecond

// attend looks at the fleet before a pick, if that is due. It is never called while a request chooses: it lets those who
// wait choose again. It returns the time if it read the clock, else the zero time. Called with mu held.
func (r *Router) attend(q *Request) (now time.Time) {
	if !r.tends || q.Answer == AnswerUnseen && r.wards.unwell == 0 {
		return now
	}
	now = r.opts.Now()
	r.look(now)
	return now
}

// Attend looks at the fleet as a pick would, for a host that has had none for a while.
func (r *Router) Attend() {
	if !r.tends {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.look(r.opts.Now())
}

// look does a round if one is due. O(replicas). Called with mu held.
func (r *Router) look(now time.Time) {
	if now.Before(r.wards.due) && r.wards.due.Sub(now) <= round { // else the clock was set back
		return
	}
	r.wards.due = now.Add(round)
	v := r.view.Load()
	if r.judges {
		r.measure(v)
		for _, rep := range v.connected {
			r.examine(rep, now)
		}
	}
	if r.wards.unwell > 0 {
		r.advance(v, now)
	}
}

// examine ejects a replica against which there is enough, the calls that wait included. Called with mu held.
func (r *Router) examine(rep *Replica, now time.Time) {
	l := rep.live
	h := &l.health
	if !h.begun.IsZero() && now.Sub(h.begun) >= r.ejection(h.times-1) {
		r.nextTurn(l)
	}
	onTrial := h.trials > 0 && h.condition() == OnTrial
	need := r.opts.Ejection.Failures
	if onTrial {
		need = 1
	} else if h.cond >= OnTrial {
		return
	}
	n, since := l.overdue(now, need)
	strikes := int(l.strikes.Load())
	if strikes+n < need || onTrial && n == 0 {
		return
	}
	if onTrial {
		r.eject(rep, CauseTrial, now)
		return
	}
	if strikes > 0 && h.struck.Before(since) || n == 0 {
		since = h.struck
	}
	r.tryEject(rep, now, n > 0 || h.late, since)
}

// advance ends ejections whose time has come and slow starts, and lets shares grow. Only the first lets those who wait
// choose again: who starts slowly takes what others have no room for, however small its share. Called with mu held.
func (r *Router) advance(v *View, now time.Time) {
	var ongoing, others int64
	for _, rep := range v.connected {
		if !rep.live.health.unwell() {
			ongoing += int64(rep.Ongoing())
			others++
		}
	}
	freed := false
	for _, rep := range v.fleet.replicas {
		l := rep.live
		h := &l.health
		switch {
		case h.cond == Ejected && !now.Before(h.until):
			r.modify(l, func(h *health) { h.cond, h.since = OnTrial, now })
			freed = freed || l.state.Load()&barred == 0
		case h.cond == Warming && !now.Before(h.until):
			r.modify(l, func(h *health) { h.cond, h.since = Well, now })
		case h.cond == Warming:
			part := 1 - float64(h.until.Sub(now))/float64(r.opts.Ejection.SlowStart)
			r.modify(l, func(h *health) { h.most = share(part, ongoing, others) })
		}
	}
	if freed {
		r.requeue(v)
	}
}

// share is how many bookings a replica may have that has come so far in its slow start.
func share(part float64, ongoing, others int64) int64 {
	if others == 0 {
		return math.MaxInt64
	}
	return max(int64(math.Ceil(part*float64(ongoing)/float64(others))), 1)
}

// judge takes what the end of a call says of the replica. Where an answer was seen, Answered has told.
func (r *Router) judge(q *Request, d *Decision, o *Outcome) {
	l := d.Replica.live
	answered := o.FirstMessage > 0 || o.Err == nil && o.Fault == NoFault
	watched := q.Answer != AnswerUnseen
	switch {
	case answered && watched && o.FirstMessage > 0:
		return
	case answered && !q.trial && l.strikes.Load() == 0 && !watched:
		return
	case !answered && !o.Sent:
		return
	}
	now := r.opts.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	rep := r.view.Load().current(d.Replica)
	if rep == nil || rep.live != l {
		return
	}
	age := now.Sub(q.picked)
	limit := &l.health.limits[0]
	if q.Answer == AnswerWhole {
		limit = &l.health.limits[1]
	}
	trial := q.trial && !(watched && q.picked.Before(l.health.since)) // else it was decided before its call ended
	switch {
	case answered, o.Fault == NoFault:
		r.spoke(l, q.picked, now, answered || trial, trial)
	case o.Fault == Failed:
		r.strike(rep, q.picked, now, 1, false, trial)
	case o.Fault == Late:
		r.strike(rep, q.picked, now, max(limit.times(q.work, age), 1), true, trial)
	case watched && o.Fault == TimedOut && (limit.slow(q.work, age) || trial && !limit.known):
		r.strike(rep, q.picked, now, 1, true, trial)
	case watched && limit.passed(q.work, age) && !q.picked.Before(l.health.heard):
		r.strike(rep, q.picked, now, limit.times(q.work, age), true, trial)
	}
}

// spoke notes that a replica answered a call that was picked then. In time, that ends what stood against it; an answer
// at all ends its ejection. Called with mu held.
func (r *Router) spoke(l *live, picked, now time.Time, timely, trial bool) {
	h := &l.health
	h.heard, h.timely = now, timely
	if picked.After(h.reached) {
		h.reached = picked
	}
	if timely {
		l.strikes.Store(0)
		h.late = false
	}
	switch {
	case h.cond < OnTrial && h.told.State == VerdictWell:
	case trial && timely, !picked.IsZero() && timely && h.cond >= OnTrial && picked.After(h.since):
		r.recover(l, now)
	case h.cond == Ejected && h.cause == CauseLate:
		h.until = now // it has come back to life: its trial begins
	}
}

// Outrun says that another replica has answered in time what was given up on this one as [Late]: as much evidence again.
func (r *Router) Outrun(late *Replica) {
	if !r.judges {
		return
	}
	now := r.opts.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if rep := r.view.Load().current(late); rep != nil && rep.live == late.live && rep.live.strikes.Load() > 0 {
		r.strike(rep, now, now, 1, true, false)
	}
}

// strike enters evidence against a replica, of a call that was picked then. Called with mu held.
func (r *Router) strike(rep *Replica, picked, now time.Time, n int, late, trial bool) {
	l := rep.live
	h := &l.health
	switch {
	case trial && h.condition() == OnTrial:
		r.eject(rep, CauseTrial, now)
		return
	case h.cond >= OnTrial:
		return
	}
	if l.strikes.Load() == 0 || picked.Before(h.struck) {
		h.struck = picked
	}
	h.late = h.late || late
	if int(l.strikes.Add(int32(min(n, 1<<10)))) >= r.opts.Ejection.Failures {
		r.tryEject(rep, now, h.late, h.struck)
	}
}

// tryEject ejects a replica if enough others stay and, where it is late, they are not. Called with mu held.
func (r *Router) tryEject(rep *Replica, now time.Time, late bool, since time.Time) {
	v := r.view.Load()
	most := max(int(r.opts.Ejection.MaxShare*float64(len(v.connected))), 1)
	if !rep.live.health.out() && r.wards.out >= most { // others may have found it already
		return
	}
	open, fine, bad := 0, 0, 0
	for _, other := range v.connected {
		h := &other.live.health
		if other.live == rep.live || h.out() || other.drains() {
			continue
		}
		open++
		switch {
		case !late:
		case other.live.strikes.Load() > 0 || other.live.isOverdue(now):
			bad++
		case h.timely && h.reached.After(since):
			fine++
		}
	}
	if open == 0 && !rep.live.health.out() || late && (fine == 0 || fine < 2*bad) {
		return
	}
	cause := CauseFault
	if late {
		cause = CauseLate
	}
	r.eject(rep, cause, now)
}

// eject leaves a replica alone, longer each time. The calls that wait there have been heeded by this.
// Called with mu held.
func (r *Router) eject(rep *Replica, cause Cause, now time.Time) {
	l := rep.live
	e := &r.opts.Ejection
	for b := l.health.waiting.first; b != nil; b = b.next {
		b.heeded = true
		b.endTrial()
	}
	l.strikes.Store(0)
	r.modify(l, func(h *health) {
		if h.cond < OnTrial && now.Sub(h.until) > e.MaxTime {
			h.times = 0 // it was well for long
		}
		if cause == CauseTrial {
			h.spent = h.told.Term
		}
		if h.cond < OnTrial || h.cause == NoCause || h.cause == CauseTold {
			h.cause = cause
		}
		h.cond, h.since, h.late = Ejected, now, false
		h.found = h.told.Term
		h.until = now.Add(r.ejection(h.times))
		h.times++
	})
	r.wards.ejected[cause]++
	r.requeue(r.view.Load())
}

// ejection is how long one lasts that comes after so many others.
func (r *Router) ejection(times int) time.Duration {
	e := &r.opts.Ejection
	return min(e.BaseTime<<min(max(times, 0), 20), e.MaxTime)
}

// nextTurn lets another trial follow on one of which only the end is seen, and that may never come. Called with mu held.
func (r *Router) nextTurn(l *live) {
	h := &l.health
	h.trials, h.begun = 0, time.Time{}
	h.turn++
	r.rebar(l)
	r.requeue(r.view.Load())
}

// tried ends a trial of a turn.
func (h *health) tried(turn uint32) {
	if turn != h.turn {
		return
	}
	if h.trials--; h.trials == 0 {
		h.begun = time.Time{}
	}
}

// recover brings a replica back. Called with mu held.
func (r *Router) recover(l *live, now time.Time) {
	l.strikes.Store(0)
	r.modify(l, func(h *health) {
		if h.told.State != VerdictWell {
			h.told.Well = true // until those who told take it back
			h.cond, h.cause = Well, NoCause
			return
		}
		h.begin(now, r.opts.Ejection.SlowStart)
	})
	r.wards.due = time.Time{}
	r.requeue(r.view.Load())
}

// begin is the slow start.
func (h *health) begin(now time.Time, length time.Duration) {
	h.cond, h.cause, h.since, h.until, h.most = Warming, NoCause, now, now.Add(length), 1
	if length <= 0 {
		h.cond = Well
	}
}
