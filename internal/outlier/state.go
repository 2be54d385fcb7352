package outlier

import (
	"math"
	"time"
)

// A State is how a replica is treated, from the best to the worst.
type State uint8

// The states.
const (
	Healthy   State = iota
	SlowStart       // its share grows
	HalfOpen        // gets one request at a time, its probe
	Ejected         // gets nothing
)

// String returns the name for metrics.
func (s State) String() string {
	return [...]string{"healthy", "slow_start", "half_open", "ejected"}[s]
}

// A Cause is why a replica was ejected.
type Cause uint8

// The causes.
const (
	NoCause     Cause = iota
	CauseFault        // calls failed
	CauseLate         // first messages were late, or never came
	CauseProbe        // its probe failed
	CauseRemote       // the look-aside server ejects it
	causes
)

// String returns the name for metrics.
func (c Cause) String() string { return [...]string{"", "failures", "late", "probe", "remote"}[c] }

// change puts a change of a replica's state into force. All changes of state go through it. Called with mu held.
func (d *Detector) change(r *Replica, f func()) {
	d.count(r, -1)
	f()
	d.count(r, 1)
	d.readmit(r)
}

// readmit gives the host what the replica admits now. Called with mu held.
func (d *Detector) readmit(r *Replica) {
	r.host.Admit(r.admits())
	d.changes.Add(1)
}

// count keeps the numbers of members that are not healthy, and that are out. Called with mu held.
func (d *Detector) count(r *Replica, n int) {
	if r.member && r.effective() != Healthy {
		d.unhealthy.Add(int64(n))
	}
	if r.member && r.out() {
		d.outs += n
	}
}

// free lets requests that wait choose again. Called with mu held.
func (d *Detector) free() {
	d.freed.Add(1)
	d.changes.Add(1)
}

// effective is the worse of what own calls and the look-aside server say.
func (r *Replica) effective() State { return max(r.state, r.remote) }

// out reports whether the replica counts as ejected in the share of the fleet that may be.
func (r *Replica) out() bool { return r.effective() >= HalfOpen }

// admits reports whether the replica is to get a request now.
func (r *Replica) admits() bool {
	switch r.effective() {
	case Ejected:
		return false
	case HalfOpen:
		return r.probe == nil
	case SlowStart:
		return r.host.Bookings() < r.share
	}
	return true
}

// eject leaves a replica alone, longer each time. What rests on one principal where others are active opens it halfway
// at once, for the others. Called with mu held.
func (d *Detector) eject(r *Replica, cause Cause, now time.Time) {
	r.strikes.Store(0)
	d.change(r, func() {
		r.probe = nil
		if r.state < HalfOpen && now.Sub(r.until) > d.cfg.MaxTime {
			r.times = 0 // it was healthy for long
		}
		if r.state < HalfOpen || r.cause == NoCause || r.cause == CauseRemote {
			r.cause = cause
		}
		probed := r.state == HalfOpen && r.accuser == "" // its probe failed: the ejection before it is confirmed
		r.state, r.since, r.taken, r.late, r.accuser = Ejected, now, now, false, ""
		r.until = now.Add(d.cfg.ejection(r.times))
		if !probed {
			r.accuser = d.soleAccuser(r, now)
		}
		if r.accuser != "" {
			r.state = HalfOpen
		}
		r.times++
	})
	d.ejections[cause]++
	d.free()
}

// halfOpen lets one request at a time through. Called with mu held.
func (d *Detector) halfOpen(r *Replica, cause Cause, now time.Time) {
	d.change(r, func() {
		r.state, r.cause, r.since, r.accuser = HalfOpen, cause, now, ""
		clear(r.given)
	})
	d.free()
}

// recover brings a replica back. Called with mu held.
func (d *Detector) recover(r *Replica, now time.Time) {
	r.acquit()
	d.change(r, func() {
		if r.accuser != "" { // it was never ejected
			r.times--
			r.accuser = ""
		}
		r.slowStart(now, d.cfg.SlowStart)
	})
	d.due = time.Time{}
	d.free()
}

func (r *Replica) slowStart(now time.Time, length time.Duration) {
	r.state, r.cause, r.since, r.until, r.share = SlowStart, NoCause, now, now.Add(length), 1
	if length <= 0 {
		r.state = Healthy
	}
}

// advance ends ejections, doubts and slow starts whose time has come, and lets shares grow. Called with mu held.
func (d *Detector) advance(now time.Time) {
	var bookings, others int64
	for _, r := range d.members {
		if r.connected && r.effective() == Healthy {
			bookings += r.host.Bookings()
			others++
		}
	}
	for _, r := range d.members {
		over := !now.Before(r.until)
		switch {
		case r.state == Ejected && over:
			d.halfOpen(r, r.cause, now)
		case r.state == HalfOpen && r.accuser != "" && over:
			d.overrule(r, now) // no other principal agreed
		case r.state == SlowStart && over:
			d.change(r, func() { r.state = Healthy })
		case r.state == SlowStart:
			part := 1 - float64(r.until.Sub(now))/float64(d.cfg.SlowStart)
			d.change(r, func() { r.share = share(part, bookings, others) })
		}
	}
}

// share is how many requests a replica may have under way that has come so far in its slow start.
func share(part float64, bookings, others int64) int64 {
	if others == 0 {
		return math.MaxInt64
	}
	return max(int64(math.Ceil(part*float64(bookings)/float64(others))), 1)
}

// forget makes a replica that leaves, or is another than before, one of which nothing is known. Calls under way are no
// evidence of what comes after it. Called with mu held.
func (d *Detector) forget(r *Replica) {
	r.strikes.Store(0)
	d.change(r, func() { r.record = record{waiting: r.waiting, since: d.now(), lost: r.lost} })
}
