package outlier

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// kinds are those of calls that are watched: [policy.AnswerMessage] and [policy.AnswerWhole].
const kinds = 2

// kindOf is the index of the paces and limits of attempts like this.
func kindOf(m *state.Mark) int { return max(int(m.Answer), 1) - 1 }

// An Attempt is a request under way on a replica. The caller owns its memory, which must not move between
// Begin and End. The Detector's lock guards it.
type Attempt struct {
	state.Mark
	replica    *Replica
	prev, next *Attempt // among those of the replica that wait for a first message; nil = it does not
	answered   bool
	from       time.Time // since when it waits for any answer of the replica
	counted    int       // as evidence since then
}

// Begin notes an attempt that is made now. work is the number of tokens that stand before its first message. A zero
// now is the time of the clock.
func (d *Detector) Begin(a *Attempt, r *Replica, answer policy.Answer, work float64, principal string, now time.Time) {
	*a = Attempt{replica: r}
	if !d.Ejects() || answer == policy.AnswerUnseen && principal == "" && d.AllHealthy() {
		return
	}
	if now.IsZero() {
		now = d.now()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(principal, now)
	a.Principal, a.Answer = principal, uint8(answer)
	if a.Probe = r.out(); a.Probe {
		r.probe, r.probed = a, now
		d.stats.Probes++
		r.readmit()
	}
	if a.Watched() {
		a.Picked, a.from, a.Work = now, now, work
		a.prev, a.next = r.waiting.prev, &r.waiting
		a.prev.next, a.next.prev = a, a
	}
}

// Answered notes that the first response message has come, which may be after End. It returns how long it
// took, 0 where the attempt is not watched. Later calls do nothing.
func (d *Detector) Answered(a *Attempt) time.Duration {
	if !a.Watched() && !a.Probe {
		return 0
	}
	now := d.now()
	took := max(now.Sub(a.Picked), 1)
	work, lag := math.Log(a.Work), math.Log(max(took, quickMessage).Seconds())
	d.mu.Lock()
	defer d.mu.Unlock()
	r := a.replica
	switch {
	case !a.Watched():
		if r.decided(a) {
			r.answer(&a.Mark, now, true)
		}
		return 0
	case a.answered:
		return took
	}
	a.answered = true
	r.overdue(a, now)
	a.endWait()
	r.decided(a)
	late := r.limits[kindOf(&a.Mark)].passed(a.Work, took)
	r.paces[kindOf(&a.Mark)].Add(work, lag)
	r.answer(&a.Mark, now, !late)
	r.judge(now)
	return took
}

// End notes that an attempt has ended. Later calls do nothing.
func (d *Detector) End(a *Attempt) {
	if !a.Watched() && !a.Probe {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.next != nil {
		now := d.now()
		a.replica.overdue(a, now)
		a.replica.judge(now)
		a.endWait()
	}
	a.replica.decided(a)
}

// Ended judges a replica by the outcome of a call there.
func (d *Detector) Ended(r *Replica, m state.Mark, o *policy.Outcome) {
	first := o.FirstMessage > 0
	answered := first || o.Err == nil && o.Fault == policy.NoFault
	watched := m.Watched()
	switch {
	case !d.Ejects(), watched && first: // Answered has judged it
		return
	case answered && !watched && !m.Probe && !r.Suspected(), !answered && !o.Sent:
		return
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.member {
		return
	}
	age := now.Sub(m.Picked)
	limit := &r.limits[kindOf(&m)]
	m.Probe = m.Probe && !(watched && m.Picked.Before(r.since)) // else it was decided before its call ended
	switch {
	case answered, o.Fault == policy.NoFault:
		r.answer(&m, now, answered || m.Probe)
	case o.Fault == policy.Failed:
		r.accuse(&m, now, 1, false)
	case limit.passed(m.Work, age): // End has entered it
	case o.Fault == policy.Late,
		watched && o.Fault == policy.TimedOut && (limit.slow(m.Work, age) || m.Probe && !limit.known):
		r.accuse(&m, now, 1, true)
	}
	r.judge(now)
}

// Outrun notes that another replica answered in time a call that was given up on this one as [policy.Late]: one more
// piece of evidence.
func (d *Detector) Outrun(r *Replica) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.member && r.Suspected() {
		r.accuse(&state.Mark{Picked: now}, now, 1, true)
		r.judge(now)
	}
}

func (a *Attempt) endWait() {
	if a.next != nil {
		a.prev.next, a.next.prev = a.next, a.prev
		a.prev, a.next = nil, nil
	}
}

// decided ends an attempt's probe, so that another may follow, and reports whether it was under way.
func (r *Replica) decided(a *Attempt) bool {
	if r.probe != a {
		return false
	}
	r.probe = nil
	r.readmit()
	r.d.free()
	return true
}

// overdue enters as evidence how many times the limit an attempt has waited, since it was picked or the replica last
// answered any call, less what was entered before.
func (r *Replica) overdue(a *Attempt, now time.Time) {
	if a.Picked.Before(r.since) { // the state rests on it already
		return
	}
	if r.answered.After(a.from) {
		a.from, a.counted = r.answered, 0
	}
	times := r.limits[kindOf(&a.Mark)].times(a.Work, now.Sub(a.from))
	if n := times - a.counted; n > 0 {
		a.counted = times
		m := a.Mark
		m.Picked = a.from
		r.accuse(&m, now, n, true)
	}
}

// wait calls overdue for the oldest calls that wait on a replica.
func (r *Replica) wait(now time.Time) {
	const glance = 256
	least := max(r.limits[0].least, r.limits[1].least)
	a := r.waiting.next
	for i := 0; a != &r.waiting && i < glance && now.Sub(a.Picked) >= least; i++ {
		r.overdue(a, now)
		a = a.next
	}
}
