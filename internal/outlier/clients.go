package outlier

import (
	"maps"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
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
	d.look(d.now())
	c, r.counts = r.counts, Counts{}
	return c
}

// Follow puts into force which replicas the look-aside server ejects: as HalfOpen, where the next request is its probe,
// or as Ejected. A replica that own calls eject goes on by them; one that the server takes back starts slowly. Both
// together eject no more than MaxShare of the fleet.
func (d *Detector) Follow(server map[*Replica]State) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	for _, r := range d.members {
		if r.cause == CauseRemote && server[r] == Healthy {
			r.startSlowly(now)
		}
	}
	most := min(max(int(d.share*float64(len(d.members))), 1), len(d.members)-1)
	for _, r := range d.members {
		s := server[r]
		switch {
		case !d.Ejects(), s == Healthy, r.state == s, r.out() && r.cause != CauseRemote:
			continue
		case !r.out() && d.outs >= most:
			continue
		case !r.out():
			d.stats.Ejections[CauseRemote]++
		}
		r.enter(s, CauseRemote, now)
	}
}

// Inherit makes the ejections by a server that is silent or gone own ones, which no server takes back: the next request
// is the replica's probe.
func (d *Detector) Inherit() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.members {
		if r.cause == CauseRemote {
			r.enter(HalfOpen, CauseFault, d.now())
		}
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
		r.accuse(&m, now, c.Failures, policy.Failed)
	}
	if c.Late > 0 { // they were picked that long ago, at least
		m.Picked = now.Add(-d.lateMin)
		r.accuse(&m, now, c.Late, policy.Late)
	}
	r.judge(now)
}

// Evidence returns the evidence against a replica by principal, of those that have names.
func (d *Detector) Evidence(r *Replica) map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(r.given)
}

// activeFor is how long a principal counts as active.
const activeFor = time.Minute

// note remembers that a principal is active.
func (d *Detector) note(principal string, now time.Time) {
	if principal != "" {
		d.active[principal] = now
	}
}
