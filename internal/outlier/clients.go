package outlier

import (
	"time"

	"github.com/warmpath/warmpath/internal/router/state"
)

// Counts are what the calls of one client showed of one replica since the counts before.
type Counts struct {
	Successes, Failures, Late int
}

// Take returns what own calls showed of a replica since the last Take, for a server that adds it up.
func (d *Detector) Take(r *Replica) (c Counts) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.Ejects() {
		d.look(d.now())
	}
	c, r.counts = r.counts, Counts{}
	return c
}

// SetRemote puts into force how the look-aside server treats a replica: Healthy, HalfOpen (the next request is its
// probe) or Ejected. A replica that own calls eject goes on by them, another one starts slowly when it is taken back.
// Both together eject no more than MaxShare of the fleet.
func (d *Detector) SetRemote(r *Replica, s State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	most := min(max(int(d.share*float64(len(d.members))), 1), len(d.members)-1)
	switch {
	case !d.Ejects(), r.out() && (r.cause != CauseRemote || r.state == s), !r.out() && (s == Healthy || d.outs >= most):
		return
	case !r.out():
		d.stats.Ejections[CauseRemote]++
	}
	r.change(func() {
		if s == Healthy {
			r.slowStart(d.now())
			return
		}
		r.state, r.cause, r.since = s, CauseRemote, d.now()
	})
	d.free()
}

// Inherit makes an ejection by a server that is gone an own one, which another server does not take back: the next
// request is the replica's probe.
func (d *Detector) Inherit(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.out() && r.cause == CauseRemote {
		r.halfOpen(CauseFault, d.now())
	}
}

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
	m := state.Mark{Principal: principal, Probe: probe, Picked: now}
	if c.Successes > 0 && (probe || !r.out()) {
		r.answer(&m, now, true)
	}
	if c.Failures > 0 {
		r.accuse(&m, now, c.Failures, false)
	}
	if c.Late > 0 { // they were picked that long ago, at least
		m.Picked = now.Add(-d.lateMin)
		r.accuse(&m, now, c.Late, true)
	}
	r.judge(now)
}

// Principals returns how many principals the evidence against a replica is of; 0 where they have no names.
func (d *Detector) Principals(r *Replica) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(r.given)
}

// Accuser returns the principal on which the ejection of a replica rests alone, while others are active; "" =
// it does not.
func (d *Detector) Accuser(r *Replica) string {
	if d.AllHealthy() {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.accuser
}

const (
	activeFor     = time.Minute
	maxPrincipals = 1000 // remembered by a Detector, and by a replica
)

// note remembers that a principal is active.
func (d *Detector) note(principal string, now time.Time) {
	if principal == "" {
		return
	}
	if _, known := d.active[principal]; known || len(d.active) < maxPrincipals {
		d.active[principal] = now
	}
}

// weigh is how much n pieces of evidence of a principal weigh.
func (r *Replica) weigh(principal string, n int, now time.Time) int {
	if principal == "" {
		return n
	}
	n = min(n, r.d.failures-r.given[principal])
	muted := principal == r.muted && now.Before(r.mutedUntil)
	if n <= 0 || muted || r.given[principal] == 0 && len(r.given) >= maxPrincipals {
		return 0
	}
	if r.given == nil {
		r.given = make(map[string]int)
	}
	r.given[principal] += n
	return n
}
