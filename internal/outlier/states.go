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

// states moves the replicas of a fleet from state to state, by the evidence. The Detector's lock guards it.
type states struct {
	cfg        Config
	fleet      fleet
	principals principals
	due        time.Time // of the next look at the fleet
	ejections  [causes]int64
	probes     int64
}

// effective is the worse of the state by own calls and the state by the look-aside server.
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

// eject ejects a replica, for longer each time. Where the evidence is of one principal while others are active, the
// replica is half-open at once, for the others.
func (s *states) eject(r *Replica, cause Cause, now time.Time) {
	r.strikes.Store(0)
	s.fleet.change(r, func() {
		r.probe = nil
		if r.state < HalfOpen && now.Sub(r.until) > s.cfg.MaxTime {
			r.times = 0 // it was healthy for long
		}
		if r.state < HalfOpen || r.cause == NoCause || r.cause == CauseRemote {
			r.cause = cause
		}
		probed := r.state == HalfOpen && r.accuser == "" // its probe failed: the ejection before it is confirmed
		r.state, r.since, r.taken, r.late, r.accuser = Ejected, now, now, false, ""
		r.until = now.Add(s.cfg.ejection(r.times))
		if !probed {
			r.accuser = s.principals.sole(r.given, now)
		}
		if r.accuser != "" {
			r.state = HalfOpen
		}
		r.times++
	})
	s.ejections[cause]++
	s.fleet.free()
}

// halfOpen lets one request at a time through.
func (s *states) halfOpen(r *Replica, cause Cause, now time.Time) {
	s.fleet.change(r, func() {
		r.state, r.cause, r.since, r.accuser = HalfOpen, cause, now, ""
		clear(r.given)
	})
	s.fleet.free()
}

// recover brings a replica back.
func (s *states) recover(r *Replica, now time.Time) {
	r.acquit()
	s.fleet.change(r, func() {
		if r.accuser != "" { // it was never ejected
			r.times--
			r.accuser = ""
		}
		r.slowStart(now, s.cfg.SlowStart)
	})
	s.due = time.Time{}
	s.fleet.free()
}

func (r *Replica) slowStart(now time.Time, length time.Duration) {
	r.state, r.cause, r.since, r.until, r.share = SlowStart, NoCause, now, now.Add(length), 1
	if length <= 0 {
		r.state = Healthy
	}
}

// advance ends ejections, unconfirmed ejections and slow starts whose time is over, and lets shares grow.
func (s *states) advance(now time.Time) {
	var bookings, others int64
	for _, r := range s.fleet.members {
		if r.connected && r.effective() == Healthy {
			bookings += r.host.Bookings()
			others++
		}
	}
	for _, r := range s.fleet.members {
		over := !now.Before(r.until)
		switch {
		case r.state == Ejected && over:
			s.halfOpen(r, r.cause, now)
		case r.state == HalfOpen && r.accuser != "" && over:
			s.overrule(r, now) // no other principal agreed
		case r.state == SlowStart && over:
			s.fleet.change(r, func() { r.state = Healthy })
		case r.state == SlowStart:
			part := 1 - float64(r.until.Sub(now))/float64(s.cfg.SlowStart)
			s.fleet.change(r, func() { r.share = share(part, bookings, others) })
		}
	}
}

// share is how many requests a replica may have under way after this part of its slow start.
func share(part float64, bookings, others int64) int64 {
	if others == 0 {
		return math.MaxInt64
	}
	return max(int64(math.Ceil(part*float64(bookings)/float64(others))), 1)
}

// forget clears the record of a replica that leaves or was restarted. Calls under way are no evidence of what comes
// after it.
func (s *states) forget(r *Replica, now time.Time) {
	r.strikes.Store(0)
	s.fleet.change(r, func() { r.record = record{waiting: r.waiting, since: now, lost: r.lost} })
}

// arrive begins the slow start of a replica that has connected, if it is new or was away, and the fleet is
// not new itself.
func (s *states) arrive(r *Replica, now time.Time) {
	missing := !r.met || !r.lost.IsZero() && now.Sub(r.lost) >= max(s.cfg.BaseTime, time.Second)
	r.met, r.lost = true, time.Time{}
	founding := now.Sub(s.fleet.upSince) < s.cfg.SlowStart
	if missing && !founding && s.cfg.SlowStart > 0 && r.state == Healthy {
		s.fleet.change(r, func() { r.slowStart(now, s.cfg.SlowStart) })
	}
}

// look is [Detector.Look].
func (s *states) look(now time.Time) {
	if now.Before(s.due) && s.due.Sub(now) <= round { // else the clock was set back
		return
	}
	s.due = now.Add(round)
	if s.cfg.Failures > 0 {
		measure(s.fleet.members, &s.cfg)
		for _, r := range s.fleet.members {
			if r.probe != nil && !r.probe.Watched() && now.Sub(r.probed) >= s.cfg.ejection(r.times-1) {
				s.decided(r.probe) // only its end is seen, and that may never come: another may follow
			}
			s.wait(r, now)
		}
		for _, r := range s.fleet.members {
			if r.connected {
				s.judge(r, now)
			}
		}
	}
	if s.fleet.unhealthy.Load() > 0 {
		s.advance(now)
	}
}
