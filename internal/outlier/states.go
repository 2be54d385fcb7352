package outlier

import (
	"maps"
	"math"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// round is how often Look does something.
const round = 100 * time.Millisecond

// glance is how many of the calls that wait on a replica, the oldest, a round looks at.
const glance = 256

// doubtMemory is the number of calls after which an old one counts 1/e in the share of doubtful statuses, and mostDoubts
// the share from which a replica is no measure of another: one such status in a while is below it.
const doubtMemory, mostDoubts = 16, 0.1

// doubt takes one call into the share of doubtful statuses.
func (r *Replica) doubt(is float64) { r.doubts += (is - r.doubts) / doubtMemory }

// strike adds n pieces of evidence.
func (r *Replica) strike(n int) {
	if r.strikes.Add(int32(n)) == int32(n) {
		r.d.suspects.Add(1)
		r.host.Suspect(true)
	}
}

// clear takes back all evidence.
func (r *Replica) clear() {
	r.late, r.doubtful = false, false
	if r.strikes.Swap(0) > 0 {
		r.d.suspects.Add(-1)
		r.host.Suspect(false)
	}
}

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
		r.clear()
		r.doubt(0)
		r.counts.Failures, r.counts.Late = 0, 0
		clear(r.given)
	}
	proves := timely && (m.Probe || !m.Picked.IsZero() && m.Picked.After(r.since))
	if proves || !r.out() {
		r.counts.Successes++
	}
	switch {
	case !r.found():
	case proves:
		r.startSlowly(now)
		r.d.due.Store(0)
	case r.state == Ejected && r.cause == CauseLate:
		r.until = now // it answers again: its probe may begin
	}
}

// accuse enters n pieces of evidence against a replica; judge follows. While a replica is out, only its probe counts.
func (r *Replica) accuse(m *state.Mark, now time.Time, n int, f policy.Fault) {
	late := f == policy.Late
	failed := m.Probe && r.state == HalfOpen
	if r.out() && !failed {
		return
	}
	if n = min(n, 1<<10); !failed {
		n = r.weigh(m.Principal, n)
	}
	switch {
	case late:
		r.counts.Late += n
	case f == policy.Failed, failed:
		r.counts.Failures += n
	}
	switch {
	case failed:
		r.eject(CauseProbe, now)
	case n > 0:
		picked := m.Picked
		if picked.IsZero() { // the call was not watched
			picked = now
		}
		if !r.Suspected() || picked.Before(r.struck) {
			r.struck = picked
		}
		r.late, r.doubtful = r.late || late, r.doubtful || f == policy.Doubtful
		r.strike(n)
	}
}

// weigh returns how many of n pieces of evidence of a principal count. While several principals are active, those of
// one are at most half of what ejects, rounded up: two must agree.
func (r *Replica) weigh(principal string, n int) int {
	if principal == "" {
		return n
	}
	most := r.d.failures
	if len(r.d.active) > 1 {
		most = (most + 1) / 2
	}
	n = max(min(n, most-r.given[principal]), 0)
	if r.given == nil {
		r.given = make(map[string]int)
	}
	r.given[principal] += n
	return n
}

// judge ejects a replica with enough evidence, if enough others stay and, where it is late or its statuses are doubtful, if
// the others answer. One that is being connected for the first time is about to be another.
func (r *Replica) judge(now time.Time) {
	d := r.d
	most := max(int(d.share*float64(d.connected)), 1)
	if int(r.strikes.Load()) < d.failures || r.out() || !r.member || d.outs >= most {
		return
	}
	relative := r.late || r.doubtful
	open, fine, bad := 0, 0, 0
	for _, o := range d.members {
		switch {
		case o == r, o.out(), !o.connected && !o.host.Coming(), o.host.Draining():
			continue
		case o.Suspected(), r.doubtful && o.doubts > mostDoubts:
			bad++
		case o.timely && (o.reached.After(r.struck) || !r.late && o.answered.After(r.struck)):
			fine++
		}
		open++
	}
	switch {
	case open == 0, relative && (fine == 0 || fine < 2*bad):
	case r.late:
		r.eject(CauseLate, now)
	default:
		if r.doubtful { // it is certain by now
			r.counts.Failures += int(r.strikes.Load())
		}
		r.eject(CauseFault, now)
	}
}

// eject ejects a replica, for longer each time.
func (r *Replica) eject(cause Cause, now time.Time) {
	d := r.d
	d.stats.Ejections[cause]++
	if r.out() && r.cause != CauseRemote {
		cause = r.cause // its probe failed
	} else if now.Sub(r.until) > d.longest() {
		r.times = 0 // it was healthy for long
	}
	r.clear()
	r.probe, r.until = nil, now.Add(d.ejection(r.times))
	r.times++
	r.enter(Ejected, cause, now)
}

// startSlowly brings a replica back or in.
func (r *Replica) startSlowly(now time.Time) {
	r.until, r.share = now.Add(r.d.slowStart), 1
	if r.d.slowStart > 0 {
		r.enter(SlowStart, NoCause, now)
	} else {
		r.enter(Healthy, NoCause, now)
	}
}

// Look does a round if one is due: it counts the calls that wait as evidence, ejects replicas with enough of
// it, and ends ejections and slow starts that are over. O(replicas); without a lock where none is due.
func (d *Detector) Look(now time.Time) {
	if !d.Ejects() && d.slowStart <= 0 || !d.isDue(now) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(now)
}

// isDue reports whether a round is due, as it is where the clock was set back.
func (d *Detector) isDue(now time.Time) bool {
	left := time.Duration(d.due.Load() - now.UnixNano())
	return left <= 0 || left > round
}

func (d *Detector) look(now time.Time) {
	if !d.isDue(now) {
		return
	}
	d.due.Store(now.Add(round).UnixNano())
	if d.Ejects() {
		for _, r := range d.members {
			if r.probe != nil && !r.probe.Watched() && now.Sub(r.probed) >= d.ejection(r.times-1) {
				r.endProbe() // only its end is seen, and that may never come
			}
			a := r.waiting.next
			for i := 0; a != &r.waiting && i < glance && now.Sub(a.Picked) >= d.lateMin; i++ {
				r.overdue(a, now)
				a = a.next
			}
		}
		for _, r := range d.members {
			if r.connected && r.Suspected() {
				r.judge(now)
			}
		}
	}
	maps.DeleteFunc(d.active, func(_ string, at time.Time) bool { return now.Sub(at) >= activeFor })
	if !d.AllHealthy() {
		d.advance(now)
	}
}

// advance ends ejections and slow starts whose time is over, and lets shares grow.
func (d *Detector) advance(now time.Time) {
	reservations, others := make(map[string]int64), make(map[string]int64) // of the healthy ones, by role
	for _, r := range d.members {
		if r.connected && r.state == Healthy {
			reservations[r.role] += r.host.Reservations()
			others[r.role]++
		}
	}
	for _, r := range d.members {
		over := !now.Before(r.until)
		switch {
		case r.state == Ejected && r.cause != CauseRemote && r.cause != CauseHealth && over:
			r.enter(HalfOpen, r.cause, now)
		case r.state == SlowStart && over:
			r.enter(Healthy, NoCause, r.since)
		case r.state == SlowStart: // requests that wait need not choose again for it
			r.share = math.MaxInt64
			if n := others[r.role]; n > 0 {
				part := 1 - float64(r.until.Sub(now))/float64(d.slowStart)
				r.share = max(int64(math.Ceil(part*float64(reservations[r.role])/float64(n))), 1)
			}
			r.host.Admit(r.admits())
		}
	}
}
