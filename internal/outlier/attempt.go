package outlier

import "time"

// An Answer is how the host learns that a replica has answered. Only where it does are calls watched that wait.
type Answer uint8

// The ways.
const (
	AnswerUnseen  Answer = iota // only the end of a call is seen
	AnswerMessage               // Answered comes with the first message of several
	AnswerWhole                 // Answered comes with the one message that there is
)

const kinds = 2 // AnswerMessage and AnswerWhole

// A Fault is what the end of a call without a first message says against the replica.
type Fault uint8

// The faults.
const (
	NoFault  Fault = iota // nothing: there was a message, or a status of the replica's own
	Failed                // the replica failed, or the connection to it
	TimedOut              // the call's deadline passed first
	GivenUp               // the caller cancelled
	Late                  // the attempt was given up because its first message was late, and made elsewhere
)

// A Mark is what is to be known of an attempt once it has ended.
type Mark struct {
	Probe     bool   // it was sent to see whether the replica is back
	Principal string // whose evidence it is; "" = none has a name
	picked    time.Time
	work      float64
	answer    Answer
}

// An Attempt is a request under way on a replica. The caller owns its memory, which must not move between Begin and End.
// The Detector's lock guards it.
type Attempt struct {
	Mark
	replica    *Replica
	prev, next *Attempt
	waits      bool // is in its replica's queue of those that wait for a first message
	answered   bool
	heeded     bool // has been evidence already
}

// queue are attempts that wait for their first message, the oldest pick first.
type queue struct{ first, last *Attempt }

// Watched reports whether Answered returns how long the first message took. It takes no lock: it is for the caller of Begin.
func (a *Attempt) Watched() bool { return a.answer != AnswerUnseen }

// Begin notes an attempt that is made now. work are the tokens that stand before its first message. A zero now is the time
// of the clock.
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
		d.probes++
		d.readmit(r)
	}
	if answer == AnswerUnseen {
		return
	}
	a.picked, a.work, a.waits = now, work, true
	if a.prev = r.waiting.last; a.prev != nil {
		a.prev.next = a
	} else {
		r.waiting.first = a
	}
	r.waiting.last = a
}

// Answered notes that the first response message has come, which may be after End. It returns how long it took, 0 where the
// attempt is not watched. Later calls do nothing.
func (d *Detector) Answered(a *Attempt) time.Duration {
	if !a.Watched() {
		if a.Probe {
			d.mu.Lock()
			defer d.mu.Unlock()
			if d.decided(a) {
				d.answer(a.replica, &a.Mark, d.now(), true)
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
	a.endWait()
	d.decided(a)
	r := a.replica
	k := a.kind()
	late := r.limits[k].passed(a.work, took)
	r.paces[k].Add(work, time)
	d.answer(r, &a.Mark, now, !late)
	if late && !a.heeded {
		d.strike(r, &a.Mark, now, 1, true)
	}
	return took
}

// End notes that an attempt has ended. Later calls do nothing.
func (d *Detector) End(a *Attempt) {
	if !a.Watched() && !a.Probe {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a.endWait()
	d.decided(a)
}

// decided ends an attempt's probe, so that another may follow, and reports whether it was under way. Called with mu held.
func (d *Detector) decided(a *Attempt) bool {
	r := a.replica
	if r.probe != a {
		return false
	}
	r.probe = nil
	d.readmit(r)
	d.free()
	return true
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

// heed marks the calls that wait as evidence that has been used. Called with mu held.
func (r *Replica) heed() {
	for a := r.waiting.first; a != nil; a = a.next {
		a.heeded = true
		if r.probe == a {
			r.probe = nil
		}
	}
}

// overdue is how much evidence there is in the calls that wait on a replica: one for each time that the longest timely
// wait has passed since the call was picked, or since the replica last answered any. It counts no further than most.
func (r *Replica) overdue(now time.Time, most int) (n int, since time.Time) {
	const glance = 256
	if !r.limits[0].known && !r.limits[1].known {
		return 0, since
	}
	least := max(r.limits[0].least, r.limits[1].least)
	a := r.waiting.first
	for range glance {
		if a == nil || n >= most {
			break
		}
		from := a.picked
		if r.heard.After(from) {
			from = r.heard
		}
		wait := now.Sub(from)
		if wait < least { // nor has any behind it waited as long
			break
		}
		if times := r.limits[a.kind()].times(a.work, wait); times > 0 && !a.heeded {
			if n == 0 {
				since = from
			}
			n += min(times, most)
		}
		a = a.next
	}
	return n, since
}

func (r *Replica) isOverdue(now time.Time) bool {
	n, _ := r.overdue(now, 1)
	return n > 0
}

// Suspected reports whether any evidence stands against a replica. It takes no lock.
func (r *Replica) Suspected() bool { return r.strikes.Load() > 0 }

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
		d.answer(r, &m, now, answered || m.Probe)
	case fault == Failed:
		d.strike(r, &m, now, 1, false)
	case fault == Late:
		d.strike(r, &m, now, max(limit.times(m.work, age), 1), true)
	case watched && fault == TimedOut && (limit.slow(m.work, age) || m.Probe && !limit.known):
		d.strike(r, &m, now, 1, true)
	case watched && limit.passed(m.work, age) && !m.picked.Before(r.heard):
		d.strike(r, &m, now, limit.times(m.work, age), true)
	}
}

// Outrun notes that another replica answered in time what was given up on this one as [Late]: as much evidence again.
func (d *Detector) Outrun(r *Replica) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.member && r.Suspected() {
		d.strike(r, &Mark{picked: now}, now, 1, true)
	}
}

// answer notes that a replica answered a call. In time, that ends what stood against it; an answer at all ends its
// ejection for being late. Called with mu held.
func (d *Detector) answer(r *Replica, m *Mark, now time.Time, timely bool) {
	r.heard, r.timely = now, timely
	if m.picked.After(r.reached) {
		r.reached = m.picked
	}
	if timely {
		r.acquit()
	}
	fresh := m.Probe || !m.picked.IsZero() && m.picked.After(r.since)
	switch {
	case !r.out():
		r.sum.successes++
	case fresh && timely && r.state >= HalfOpen && r.accuser != "":
		r.sum.successes++
		d.overrule(r, now)
	case fresh && timely && r.state >= HalfOpen:
		r.sum.successes++
		d.recover(r, now)
	case fresh && timely: // only the server ejects it
		r.sum.successes++
	case r.state == Ejected && r.cause == CauseLate:
		r.until = now // it has come back to life: its probe may begin
	}
}

// strike enters evidence against a replica. Called with mu held.
func (d *Detector) strike(r *Replica, m *Mark, now time.Time, n int, late bool) {
	if n = r.weigh(m.Principal, n, d.cfg.Failures, now); n == 0 {
		return
	}
	switch {
	case m.Probe && r.effective() == HalfOpen:
		d.probeFailed(r, now)
		return
	case r.state >= HalfOpen:
		if r.accuser != "" && m.Principal != r.accuser {
			d.eject(r, r.cause, now) // a second principal agrees
		}
		return
	}
	if !r.Suspected() || m.picked.Before(r.struck) {
		r.struck = m.picked
	}
	r.late = r.late || late
	if int(r.strikes.Add(int32(min(n, 1<<10)))) >= d.cfg.Failures {
		d.suspect(r, now, r.late, r.struck)
	}
}

// acquit takes back the evidence. Called with mu held.
func (r *Replica) acquit() {
	r.strikes.Store(0)
	r.late = false
	clear(r.given)
}
