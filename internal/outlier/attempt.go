package outlier

import "time"

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

// An Attempt is a request under way on a replica. The caller owns its memory, which must not move between
// Begin and End. The Detector's lock guards it.
type Attempt struct {
	Mark
	replica    *Replica
	prev, next *Attempt
	waits      bool // is in its replica's queue of those that wait for a first message
	answered   bool
	from       time.Time // since when it waits for any answer of the replica
	counted    int       // as evidence since then
}

// queue are attempts that wait for their first message, the oldest pick first.
type queue struct{ first, last *Attempt }

// Watched reports whether Answered returns how long the first message took. It takes no lock: it is for the
// caller of Begin.
func (a *Attempt) Watched() bool { return a.answer != AnswerUnseen }

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
	d.states.principals.note(principal, now)
	a.Principal, a.answer = principal, answer
	if a.Probe = r.out(); a.Probe {
		r.probe, r.probed = a, now
		d.states.probes++
		d.states.fleet.readmit(r)
	}
	if answer == AnswerUnseen {
		return
	}
	a.picked, a.from, a.work, a.waits = now, now, work, true
	if a.prev = r.waiting.last; a.prev != nil {
		a.prev.next = a
	} else {
		r.waiting.first = a
	}
	r.waiting.last = a
}

// Answered notes that the first response message has come, which may be after End. It returns how long it
// took, 0 where the attempt is not watched. Later calls do nothing.
func (d *Detector) Answered(a *Attempt) time.Duration {
	if !a.Watched() {
		if a.Probe {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.states.decided(a) {
				d.states.answer(a.replica, &a.Mark, d.now(), true)
			}
		}
		return 0
	}
	now := d.now()
	took := max(now.Sub(a.picked), 1)
	work, time := logs(a.work, took)
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.answered {
		return took
	}
	a.answered = true
	r := a.replica
	d.states.overdue(a, now)
	a.endWait()
	d.states.decided(a)
	late := r.limits[a.kind()].passed(a.work, took)
	r.paces[a.kind()].Add(work, time)
	d.states.answer(r, &a.Mark, now, !late)
	d.states.judge(r, now)
	return took
}

// End notes that an attempt has ended. Later calls do nothing.
func (d *Detector) End(a *Attempt) {
	if !a.Watched() && !a.Probe {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.waits {
		d.states.overdue(a, d.now())
		d.states.judge(a.replica, d.now())
		a.endWait()
	}
	d.states.decided(a)
}

// Ended judges a replica by the end of a call there. answered: with a message, or well without one; first: with a
// message; sent: the request left the client.
func (d *Detector) Ended(r *Replica, m Mark, fault Fault, answered, first, sent bool) {
	watched := m.answer != AnswerUnseen
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
	limit := &r.limits[0]
	if m.answer == AnswerWhole {
		limit = &r.limits[1]
	}
	m.Probe = m.Probe && !(watched && m.picked.Before(r.since)) // else it was decided before its call ended
	switch {
	case answered, fault == NoFault:
		d.states.answer(r, &m, now, answered || m.Probe)
	case fault == Failed:
		d.states.accuse(r, &m, now, 1, false)
	case limit.passed(m.work, age): // End has entered it
	case fault == Late, watched && fault == TimedOut && (limit.slow(m.work, age) || m.Probe && !limit.known):
		d.states.accuse(r, &m, now, 1, true)
	}
	d.states.judge(r, now)
}

// Outrun notes that another replica answered in time a call that was given up on this one as [Late]: one more piece of
// evidence.
func (d *Detector) Outrun(r *Replica) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.member && r.Suspected() {
		d.states.accuse(r, &Mark{picked: now}, now, 1, true)
		d.states.judge(r, now)
	}
}

func (m *Mark) kind() int { return int(m.answer - AnswerMessage) }

func (a *Attempt) endWait() {
	if !a.waits {
		return
	}
	a.waits = false
	w := &a.replica.waiting
	if a.prev != nil {
		a.prev.next = a.next
	} else {
		w.first = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	} else {
		w.last = a.prev
	}
	a.prev, a.next = nil, nil
}
