package outlier

import (
	"math"
	"time"
)

// An Answer is how the host learns that a replica has answered. Calls that wait are watched only where it does.
type Answer uint8

// The ways.
const (
	AnswerUnseen  Answer = iota // only the end of a call is seen
	AnswerMessage               // Answered comes with the first message of several
	AnswerWhole                 // Answered comes with the one message that there is
)

const kinds = 2 // AnswerMessage and AnswerWhole

// A Fault is what the end of a call without a first message shows against the replica.
type Fault uint8

// The faults.
const (
	NoFault  Fault = iota // nothing: there was a message, or a status of the replica's own
	Failed                // the replica failed, or the connection to it
	TimedOut              // the call's deadline passed first
	GivenUp               // the caller cancelled
	Late                  // the attempt was given up because its first message was late, and made elsewhere
)

// A Mark is what remains of an attempt after its end.
type Mark struct {
	Probe     bool   // it was sent to see whether the replica is back
	Principal string // whose evidence it is; "" = none has a name
	picked    time.Time
	work      float64
	answer    Answer
}

// watched reports whether the host learns that the replica has answered.
func (m *Mark) watched() bool { return m.answer != AnswerUnseen }

// kind is the index of the paces and limits of attempts like this.
func (m *Mark) kind() int { return max(int(m.answer), 1) - 1 }

// An Attempt is a request under way on a replica. The caller owns its memory, which must not move between
// Begin and End. The Detector's lock guards it.
type Attempt struct {
	Mark
	replica    *Replica
	prev, next *Attempt // among those of the replica that wait for a first message; nil = it does not
	answered   bool
	from       time.Time // since when it waits for any answer of the replica
	counted    int       // as evidence since then
}

// Watched reports whether Answered returns how long the first message took. It takes no lock: it is for the
// caller of Begin.
func (a *Attempt) Watched() bool { return a.watched() }

// Begin notes an attempt that is made now. work is the number of tokens that stand before its first message. A zero
// now is the time of the clock.
func (d *Detector) Begin(a *Attempt, r *Replica, answer Answer, work float64, principal string, now time.Time) {
	*a = Attempt{replica: r}
	if !d.Ejects() || answer == AnswerUnseen && principal == "" && d.AllHealthy() {
		return
	}
	if now.IsZero() {
		now = d.now()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note(principal, now)
	a.Principal, a.answer = principal, answer
	if a.Probe = r.out(); a.Probe {
		r.probe, r.probed = a, now
		d.stats.Probes++
		r.readmit()
	}
	if a.watched() {
		a.picked, a.from, a.work = now, now, work
		a.prev, a.next = r.waiting.prev, &r.waiting
		a.prev.next, a.next.prev = a, a
	}
}

// Answered notes that the first response message has come, which may be after End. It returns how long it
// took, 0 where the attempt is not watched. Later calls do nothing.
func (d *Detector) Answered(a *Attempt) time.Duration {
	if !a.watched() && !a.Probe {
		return 0
	}
	now := d.now()
	took := max(now.Sub(a.picked), 1)
	work, lag := math.Log(a.work), math.Log(max(took, quickMessage).Seconds())
	d.mu.Lock()
	defer d.mu.Unlock()
	r := a.replica
	switch {
	case !a.watched():
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
	late := r.limits[a.kind()].passed(a.work, took)
	r.paces[a.kind()].add(work, lag)
	r.answer(&a.Mark, now, !late)
	r.judge(now)
	return took
}

// End notes that an attempt has ended. Later calls do nothing.
func (d *Detector) End(a *Attempt) {
	if !a.watched() && !a.Probe {
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

// Ended judges a replica by the end of a call there. answered: with a message, or well without one; first: with a
// message; sent: the request left the client.
func (d *Detector) Ended(r *Replica, m Mark, fault Fault, answered, first, sent bool) {
	watched := m.watched()
	switch {
	case !d.Ejects(), answered && watched && first: // Answered has judged it
		return
	case answered && !watched && !m.Probe && !r.Suspected(), !answered && !sent:
		return
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.member {
		return
	}
	age := now.Sub(m.picked)
	limit := &r.limits[m.kind()]
	m.Probe = m.Probe && !(watched && m.picked.Before(r.since)) // else it was decided before its call ended
	switch {
	case answered, fault == NoFault:
		r.answer(&m, now, answered || m.Probe)
	case fault == Failed:
		r.accuse(&m, now, 1, false)
	case limit.passed(m.work, age): // End has entered it
	case fault == Late, watched && fault == TimedOut && (limit.slow(m.work, age) || m.Probe && !limit.known):
		r.accuse(&m, now, 1, true)
	}
	r.judge(now)
}

// Outrun notes that another replica answered in time a call that was given up on this one as [Late]: one more piece of
// evidence.
func (d *Detector) Outrun(r *Replica) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.member && r.Suspected() {
		r.accuse(&Mark{picked: now}, now, 1, true)
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
	if a.picked.Before(r.since) { // the state rests on it already
		return
	}
	if r.answered.After(a.from) {
		a.from, a.counted = r.answered, 0
	}
	times := r.limits[a.kind()].times(a.work, now.Sub(a.from))
	if n := times - a.counted; n > 0 {
		a.counted = times
		m := a.Mark
		m.picked = a.from
		r.accuse(&m, now, n, true)
	}
}

// wait calls overdue for the oldest calls that wait on a replica.
func (r *Replica) wait(now time.Time) {
	const glance = 256
	least := max(r.limits[0].least, r.limits[1].least)
	a := r.waiting.next
	for i := 0; a != &r.waiting && i < glance && now.Sub(a.picked) >= least; i++ {
		r.overdue(a, now)
		a = a.next
	}
}
