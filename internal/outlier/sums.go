package outlier

import (
	"maps"
	"time"
)

// Counts are what the calls of one client showed of one replica since the counts before.
type Counts struct {
	Successes, Failures, Late int
}

// ownOut reports whether own calls keep the replica out.
func (r *Replica) ownOut() bool { return r.state >= HalfOpen && r.cause != CauseRemote }

// Take returns what own calls showed of a replica since the last call, for a server that adds it up. anew is for another
// server: it returns what stands against the replica now.
func (d *Detector) Take(r *Replica, anew bool) (c Counts) {
	if !d.Ejects() {
		return c
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(d.now())
	c, r.counts = r.counts, Counts{}
	stands := int(r.strikes.Load())
	if r.ownOut() {
		stands = d.cfg.Failures
	}
	switch {
	case !anew:
	case r.late || r.ownOut() && r.cause == CauseLate:
		c.Late = max(c.Late, stands)
	default:
		c.Failures = max(c.Failures, stands)
	}
	return c
}

// SetRemote puts into force how the look-aside server treats a replica: Healthy, HalfOpen (the receiver may send its probe) or Ejected. A
// replica that only the server ejected starts slowly when it is taken back; one that own calls eject goes on by them. No more
// than MaxShare of the fleet is left alone for both together.
func (d *Detector) SetRemote(r *Replica, s State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s != Healthy && !r.out() && d.outs >= min(max(int(d.cfg.MaxShare*float64(len(d.members))), 1), len(d.members)-1) {
		s = Healthy
	}
	if !d.Ejects() || r.remote == s {
		return
	}
	now := d.now()
	lifted, begun := s == Healthy, r.remote == Healthy
	d.change(r, func() {
		r.remote = s
		switch {
		case r.ownOut():
		case begun:
			r.taken = now
			d.ejections[CauseRemote]++
		case lifted:
			r.slowStart(now, d.cfg.SlowStart)
		}
	})
	d.free()
}

// Forsake ends how the look-aside server treats a replica when the server is lost: the next request is its probe.
func (d *Detector) Forsake(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.remote == Healthy {
		return
	}
	d.change(r, func() { r.remote = Healthy })
	if r.state < HalfOpen {
		d.halfOpen(r, CauseRemote, d.now())
	}
}

// accused is what several principals have against a replica.
type accused struct {
	given   map[string]int // evidence in a row by principal, at most the threshold
	accuser string         // the ejection rests on it alone, and others are active; "" = it does not
	muted   map[string]mute
}

// A mute is a principal whose evidence weighs nothing for a time, since another one's call was answered.
type mute struct {
	until time.Time
	times int
}

const (
	activeFor     = time.Minute
	maxPrincipals = 1000 // remembered by a Detector, and by a replica
)

// Add takes what the calls of another client showed of a replica, the client's probe among them.
func (d *Detector) Add(r *Replica, principal string, c Counts, probe bool) {
	if !d.Ejects() {
		return
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(now)
	d.note(principal, now)
	if c.Successes > 0 && (probe || !r.out()) {
		d.answer(r, &Mark{Principal: principal, Probe: probe, picked: now}, now, true)
	}
	if c.Failures > 0 {
		d.accuse(r, &Mark{Principal: principal, Probe: probe, picked: now}, now, c.Failures, false)
	}
	if c.Late > 0 { // they were picked that long ago, at least
		d.accuse(r, &Mark{Principal: principal, Probe: probe, picked: now.Add(-d.cfg.LateMin)}, now, c.Late, true)
	}
	d.judge(r, now)
}

// note remembers that a principal is active. Called with mu held.
func (d *Detector) note(principal string, now time.Time) {
	if principal == "" {
		return
	}
	if _, known := d.active[principal]; !known && len(d.active) >= maxPrincipals {
		maps.DeleteFunc(d.active, func(_ string, at time.Time) bool { return now.Sub(at) >= activeFor })
		if len(d.active) >= maxPrincipals {
			return
		}
	}
	d.active[principal] = now
}

// weigh is how much n pieces of evidence of a principal weigh. Called with mu held.
func (r *Replica) weigh(principal string, n, most int, now time.Time) int {
	if principal == "" {
		return n
	}
	if now.Before(r.muted[principal].until) {
		return 0
	}
	n = min(n, most-r.given[principal])
	if n <= 0 || r.given[principal] == 0 && len(r.given) >= maxPrincipals {
		return 0
	}
	if r.given == nil {
		r.given = make(map[string]int)
	}
	r.given[principal] += n
	return n
}

// soleAccuser is the principal on which an ejection rests alone, while others are active; else "". Called with mu held.
func (d *Detector) soleAccuser(r *Replica, now time.Time) string {
	if len(r.given) != 1 {
		return ""
	}
	var only string
	for only = range r.given {
	}
	for other, at := range d.active {
		if other != only && now.Sub(at) < activeFor {
			return only
		}
	}
	return ""
}

// overrule brings a replica back that one principal alone had ejected, and mutes the principal. Called with mu held.
func (d *Detector) overrule(r *Replica, now time.Time) {
	if r.muted == nil {
		r.muted = make(map[string]mute)
	}
	maps.DeleteFunc(r.muted, func(_ string, m mute) bool { return now.Sub(m.until) >= d.cfg.MaxTime })
	if m, known := r.muted[r.accuser]; known || len(r.muted) < maxPrincipals {
		r.muted[r.accuser] = mute{now.Add(d.cfg.ejection(m.times)), m.times + 1}
	}
	d.recover(r, now)
}

// Principals returns how many principals the evidence against a replica is of; 0 where they have no names.
func (d *Detector) Principals(r *Replica) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(r.given)
}

// Accuser returns the principal on which the ejection of a replica rests alone, while others are active; "" = it does not.
func (d *Detector) Accuser(r *Replica) string {
	if d.AllHealthy() {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.accuser
}
