package routing

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/internal/outlier"
)

// An Answer is how the host learns that a replica has answered. Only where it does are calls watched that wait.
type Answer = outlier.Answer

// The ways.
const (
	AnswerUnseen  = outlier.AnswerUnseen  // only the end of a call is seen
	AnswerMessage = outlier.AnswerMessage // Booking.Answered comes with the first message of several
	AnswerWhole   = outlier.AnswerWhole   // Booking.Answered comes with the one message that there is
)

// A Fault is what an Outcome without a first message shows against the replica.
type Fault = outlier.Fault

// The faults.
const (
	NoFault  = outlier.NoFault  // nothing: there was a message, or a status of the replica's own
	Failed   = outlier.Failed   // the replica failed, or the connection to it
	TimedOut = outlier.TimedOut // the call's deadline passed first
	GivenUp  = outlier.GivenUp  // the caller cancelled
	Late     = outlier.Late     // the attempt was given up because its first message was late, and made elsewhere
)

// Bookings implements [outlier.Host].
func (l *live) Bookings() int64 { return l.book.Load() >> tokenBits }

// Rate implements [outlier.Host].
func (l *live) Rate() float64 { return 1 / math.Float64frombits(l.invRate.Load()) }

// Admit implements [outlier.Host].
func (l *live) Admit(ok bool) { l.set(barred, !ok) }

// Draining implements [outlier.Host].
func (l *live) Draining() bool { return l.state.Load()&(leaving|declared) != 0 }

// Outliers returns the Router's outlier detection. [Router.Sync] follows what changes it.
func (r *Router) Outliers() *outlier.Detector { return r.outliers }

// Outlier returns the replica's record in outlier detection.
func (r *Replica) Outlier() *outlier.Replica { return r.live.outlier }

// Look looks at the fleet as a pick would, for a host that has had none for a while.
func (r *Router) Look() {
	if r.outliers.Acts() {
		r.outliers.Look(r.opts.Now())
		r.Sync()
	}
}

// attend looks at the fleet before a pick, if that is due. It is never called while a request chooses: it lets those that
// wait choose again. It returns the time if it read the clock, else the zero time. Called with mu held.
func (r *Router) attend(q *Request) (now time.Time) {
	if !r.outliers.Acts() || q.Answer == AnswerUnseen && r.outliers.AllHealthy() {
		return now
	}
	now = r.opts.Now()
	r.outliers.Look(now)
	r.force()
	return now
}

// Sync lets requests that wait choose again where outlier detection has changed.
func (r *Router) Sync() {
	if changes, _ := r.outliers.Version(); changes == r.seenChanges.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.force()
}

// force is Sync. Called with mu held.
func (r *Router) force() {
	changes, freed := r.outliers.Version()
	if changes == r.seenChanges.Load() {
		return
	}
	r.seenChanges.Store(changes)
	r.hold()
	if r.seenFreed != freed {
		r.seenFreed = freed
		r.requeue(r.view.Load())
	}
	if r.queued > 0 {
		r.arm()
	}
}

// connects notes that the connection of a replica comes or goes, before the View has it. Called with mu held.
func (r *Router) connects(l *live, up bool) {
	l.set(connectedBit, up)
	if up {
		l.set(leaving, false)
	}
	r.outliers.SetConnected(l.outlier, up)
}

// askAll asks again with those that are passed over as long as there are others: those that are starting slowly and, where
// no other could ever serve the request, those that say that they drain, and then those that are ejected. Called with
// mu held.
func (r *Router) askAll(q *Request, v *View, d *Decision) error {
	err := r.askWith(q, v, d, outlier.SlowStart)
	if err == nil || err == ErrFull {
		return err
	}
	q.lastResort = true
	defer func() { q.lastResort = false }()
	if err = r.askWith(q, v, d, outlier.SlowStart); err == nil || err == ErrFull {
		return err
	}
	return r.askWith(q, v, d, outlier.Ejected)
}

func (r *Router) askWith(q *Request, v *View, d *Decision, worst outlier.State) error {
	for _, rep := range v.connected {
		if s, _ := r.outliers.State(rep.live.outlier); s != outlier.Healthy && s <= worst {
			rep.live.set(barred, false)
		}
	}
	defer func() {
		for _, rep := range v.connected {
			r.outliers.Readmit(rep.live.outlier)
		}
	}()
	return r.ask(q, v, d)
}

// watch notes what is to be known of a booking that is being made, with so much booked before it; now as for choose.
// Called with mu held.
func (r *Router) watch(q *Request, b *Booking, l *live, before int64, now time.Time) {
	// Requests under way count too: a replica that is given more than others is not late for it.
	before += l.foreign.Load()
	work := float64(b.prefill + before&tokenMask + paceOverhead*(before>>tokenBits+1))
	r.outliers.Begin(&b.attempt, l.outlier, q.Answer, work, q.Principal, now)
	q.mark, b.Decision.probe = b.attempt.Mark, b.attempt.Probe
}

// Watched reports whether Answered returns how long the first message took. It is for the goroutine that made the pick.
func (b *Booking) Watched() bool { return b.attempt.Watched() }

// Answered notes that the first response message has come: PrefillDone, and what it shows of the replica. It may come
// after Release. It returns how long the message took since the pick, 0 where the request is not watched. Later calls
// do nothing.
func (b *Booking) Answered() time.Duration {
	r := b.router
	if r == nil {
		return 0
	}
	defer b.shareRoute()
	took := r.outliers.Answered(&b.attempt)
	r.mu.Lock()
	defer r.mu.Unlock()
	b.dropPrefill()
	r.force()
	return took
}

// judge takes what the end of a call shows of the replica. Where an answer was seen, Answered has done it.
func (r *Router) judge(rep *Replica, m outlier.Mark, o *Outcome) {
	answered := o.FirstMessage > 0 || o.Err == nil && o.Fault == NoFault
	r.outliers.Ended(rep.live.outlier, m, o.Fault, answered, o.FirstMessage > 0, o.Sent)
	r.Sync()
}

// Outrun notes that another replica has answered in time what was given up on this one as [Late]: as much evidence again.
func (r *Router) Outrun(late *Replica) {
	r.outliers.Outrun(late.live.outlier)
	r.Sync()
}
