package outlier

import (
	"maps"
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// round is how often Look does something.
const round = 100 * time.Millisecond

// Suspected reports whether any evidence stands against a replica. It takes no lock.
func (r *Replica) Suspected() bool { return r.strikes.Load() > 0 }

// answer notes that a replica answered a call. A timely answer takes back the evidence; any answer ends an ejection for
// being late.
func (r *Replica) answer(m *state.Mark, now time.Time, timely bool) {
	r.answered, r.timely = now, timely
	if m.Picked.After(r.reached) {
		r.reached = m.Picked
	}
	if timely {
		r.acquit()
	}
	proves := timely && (m.Probe || !m.Picked.IsZero() && m.Picked.After(r.since))
	if proves || !r.out() {
		r.counts.Successes++
	}
	switch {
	case !r.out():
	case proves:
		r.recover(now)
	case r.state == Ejected && r.cause == CauseLate:
		r.until = now // it answers again: its probe may begin
	}
}

// acquit takes back the evidence.
func (r *Replica) acquit() {
	r.strikes.Store(0)
	r.late = false
	r.counts.Failures, r.counts.Late = 0, 0
	clear(r.given)
}

// accuse enters n pieces of evidence against a replica; judge follows.
func (r *Replica) accuse(m *state.Mark, now time.Time, n int, late bool) {
	if n = r.weigh(m.Principal, min(n, 1<<10), now); n == 0 {
		return
	}
	failed := m.Probe && r.state == HalfOpen
	if !failed && r.out() {
		if r.accuser != "" && m.Principal != r.accuser {
			r.eject(r.cause, now) // a second principal agrees
		}
		return
	}
	if late {
		r.counts.Late += n
	} else {
		r.counts.Failures += n
	}
	if failed {
		r.eject(CauseProbe, now)
		return
	}
	if !r.Suspected() || m.Picked.Before(r.struck) {
		r.struck = m.Picked
	}
	r.late = r.late || late
	r.strikes.Add(int32(n))
}

// judge ejects a replica with enough evidence, if enough others stay and, where it is late, if the others are timely.
func (r *Replica) judge(now time.Time) {
	d := r.d
	most := max(int(d.share*float64(d.connected)), 1)
	if int(r.strikes.Load()) < d.failures || r.out() || d.outs >= most { // others may have been ejected for it already
		return
	}
	open, fine, bad := 0, 0, 0
	for _, o := range d.members {
		if o == r || !o.connected || o.out() || o.host.Draining() {
			continue
		}
		open++
		switch {
		case o.Suspected():
			bad++
		case o.timely && o.reached.After(r.struck):
			fine++
		}
	}
	switch {
	case open == 0:
	case !r.late:
		r.eject(CauseFault, now)
	case fine > 0 && fine >= 2*bad:
		r.eject(CauseLate, now)
	}
}

// eject ejects a replica, for longer each time. Where the evidence is of one principal while others are active, the
// replica is half-open at once, for the others.
func (r *Replica) eject(cause Cause, now time.Time) {
	d := r.d
	r.strikes.Store(0)
	r.change(func() {
		r.probe = nil
		if (!r.out() || r.cause == CauseRemote) && now.Sub(r.until) > d.longest() {
			r.times = 0 // it was healthy for long
		}
		if !r.out() || r.cause == CauseRemote {
			r.cause = cause
		}
		confirmed := r.state == HalfOpen && r.accuser == "" // its probe failed
		r.state, r.since, r.late, r.accuser = Ejected, now, false, ""
		r.until = now.Add(d.ejection(r.times))
		if !confirmed && len(r.given) == 1 && len(d.active) > 1 {
			r.state = HalfOpen
			for r.accuser = range r.given {
			}
		}
		r.times++
	})
	d.stats.Ejections[cause]++
	d.free()
}

// halfOpen lets one request at a time through.
func (r *Replica) halfOpen(cause Cause, now time.Time) {
	r.change(func() {
		r.state, r.cause, r.since, r.accuser = HalfOpen, cause, now, ""
		clear(r.given)
	})
	r.d.free()
}

// recover brings a replica back. Where one principal alone had ejected it, its evidence weighs nothing for a time.
func (r *Replica) recover(now time.Time) {
	r.acquit()
	r.change(func() {
		if r.accuser != "" { // it was never ejected
			r.times--
			r.muted, r.mutedUntil, r.accuser = r.accuser, now.Add(r.d.longest()), ""
		}
		r.slowStart(now)
	})
	r.d.due = time.Time{}
	r.d.free()
}

func (r *Replica) slowStart(now time.Time) {
	length := r.d.slowStart
	r.state, r.cause, r.since, r.until, r.share = SlowStart, NoCause, now, now.Add(length), 1
	if length <= 0 {
		r.state = Healthy
	}
}

// Look does a round if one is due: it counts the calls that wait as evidence, ejects replicas with enough of
// it, and ends ejections and slow starts that are over. O(replicas).
func (d *Detector) Look(now time.Time) {
	if !d.Ejects() && d.slowStart <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(now)
}

func (d *Detector) look(now time.Time) {
	if now.Before(d.due) && d.due.Sub(now) <= round { // else the clock was set back
		return
	}
	d.due = now.Add(round)
	if d.Ejects() {
		measure(d.members, d.lateMin)
		for _, r := range d.members {
			if r.probe != nil && !r.probe.Watched() && now.Sub(r.probed) >= d.ejection(r.times-1) {
				r.decided(r.probe) // only its end is seen, and that may never come: another may follow
			}
			r.wait(now)
		}
		for _, r := range d.members {
			if r.connected {
				r.judge(now)
			}
		}
	}
	maps.DeleteFunc(d.active, func(_ string, at time.Time) bool { return now.Sub(at) >= activeFor })
	if !d.AllHealthy() {
		d.advance(now)
	}
}

// advance ends ejections, unconfirmed ejections and slow starts whose time is over, and lets shares grow.
func (d *Detector) advance(now time.Time) {
	var bookings, others int64
	for _, r := range d.members {
		if r.connected && r.state == Healthy {
			bookings += r.host.Bookings()
			others++
		}
	}
	for _, r := range d.members {
		over := !now.Before(r.until)
		switch {
		case r.state == Ejected && r.cause != CauseRemote && over:
			r.halfOpen(r.cause, now)
		case r.state == HalfOpen && r.accuser != "" && over:
			r.recover(now) // no other principal agreed
		case r.state == SlowStart && over:
			r.change(func() { r.state = Healthy })
		case r.state == SlowStart:
			part := 1 - float64(r.until.Sub(now))/float64(d.slowStart)
			r.change(func() { r.share = share(part, bookings, others) })
		}
	}
}

// share is how many requests a replica may have under way after this part of its slow start.
func share(part float64, bookings, others int64) int64 {
	if others == 0 {
		return math.MaxInt64
	}
	return max(int64(math.Ceil(part*float64(bookings)/float64(others))), 1)
}
