package outlier

import (
	"sync"
	"sync/atomic"
	"time"
)

// round is how often Look does something.
const round = 100 * time.Millisecond

// A Detector watches the replicas of one fleet. Its methods are safe for use by many goroutines and call only the
// replicas' hosts.
type Detector struct {
	cfg Config // of states, for what is read without the lock
	now func() time.Time

	mu     sync.Mutex // guards states and every Replica; no other lock is taken under it
	states states
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
	place             int // in fleet.members
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

// New returns a Detector of an empty fleet. Fields of the config that are 0 have their defaults; now is the clock.
func New(c Config, now func() time.Time) *Detector {
	c = c.withDefaults()
	return &Detector{cfg: c, now: now, states: states{cfg: c, principals: make(principals)}}
}

// Ejects reports whether replicas are ejected at all.
func (d *Detector) Ejects() bool { return d.cfg.Failures > 0 }

// Acts reports whether the Detector does anything.
func (d *Detector) Acts() bool { return d.Ejects() || d.cfg.SlowStart > 0 }

// AllHealthy reports whether every replica of the fleet is Healthy. It takes no lock.
func (d *Detector) AllHealthy() bool { return d.states.fleet.unhealthy.Load() == 0 }

// Version returns two numbers that grow: changes with every replica that may admit more or less, and freed
// where requests that wait are to choose again; freed never grows alone. It takes no lock.
func (d *Detector) Version() (changes, freed uint64) {
	changes = d.states.fleet.changes.Load()
	return changes, d.states.fleet.freed.Load()
}

// Due returns when Look does something next.
func (d *Detector) Due() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states.due
}

// NewReplica returns a replica that is no member yet.
func NewReplica(h Host) *Replica { return &Replica{host: h} }

// Join makes a replica a member of the fleet.
func (d *Detector) Join(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states.fleet.join(r)
}

// Leave takes a member out of the fleet, and forgets it.
func (d *Detector) Leave(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.states.fleet.connect(r, false, now)
	d.states.forget(r, now)
	d.states.fleet.leave(r)
}

// Restart forgets the record of a member whose process was restarted.
func (d *Detector) Restart(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	d.states.forget(r, now)
	if r.connected {
		d.states.arrive(r, now)
	}
}

// SetConnected notes that the connection of a member comes or goes. A replica that is new beside older ones,
// or was away for the time of an ejection, begins in SlowStart: every client would find it idle. A shorter
// loss changes nothing.
func (d *Detector) SetConnected(r *Replica, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.now(); d.states.fleet.connect(r, up, now) && up {
		d.states.arrive(r, now)
	}
}

// Look does a round if one is due: it counts the calls that wait as evidence, ejects replicas with enough of
// it, and ends ejections and slow starts that are over. O(replicas).
func (d *Detector) Look(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states.look(now)
}

// Readmit gives the host of a replica what it admits now, for when the host's Bookings have changed.
func (d *Detector) Readmit(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.host.Admit(r.admits())
}

// AdmitsAssigned reports whether a replica is to get a request that the look-aside server assigned: only own
// calls count.
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
	return Stats{d.states.ejections, d.states.probes}
}
