// Package outlier ejects replicas that fail or hang although they are connected, and takes them back.
//
// # Rule
//
// Evidence against a replica are calls in a row that failed before their first message, and calls whose first message is
// late: those that have ended, and those that still wait for it. Late is far later than the rest of the fleet takes for
// as much uncached work, and only while the rest answers calls that were sent later: where all are slow no replica is.
//
//	Healthy ──evidence──► Ejected ──its time is over──► HalfOpen ──a probe is answered──► SlowStart ──► Healthy
//	                         ▲──────a probe fails──────────┘
//
// An ejection is twice as long as the one before. A replica that is new among old ones begins in SlowStart: its share grows.
// All of it is a preference: a request that no other replica may serve still goes to one that is ejected.
//
// # Several clients
//
// The clients of a look-aside server report what their calls show ([Detector.Take]); the server's own Detector takes the
// sums ([Detector.Add]), and the clients take what it ejects ([Detector.SetRemote]). There evidence has a principal, and one
// principal weighs at most one client's threshold. An ejection that rests on one principal, while others are active, opens the replica
// halfway at once for the others: an answer to one of them overrules, and so does their silence; then what that principal
// reports of the replica weighs nothing for a time that doubles.
//
// Source: Envoy's outlier detection; gRFC A50; the circuit breaker of Nygard, "Release It!".
package outlier

import (
	"sync"
	"sync/atomic"
	"time"
)

// round is how often the fleet is looked at, while anything is to be watched.
const round = 100 * time.Millisecond

// A Detector watches the replicas of one fleet. Its methods are safe for use by many goroutines and call only the
// replicas' hosts.
type Detector struct {
	cfg Config
	now func() time.Time

	unhealthy atomic.Int64  // members that are not Healthy
	changes   atomic.Uint64 // what replicas admit may have changed
	freed     atomic.Uint64 // … and requests that wait are to choose again

	mu        sync.Mutex // guards what follows and every Replica; no other lock is taken under it
	members   []*Replica
	connected int // members that are
	outs      int // members that are out
	due       time.Time
	upSince   time.Time // since when any replica is connected
	ejections [causes]int64
	probes    int64
	active    map[string]time.Time // principals, and when each was last active
}

// A Host is what holds a Replica. Its methods are called with the Detector's lock held, and neither block nor lock.
type Host interface {
	Bookings() int64 // requests under way
	Rate() float64   // relative speed, 1 as a rule
	Draining() bool
	Admit(ok bool) // the replica may get a request now, or not
}

// A Replica is a Detector's record of one replica.
type Replica struct {
	host    Host
	strikes atomic.Int32 // evidence in a row; written with mu held

	// The Detector's lock guards what follows.
	member, connected bool
	place             int // in Detector.members
	record
}

// record is what is forgotten with the replica.
type record struct {
	state    State
	remote   State // as the look-aside server treats it: Healthy, HalfOpen, Ejected
	cause    Cause
	until    time.Time // of the ejection, or of the slow start
	since    time.Time // calls picked before are no evidence any more
	taken    time.Time // out of use last; an answer to a call picked later brings it back
	times    int       // ejections, as far as they make the next one longer
	share    int64     // most requests under way in SlowStart
	probe    *Attempt  // the latest probe, while it is not decided
	probed   time.Time // when it began
	struck   time.Time // when the first call of the evidence was picked
	late     bool      // some of the evidence is for being late
	answered time.Time // last
	timely   bool      // … was in time
	reached  time.Time // when the latest call was picked that it has answered
	lost     time.Time // its connection; zero = it is up or never was
	met      bool      // it has been connected
	waiting  queue     // calls that wait for a first message, oldest pick first
	paces    [kinds]pace
	limits   [kinds]limit
	counts   Counts // to be reported
	accused
}

// New returns a Detector of an empty fleet. The config is used with its defaults; now is the time.
func New(c Config, now func() time.Time) *Detector {
	return &Detector{cfg: c.withDefaults(), now: now, active: make(map[string]time.Time)}
}

// Ejects reports whether replicas are ejected at all.
func (d *Detector) Ejects() bool { return d.cfg.Failures > 0 }

// Acts reports whether the Detector does anything.
func (d *Detector) Acts() bool { return d.Ejects() || d.cfg.SlowStart > 0 }

// AllHealthy reports whether every replica of the fleet is Healthy. It takes no lock.
func (d *Detector) AllHealthy() bool { return d.unhealthy.Load() == 0 }

// Version returns two numbers that grow: changes with every replica that may admit more or less, and freed where requests that
// wait are to choose again; freed never grows alone. They take no lock.
func (d *Detector) Version() (changes, freed uint64) {
	changes = d.changes.Load()
	return changes, d.freed.Load()
}

// Due returns when Look does something next.
func (d *Detector) Due() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.due
}

// NewReplica returns a replica that is no member yet.
func NewReplica(h Host) *Replica { return &Replica{host: h} }

// Join makes a replica a member of the fleet.
func (d *Detector) Join(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.member {
		r.member, r.place = true, len(d.members)
		d.members = append(d.members, r)
		d.count(r, 1)
	}
}

// Leave takes a member out of the fleet, and forgets it.
func (d *Detector) Leave(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connect(r, false)
	d.forget(r)
	last := len(d.members) - 1
	moved := d.members[last]
	d.members[r.place], moved.place = moved, r.place
	d.members[last] = nil
	d.members, r.member = d.members[:last], false
}

// Restart forgets a member that has begun another life.
func (d *Detector) Restart(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forget(r)
	if r.connected {
		d.arrive(r, d.now())
	}
}

// SetConnected notes that the connection of a member comes or goes. A replica that is new beside others that have long been
// there, or was away for longer than a moment, begins slowly: every client would find it idle. A connection that blinks
// changes nothing.
func (d *Detector) SetConnected(r *Replica, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.connect(r, up)
}

func (d *Detector) connect(r *Replica, up bool) {
	switch {
	case r.connected == up:
	case up:
		if d.connected == 0 && d.upSince.IsZero() {
			d.upSince = d.now()
		}
		r.connected = true
		d.connected++
		d.arrive(r, d.now())
	default:
		r.connected, r.lost = false, d.now()
		if d.connected--; d.connected == 0 {
			d.upSince = time.Time{}
		}
	}
}

// arrive begins the slow start of a replica that is connected, where there is to be one. Called with mu held.
func (d *Detector) arrive(r *Replica, now time.Time) {
	missing := !r.met || !r.lost.IsZero() && now.Sub(r.lost) >= max(d.cfg.BaseTime, time.Second)
	r.met, r.lost = true, time.Time{}
	founding := now.Sub(d.upSince) < d.cfg.SlowStart
	if missing && !founding && d.cfg.SlowStart > 0 && r.state == Healthy {
		d.change(r, func() { r.slowStart(now, d.cfg.SlowStart) })
	}
}

// Look does a round if one is due: replicas against which there is enough are ejected, calls that wait included, and what is
// over ends. O(replicas).
func (d *Detector) Look(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look(now)
}

func (d *Detector) look(now time.Time) {
	if now.Before(d.due) && d.due.Sub(now) <= round { // else the clock was set back
		return
	}
	d.due = now.Add(round)
	if d.Ejects() {
		d.measure()
		for _, r := range d.members {
			if r.probe != nil && !r.probe.Watched() && now.Sub(r.probed) >= d.cfg.ejection(r.times-1) {
				d.decided(r.probe) // only its end is seen, and that may never come: another may follow
			}
			d.wait(r, now)
		}
		for _, r := range d.members {
			if r.connected {
				d.judge(r, now)
			}
		}
	}
	if !d.AllHealthy() {
		d.advance(now)
	}
}

// Readmit gives the host of a replica what it admits now, for when the host's Bookings have changed.
func (d *Detector) Readmit(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.host.Admit(r.admits())
}

// AdmitsAssigned reports whether a replica is to get a request that the look-aside server assigned: only own calls count.
func (d *Detector) AdmitsAssigned(r *Replica) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.state < HalfOpen || r.state == HalfOpen && r.probe == nil
}

// State returns the state of a replica, and why it is ejected or half-open.
func (d *Detector) State(r *Replica) (State, Cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case !r.out():
		return r.effective(), NoCause
	case r.state < HalfOpen:
		return r.remote, CauseRemote
	}
	return r.effective(), r.cause
}

// Stats are what a Detector has done in its life.
type Stats struct {
	Ejections [causes]int64 // by Cause
	Probes    int64
}

// Stats returns how often replicas were ejected and probed.
func (d *Detector) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return Stats{d.ejections, d.probes}
}
