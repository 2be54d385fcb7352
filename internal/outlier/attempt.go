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
	from       time.Time // since when it waits for any answer of the replica
	counted    int       // as evidence since then
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
	a.picked, a.from, a.work, a.waits = now, now, work, true
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
	r := a.replica
	d.overdue(a, now)
	a.endWait()
	d.decided(a)
	late := r.limits[a.kind()].passed(a.work, took)
	r.paces[a.kind()].Add(work, time)
	d.answer(r, &a.Mark, now, !late)
	d.judge(r, now)
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
		d.overdue(a, d.now())
		d.judge(a.replica, d.now())
		a.endWait()
	}
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

// overdue enters how often an attempt has waited the longest that is timely, since it was picked or the replica last answered
// any, beyond what was entered before. Called with mu held.
func (d *Detector) overdue(a *Attempt, now time.Time) {
	r := a.replica
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
		d.accuse(r, &m, now, n, true)
	}
}

// wait is overdue for the calls that wait on a replica. Called with mu held.
func (d *Detector) wait(r *Replica, now time.Time) {
	const glance = 256
	least := max(r.limits[0].least, r.limits[1].least)
	a := r.waiting.first
	for i := 0; a != nil && i < glance && now.Sub(a.picked) >= least; i++ {
		d.overdue(a, now)
		a = a.next
	}
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
		d.accuse(r, &m, now, 1, false)
	case limit.passed(m.work, age): // End has entered it
	case fault == Late, watched && fault == TimedOut && (limit.slow(m.work, age) || m.Probe && !limit.known):
		d.accuse(r, &m, now, 1, true)
	}
	d.judge(r, now)
}

// Outrun notes that another replica answered in time what was given up on this one as [Late]: as much evidence again.
func (d *Detector) Outrun(r *Replica) {
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.member && r.Suspected() {
		d.accuse(r, &Mark{picked: now}, now, 1, true)
		d.judge(r, now)
	}
}

// answer notes that a replica answered a call. In time, that ends what stood against it; an answer at all ends its
// ejection for being late. Called with mu held.
func (d *Detector) answer(r *Replica, m *Mark, now time.Time, timely bool) {
	r.answered, r.timely = now, timely
	if m.picked.After(r.reached) {
		r.reached = m.picked
	}
	if timely {
		r.acquit()
	}
	proves := timely && (m.Probe || !m.picked.IsZero() && m.picked.After(r.taken))
	if proves || !r.out() {
		r.counts.Successes++
	}
	switch {
	case r.state < HalfOpen:
	case proves && r.accuser != "":
		d.overrule(r, now)
	case proves:
		d.recover(r, now)
	case r.state == Ejected && r.cause == CauseLate:
		r.until = now // it has come back to life: its probe may begin
	}
}

// accuse enters evidence against a replica; judge follows. Called with mu held.
func (d *Detector) accuse(r *Replica, m *Mark, now time.Time, n int, late bool) {
	if n = r.weigh(m.Principal, min(n, 1<<10), d.cfg.Failures, now); n == 0 {
		return
	}
	failed := m.Probe && r.effective() == HalfOpen
	if !failed && r.state >= HalfOpen {
		if r.accuser != "" && m.Principal != r.accuser {
			d.eject(r, r.cause, now) // a second principal agrees
		}
		return
	}
	if late {
		r.counts.Late += n
	} else {
		r.counts.Failures += n
	}
	if failed {
		d.eject(r, CauseProbe, now)
		return
	}
	if !r.Suspected() || m.picked.Before(r.struck) {
		r.struck = m.picked
	}
	r.late = r.late || late
	r.strikes.Add(int32(n))
}

// judge ejects a replica against which there is enough, if enough others stay and, where it is late, they are not. Called
// with mu held.
func (d *Detector) judge(r *Replica, now time.Time) {
	if int(r.strikes.Load()) < d.cfg.Failures || r.state >= HalfOpen {
		return
	}
	most := max(int(d.cfg.MaxShare*float64(d.connected)), 1)
	if !r.out() && d.outs >= most { // others may have been ejected for it already
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
	case open == 0 && !r.out():
	case !r.late:
		d.eject(r, CauseFault, now)
	case fine > 0 && fine >= 2*bad:
		d.eject(r, CauseLate, now)
	}
}

// acquit takes back the evidence. Called with mu held.
func (r *Replica) acquit() {
	r.strikes.Store(0)
	r.late = false
	r.counts.Failures, r.counts.Late = 0, 0
	clear(r.given)
}
