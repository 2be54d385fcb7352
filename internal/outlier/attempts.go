package outlier

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// An Attempt is a request under way on a replica. The caller owns its memory, which must not move between
// Begin and End. The Detector's lock guards it.
type Attempt struct {
	state.Mark
	replica    *Replica
	prev, next *Attempt  // among those of the replica that wait for a first message; nil = it does not
	from       time.Time // when it was picked, or the replica last answered any call
	counted    int32     // as evidence for its wait since then
	answered   bool
	waits      atomic.Bool // for a first message; written with the lock held
}

// Begin notes an attempt that is made now, which its host's Reservations include. work is the number of tokens that
// stand before its first message. A zero now is the time of the clock.
func (d *Detector) Begin(a *Attempt, r *Replica, answer state.Answer, work float64, principal string, now time.Time) {
	*a = Attempt{replica: r}
	if d.AllHealthy() && (!d.Ejects() || answer == state.AnswerUnseen && principal == "") {
		return
	}
	if now.IsZero() {
		now = d.now()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.state == SlowStart {
		r.host.Admit(r.admits())
	}
	if !d.Ejects() {
		return
	}
	if now.Before(r.since) { // it was read before the locks
		now = r.since
	}
	d.note(principal, now)
	a.Principal, a.Answer = principal, uint8(answer)
	if a.Probe = r.found(); a.Probe {
		r.probe, r.probed = a, now
		d.stats.Probes++
		r.host.Admit(r.admits())
	}
	if a.Watched() {
		a.Picked, a.from, a.Work = now, now, work
		a.prev, a.next = r.waiting.prev, &r.waiting
		a.prev.next, a.next.prev = a, a
		a.waits.Store(true)
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
	r, probes := a.replica, a.replica.probe == a
	if probes {
		r.endProbe()
	}
	switch {
	case !a.Watched():
		if probes {
			r.answer(&a.Mark, now, true)
		}
		return 0
	case a.answered:
		return took
	}
	a.answered = true
	late := took >= d.lateMin && r.overLimit(&a.Mark, took, now) > 0
	if late && a.next != nil {
		r.overdue(a, now)
	}
	a.endWait()
	r.paces[a.Answer].Add(work, lag)
	r.answer(&a.Mark, now, !late)
	if r.Suspected() {
		r.judge(now)
	}
	return took
}

// End notes that an attempt has ended, which its host's Reservations do not include any more. It is called once. Where
// all is well it takes no lock for one that was answered.
func (d *Detector) End(a *Attempt) {
	if d.AllHealthy() && !a.waits.Load() && !a.Probe {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if a.replica.state == SlowStart {
		a.replica.host.Admit(a.replica.admits())
	}
	if a.next != nil {
		if now := d.now(); now.Sub(a.Picked) >= d.lateMin { // else it is not late, whatever is usual
			a.replica.overdue(a, now)
			a.replica.judge(now)
		}
		a.endWait()
	}
	if a.replica.probe == a {
		a.replica.endProbe()
	}
}

// Ended judges a replica by the outcome of a call there; a nil mark is of a call that was not watched.
func (d *Detector) Ended(r *Replica, mark *state.Mark, o *policy.Outcome) {
	m := *cmp.Or(mark, new(state.Mark))
	answered := o.FirstMessage > 0 || o.Err == nil && o.Fault == policy.NoFault
	switch {
	case !d.Ejects(), m.Watched() && o.FirstMessage > 0: // Answered has judged it
		return
	case answered && !m.Watched() && !m.Probe && !d.Suspects(), !answered && !o.Sent:
		return
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.member {
		return
	}
	age := now.Sub(m.Picked)
	m.Probe = m.Probe && !(m.Watched() && m.Picked.Before(r.since)) // else it was decided before its call ended
	switch {
	case answered, o.Fault == policy.NoFault:
		r.answer(&m, now, answered) // a probe that ends so proves nothing: the next request is another
	case o.Fault == policy.Doubtful:
		r.answered, r.timely = now, false
		r.doubt(1)
		r.accuse(&m, now, 1, o.Fault)
	case o.Fault == policy.Failed:
		r.accuse(&m, now, 1, o.Fault)
	case m.Watched() && r.overLimit(&m, age, now) > 0: // End has entered it
	case o.Fault == policy.Late,
		m.Watched() && o.Fault == policy.TimedOut && r.slow(&m, age, now):
		r.accuse(&m, now, 1, policy.Late)
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
		r.accuse(&state.Mark{Picked: now}, now, 1, policy.Late)
		r.judge(now)
	}
}

// endWait ends the wait for a first message, if it lasts.
func (a *Attempt) endWait() {
	if a.next != nil {
		a.prev.next, a.next.prev = a.next, a.prev
		a.prev, a.next = nil, nil
		a.waits.Store(false)
	}
}

// endProbe lets another probe follow.
func (r *Replica) endProbe() {
	r.probe = nil
	r.host.Admit(r.admits())
	r.d.freed.Add(1)
}

// overdue enters as evidence how many times the limit an attempt has waited, less what was entered before.
func (r *Replica) overdue(a *Attempt, now time.Time) {
	if r.answered.After(a.from) {
		a.from, a.counted = r.answered, 0
	}
	m := a.Mark
	m.Picked = a.from
	times := r.overLimit(&m, now.Sub(m.Picked), now)
	if n := times - int(a.counted); n > 0 && !a.Picked.Before(r.since) { // else the state rests on it already
		a.counted = int32(min(times, math.MaxInt32))
		r.accuse(&m, now, n, policy.Late)
	}
}

// overLimit is how many times the limit for an attempt fits into a wait.
func (r *Replica) overLimit(m *state.Mark, wait time.Duration, now time.Time) int {
	l := r.limit(m, now)
	if !l.known {
		return 0
	}
	return int(wait.Seconds() / max(l.at(l.late, m.Work), r.d.lateMin.Seconds()))
}

// slow reports whether a wait is well beyond what is usual. Where that is not known, that of a probe is.
func (r *Replica) slow(m *state.Mark, wait time.Duration, now time.Time) bool {
	l := r.limit(m, now)
	if !l.known {
		return m.Probe
	}
	return wait.Seconds() >= slowFactor*l.at(l.usual, m.Work)
}

// A Pace is what first messages took: log(time) over log(work), as means and (co)variances. Those of one replica forget
// exponentially.
type Pace struct {
	N          float64 // samples that count
	X, Y       float64 // means of log(work) and log(time)
	XX, XY, YY float64 // (co)variances
}

// memory is the number of samples after which an old one counts 1/e.
const memory = 256

// Add takes one sample into account.
func (p *Pace) Add(x, y float64) {
	p.N = min(p.N+1, memory)
	a := 1 / p.N
	dx, dy := x-p.X, y-p.Y
	p.X += a * dx
	p.Y += a * dy
	p.XX = (1 - a) * (p.XX + a*dx*dx)
	p.XY = (1 - a) * (p.XY + a*dx*dy)
	p.YY = (1 - a) * (p.YY + a*dy*dy)
}

// Pool adds the samples of another replica, whose times differ by rate. The (co)variances stay those within replicas,
// so that a replica that is given more work is not thought slow for it.
func (p *Pace) Pool(o *Pace, rate float64) {
	if o.N == 0 {
		return
	}
	p.N += o.N
	a := o.N / p.N
	p.X += a * (o.X - p.X)
	p.Y += a * (o.Y + math.Log(rate) - p.Y)
	p.XX += a * (o.XX - p.XX)
	p.XY += a * (o.XY - p.XY)
	p.YY += a * (o.YY - p.YY)
}

// Slope returns beta where time grows as work^beta, between 0 and 1.
func (p *Pace) Slope() float64 {
	if p.XX <= 0 {
		return 0
	}
	return min(max(p.XY/p.XX, 0), 1)
}

// Rest returns the variance of log(time) that work^beta does not explain.
func (p *Pace) Rest(beta float64) float64 { return max(p.YY-2*beta*p.XY+beta*beta*p.XX, 0) }

// A limit is how long the first message of a replica may take. It rests on what the others take: a replica is
// never its own measure. The zero limit is never passed.
type limit struct {
	known bool
	beta  float64 // time grows as work^beta
	usual float64 // log of the fleet's time for work 1
	late  float64 // … and of the time that is late
}

const (
	lateFactor   = 10 // a message is late after so many times what is usual, as a rule
	limitSamples = 16 // of the others, below which nothing is known
	limitSpread  = 4  // standard deviations beyond which hardly any first message of the fleet's is
	slowFactor   = 3  // a deadline that has passed counts from so many times what is usual

	quickMessage = 10 * time.Millisecond // what a first message takes at least: below, differences are noise
)

// at is the time in seconds for so much work, from the log of that for work 1.
func (l *limit) at(log, work float64) float64 { return math.Exp(log + l.beta*math.Log(work)) }

// limit returns the limit for attempts like this, measured in this round.
func (r *Replica) limit(m *state.Mark, now time.Time) *limit {
	if last := &r.d.measured[m.Answer]; now.Sub(*last) >= round || now.Before(*last) {
		*last = now
		r.d.measure(int(m.Answer))
	}
	return &r.limits[m.Answer]
}

// measure sets every member's limit for a kind of answers. O(replicas).
func (d *Detector) measure(kind int) {
	var all Pace
	for _, r := range d.members {
		all.Pool(&r.paces[kind], r.host.Rate())
	}
	beta := all.Slope()
	lag, far := all.Y-beta*all.X, max(math.Log(lateFactor), limitSpread*math.Sqrt(all.Rest(beta)))
	for _, r := range d.members {
		own, rate := &r.paces[kind], math.Log(r.host.Rate())
		others := all.N - own.N
		if others < limitSamples {
			continue // what was known stays
		}
		usual := (all.N*lag-own.N*(own.Y-beta*own.X+rate))/others - rate
		r.limits[kind] = limit{known: true, beta: beta, usual: usual, late: usual + far}
	}
}
