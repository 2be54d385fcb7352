package routing

import (
	"cmp"
	"time"
)

// Ejection says when a replica is left alone although it is connected, and how it comes back. The zero value is off.
//
// Evidence against a replica are calls in a row that failed before their first message, and calls whose first message is
// late: those that have ended, and those that still wait for it. Late is far later than the rest of the fleet
// takes for as much uncached work, and only while the rest answers calls that were sent later: where everybody is slow
// nobody is. A replica that is ejected gets nothing for a time that doubles from ejection to ejection; then one request
// at a time, its trial, until one of them is answered. After that, and when it is new, its share grows over SlowStart.
//
// It is a preference: a request that no other replica may serve still goes to one that is ejected.
type Ejection struct {
	// Failures is how much evidence in a row ejects: one for each call that failed, and one for each time that a
	// call has waited the longest that counts as timely. 0 = nobody is ejected.
	Failures int
	// LateFactor is how many times what the fleet takes is late, and LateMin what never is. Where the fleet's own
	// times are spread wide, late is beyond nearly all of them.
	LateFactor float64
	LateMin    time.Duration
	// BaseTime is how long the first ejection lasts, MaxTime the longest.
	BaseTime, MaxTime time.Duration
	// MaxShare is the part of the connected replicas that may be ejected; one may always, one always stays.
	MaxShare float64
	// SlowStart is how long the share of a replica grows that is new or back; 0 = it has its full share at once.
	SlowStart time.Duration
}

// DefaultEjection returns the values that a config stands for that says nothing.
func DefaultEjection() Ejection {
	return Ejection{
		Failures: 5, LateFactor: 10, LateMin: 5 * time.Second,
		BaseTime: 10 * time.Second, MaxTime: 5 * time.Minute, MaxShare: 0.3, SlowStart: 30 * time.Second,
	}
}

func (e Ejection) withDefaults() Ejection {
	if e.Failures <= 0 {
		return Ejection{SlowStart: e.SlowStart, BaseTime: cmp.Or(e.BaseTime, DefaultEjection().BaseTime)}
	}
	d := DefaultEjection()
	e.LateFactor = cmp.Or(e.LateFactor, d.LateFactor)
	e.LateMin = cmp.Or(e.LateMin, d.LateMin)
	e.BaseTime = cmp.Or(e.BaseTime, d.BaseTime)
	e.MaxTime = cmp.Or(e.MaxTime, d.MaxTime)
	e.MaxShare = cmp.Or(e.MaxShare, d.MaxShare)
	return e
}

// An Answer says how the host learns that a replica has answered. Only where it says so are calls watched that wait.
type Answer uint8

// The ways.
const (
	AnswerUnseen  Answer = iota // only the end of a call is seen
	AnswerMessage               // Booking.Answered comes with the first message of several
	AnswerWhole                 // Booking.Answered comes with the one message that there is
)

// A Fault says what an Outcome without a first message says against the replica.
type Fault uint8

// The faults.
const (
	NoFault  Fault = iota // nothing: there was a message, or a status by which the replica spoke for itself
	Failed                // the replica failed, or the connection to it
	TimedOut              // the call's deadline passed first
	GivenUp               // the caller cancelled
	Late                  // the attempt was given up because its first message was late, and made elsewhere
)

// A Cause says why a replica was ejected.
type Cause uint8

// The causes.
const (
	NoCause    Cause = iota
	CauseFault       // calls failed
	CauseLate        // first messages were late, or never came
	CauseTrial       // it failed its trial
	CauseTold        // others found it so, as SetVerdicts tells
	causes
)

var causeNames = [causes]string{"", "failures", "late", "trial", "told"}

// String returns the name for metrics.
func (c Cause) String() string { return causeNames[c] }

// A Condition is where a replica stands.
type Condition uint8

// The conditions.
const (
	Well    Condition = iota
	Warming           // its share grows
	OnTrial           // gets one request at a time
	Ejected           // gets nothing
)

// String returns the name for metrics.
func (c Condition) String() string { return [...]string{"well", "slow_start", "trial", "ejected"}[c] }

// health is what is known of how a replica does. Guarded by the Router's mutex.
type health struct {
	cond    Condition
	cause   Cause
	until   time.Time // of the ejection, or of the slow start
	since   time.Time // of the condition
	times   int       // ejections, as far as they make the next one longer
	most    int64     // bookings while warming
	trials  int       // requests under way that were picked on trial, in this turn
	turn    uint32    // of trials
	begun   time.Time // when the last of them was picked of which only the end is seen; zero = none
	struck  time.Time // when the first call of the evidence was picked
	late    bool      // some of the evidence is for being late
	heard   time.Time // its last answer
	timely  bool      // … was in time
	reached time.Time // when the latest call was picked that it has answered
	lost    time.Time // its connection; zero = it is up or never was
	met     bool      // it has been connected
	waiting queued    // calls that wait for a first message, oldest pick first
	paces   [2]pace   // of AnswerMessage and AnswerWhole
	limits  [2]limit
	told    Verdict // of others
	spent   uint64  // term of told whose turn was used up
	found   uint64  // term as of which it was found failing
}

// unwell reports whether anything but a full share is to be given.
func (h *health) unwell() bool { return h.cond != Well || h.told.State != VerdictWell }

// out reports whether the replica counts as ejected in the share of the fleet that may be.
func (h *health) out() bool { return h.cond >= OnTrial || h.told.State != VerdictWell }

// bars reports whether the replica with so many bookings is to get no request now.
func (h *health) bars(ongoing int64) bool {
	switch {
	case h.told.State != VerdictWell:
		return !h.told.Turn || h.spent == h.told.Term || h.trials > 0
	case h.cond == Ejected:
		return true
	case h.cond == OnTrial:
		return h.trials > 0
	case h.cond == Warming:
		return ongoing >= h.most
	}
	return false
}

// condition is the one that is in force.
func (h *health) condition() Condition {
	if h.told.State == VerdictWell {
		return h.cond
	}
	if h.told.Turn && h.spent != h.told.Term {
		return OnTrial
	}
	return Ejected
}

// Condition returns where the replica stands, and why if it is ejected or on trial. It takes the Router's lock.
func (r *Router) Condition(rep *Replica) (Condition, Cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &rep.live.health
	c := h.condition()
	switch {
	case c < OnTrial:
		return c, NoCause
	case h.cond < OnTrial:
		return c, CauseTold
	}
	return c, h.cause
}

// wardens are the Router's side of health. Guarded by its mutex.
type wardens struct {
	unwell  int       // replicas of the fleet that are
	out     int       // … of these, those that count as ejected
	due     time.Time // of the next round
	upSince time.Time // since when anybody is connected
	ejected [causes]int64
	trials  int64
}

// modify changes the health of a replica of the fleet and puts the change into force.
// Called with mu held.
func (r *Router) modify(l *live, change func(*health)) {
	h := &l.health
	unwell, out := h.unwell(), h.out()
	change(h)
	r.wards.unwell += toInt(h.unwell()) - toInt(unwell)
	r.wards.out += toInt(h.out()) - toInt(out)
	r.rebar(l)
	r.shared.barring = r.wards.unwell > 0
	r.hold()
	if r.queued > 0 {
		r.arm()
	}
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// rebar says anew whether the replica may be picked. Called with mu held.
func (r *Router) rebar(l *live) {
	l.set(barred, l.health.bars(l.book.Load()>>tokenBits))
}

// forgetHealth makes a replica that leaves, or is another than before, one of which nothing is known. Calls that wait
// say nothing of what comes after it. Called with mu held.
func (r *Router) forgetHealth(l *live) {
	for b := l.health.waiting.first; b != nil; b = b.next {
		b.heeded = true
	}
	r.modify(l, func(h *health) {
		*h = health{waiting: h.waiting, trials: h.trials, turn: h.turn, begun: h.begun, lost: h.lost}
	})
	l.strikes.Store(0)
}
