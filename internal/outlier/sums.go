package outlier

import (
	"maps"
	"time"
)

// Counts are what the calls of one client showed of one replica since the counts before.
type Counts struct {
	Successes, Failures, Late int
}

// A tally is what is to be reported of a replica.
type tally struct {
	successes, failedProbes int
	reported                int // evidence, of that which stands against it now
}

// ownOut reports whether own calls keep the replica out.
func (r *Replica) ownOut() bool { return r.state >= HalfOpen && r.cause != CauseRemote }

// standing is how much evidence stands against a replica, as much as the threshold where it is ejected for it.
func (d *Detector) standing(r *Replica, now time.Time) (n int, late bool) {
	switch {
	case r.ownOut():
		return d.cfg.Failures, r.cause == CauseLate
	case r.state >= HalfOpen:
		return 0, false // it is what the server said
	}
	waiting, _ := r.overdue(now, d.cfg.Failures)
	return min(int(r.strikes.Load())+waiting, d.cfg.Failures), r.late || waiting > 0
}

// Take returns what own calls showed of a replica since the last call, for a server that adds it up. anew is for
// another server: it returns what stands against the replica now, and what stood before to an earlier server is not left out.
func (d *Detector) Take(r *Replica, anew bool) (c Counts) {
	if !d.Ejects() {
		return c
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(now)
	if anew {
		r.sum.reported = 0
	}
	n, late := d.standing(r, now)
	evidence := max(n-r.sum.reported, 0) + r.sum.failedProbes
	c.Successes = r.sum.successes
	if late {
		c.Late = evidence
	} else {
		c.Failures = evidence
	}
	r.sum = tally{reported: n}
	return c
}

// SetRemote says how the look-aside server treats a replica: Healthy, HalfOpen (the receiver may send its probe) or Ejected. A
// replica that only the server ejected starts slowly when it is taken back; one that own calls eject goes on by them.
func (d *Detector) SetRemote(r *Replica, s State) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
			r.since = now
			d.ejections[CauseRemote]++
		case lifted:
			r.slowStart(now, d.cfg.SlowStart)
		}
	})
	if lifted {
		r.heed() // calls that wait since then are no evidence any more
		d.due = time.Time{}
	}
	d.free()
}

// Forsake ends what the look-aside server said of a replica when the server is lost: the next request is its probe.
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

// Room returns how many more replicas the look-aside server may have ejected beside those that own calls eject.
func (d *Detector) Room() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	own, n := 0, len(d.members)
	for _, r := range d.members {
		if r.ownOut() {
			own++
		}
	}
	return min(max(int(d.cfg.MaxShare*float64(n)), 1), n-1) - own
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
		d.strike(r, &Mark{Principal: principal, Probe: probe, picked: now}, now, c.Failures, false)
	}
	if c.Late > 0 { // they were picked that long ago, at least
		d.strike(r, &Mark{Principal: principal, Probe: probe, picked: now.Add(-d.cfg.LateMin)}, now, c.Late, true)
	}
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

// probeFailed ejects a replica whose probe failed. Called with mu held.
func (d *Detector) probeFailed(r *Replica, now time.Time) {
	r.sum.failedProbes++
	r.sum.reported = d.cfg.Failures // the probe is all there is to report
	d.eject(r, CauseProbe, now)
}

// Accuses reports whether the ejection of a replica rests on this principal alone, so that only others may probe.
func (d *Detector) Accuses(r *Replica, principal string) bool {
	if principal == "" || d.AllHealthy() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.accuser == principal
}

// Principals returns how many principals the evidence against a replica is of; 0 where they have no names.
func (d *Detector) Principals(r *Replica) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(r.given)
}

// Accuser returns the principal on which the ejection of a replica rests alone, while others are active; "" = it does not.
func (d *Detector) Accuser(r *Replica) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.accuser
}
