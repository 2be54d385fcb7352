// Package outlier ejects replicas that fail or hang although they are connected, and takes them back.
//
// # Rule
//
// Evidence against a replica is calls in a row that failed before their first message, and calls whose first message is
// late, ended or still waiting for it. Late is far later than the rest of the fleet takes for
// as much uncached work, and only while the rest answers calls that were sent later: where all are slow no replica is.
// A status that may be the fault of the request is evidence likewise: while the rest answers calls and hardly gives any.
//
//	Healthy ─evidence─► Ejected ─its time is over─► HalfOpen ─probe answered─► SlowStart ─► Healthy
//	                       ▲─────a probe fails───────┘
//
// Each ejection is twice as long as the one before. A replica that is new among old ones begins in SlowStart: its share
// grows. All of it is a preference: a request that no other replica may serve still goes to an ejected one.
//
// # Several clients
//
// The clients of a look-aside server report what their calls show ([Detector.Take]); the server's own
// Detector takes the sums ([Detector.Add]), and the clients take what it ejects ([Detector.Follow]). There
// evidence has a principal. While several principals are active, that of one weighs at most half of what ejects,
// rounded up: two must agree.
//
// Source: Envoy's outlier detection; gRFC A50; the circuit breaker of Nygard, "Release It!".
package outlier

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
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
	CauseHealth       // it reports that it does not serve
	causes
)

// String returns the name for metrics.
func (c Cause) String() string {
	return [...]string{"", "failures", "late", "probe", "remote", "not_serving"}[c]
}

// A Host is what holds a Replica. Its methods are called with the Detector's lock held, and neither block nor lock.
type Host interface {
	Reservations() int64 // requests under way
	Rate() float64       // relative speed, 1 as a rule
	Draining() bool
	Coming() bool    // it is being connected for the first time
	Admit(ok bool)   // the replica may get a request now, or not
	Suspect(on bool) // evidence stands against it, or does not any more
}

// A Detector watches the replicas of one fleet. Its methods are safe for use by many goroutines and call only the
// replicas' hosts.
type Detector struct {
	// As in policy.Ejection.
	failures                     int // bad calls in a row that eject; off = no replica is ejected
	share                        float64
	lateMin, baseTime, slowStart time.Duration // slowStart: 0 = there is none

	now       func() time.Time
	unhealthy atomic.Int64  // members that are not Healthy
	suspects  atomic.Int64  // replicas that are suspected; written with the lock held
	freed     atomic.Uint64 // how often requests that wait were to choose again
	due       atomic.Int64  // of the next round of Look, in Unix nanoseconds; written with the lock held

	mu        sync.Mutex // guards the fields below and every Replica; no other lock is taken under it
	members   []*Replica
	connected int                  // members that are
	outs      int                  // members that are found to be out
	upSince   time.Time            // since when any replica is connected
	active    map[string]time.Time // when each principal last was
	stats     Stats
	measured  [state.AnswerWhole + 1]time.Time // when the limits were
}

// off is more bad calls than there are.
const off = math.MaxInt32

// A Replica is a Detector's record of one replica.
type Replica struct {
	host    Host
	strikes atomic.Int32 // evidence in a row; written with the lock held

	// The Detector's lock guards what follows.
	d                 *Detector // of which it is or was a member
	member, connected bool
	role              string  // of the replica: those of another one do other work
	waiting           Attempt // before and behind the calls that wait for a first message, oldest pick first
	record
}

// record is what is forgotten with the replica.
type record struct {
	state    State
	cause    Cause                        // why it is out
	until    time.Time                    // of an ejection by own calls, or of the slow start
	since    time.Time                    // the state; calls picked before are neither evidence nor proof
	times    int                          // ejections, as far as they make the next one longer
	share    int64                        // most requests under way in SlowStart
	probe    *Attempt                     // the latest probe, while it is not decided
	probed   time.Time                    // when it began
	struck   time.Time                    // when the first call of the evidence was picked
	late     bool                         // some of the evidence is for being late
	doubtful bool                         // some of it is a status that may be the fault of the requests
	doubts   float64                      // share of such statuses in its latest calls
	answered time.Time                    // last
	timely   bool                         // … was in time
	reached  time.Time                    // when the latest call was picked that it has answered
	lost     time.Time                    // its connection, last
	paces    [state.AnswerWhole + 1]Pace  // by how the answer is seen
	limits   [state.AnswerWhole + 1]limit // likewise
	counts   Counts                       // to be reported
	given    map[string]int               // evidence in a row by principal
}

// New returns a Detector of an empty fleet; now is the clock. Without a config the Detector does nothing.
func New(c *policy.Ejection, now func() time.Time) *Detector {
	if c == nil {
		c = &policy.Ejection{Failures: policy.Off, SlowStart: policy.Off}
	}
	full := c.WithDefaults()
	d := &Detector{
		failures: off, share: full.MaxShare, lateMin: time.Duration(full.LateMin),
		baseTime: time.Duration(full.BaseTime), slowStart: max(time.Duration(full.SlowStart), 0),
		now: now, active: make(map[string]time.Time),
	}
	if full.Failures > 0 {
		d.failures = int(full.Failures)
	}
	return d
}

// ejection is how long an ejection lasts after so many others.
func (d *Detector) ejection(times int) time.Duration {
	return min(d.baseTime<<min(max(times, 0), 20), d.longest())
}

// longest is how long an ejection lasts at most.
func (d *Detector) longest() time.Duration { return max(5*time.Minute, d.baseTime) }

// NewReplica returns a replica that is no member yet.
func NewReplica(h Host) *Replica {
	r := &Replica{host: h}
	r.waiting.prev, r.waiting.next = &r.waiting, &r.waiting
	return r
}

// Ejects reports whether replicas are ejected at all.
func (d *Detector) Ejects() bool { return d.failures < off }

// Suspects reports whether evidence stands against any replica: then the calls that succeed elsewhere count. It takes no
// lock.
func (d *Detector) Suspects() bool { return d.suspects.Load() > 0 }

// AllHealthy reports whether every replica of the fleet is Healthy. It takes no lock.
func (d *Detector) AllHealthy() bool { return d.unhealthy.Load() == 0 }

// Version returns a number that grows where requests that wait are to choose again: a replica is ejected, may be probed
// or comes back. It takes no lock.
func (d *Detector) Version() uint64 { return d.freed.Load() }

// Due returns when Look does something next. It takes no lock.
func (d *Detector) Due() time.Time { return time.Unix(0, d.due.Load()) }

// Stats are what a Detector has done in its life.
type Stats struct {
	Ejections [causes]int64 // by Cause
	Probes    int64
}

// Stats returns how often replicas were ejected and probed.
func (d *Detector) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stats
}

// Join makes a replica a member of the fleet, with a role that a later Join may change.
func (d *Detector) Join(r *Replica, role string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r.role = role
	if !r.member {
		r.d, r.member = d, true
		d.members = append(d.members, r)
	}
}

// Leave takes a member out of the fleet, and forgets it.
func (d *Detector) Leave(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.connected {
		d.connected--
	}
	r.forget(d.now())
	i := slices.Index(d.members, r)
	d.members, r.member, r.connected = slices.Delete(d.members, i, i+1), false, false
}

// Restart forgets the record of a member whose process was restarted.
func (d *Detector) Restart(r *Replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	r.forget(now)
	if r.connected {
		r.arrive(now)
	}
}

// SetConnected notes that the connection of a member comes or goes. A replica that is new beside older ones,
// or was away for the time of an ejection, begins in SlowStart: every client would find it idle. A shorter
// loss changes nothing.
func (d *Detector) SetConnected(r *Replica, up bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	switch {
	case r.connected == up:
	case up:
		if d.connected++; d.connected == 1 {
			d.upSince = now
		}
		r.connected = true
		r.arrive(now)
	default:
		d.connected--
		r.connected, r.lost = false, now
		r.serves(true, now) // what was reported was of the connection
	}
}

// SetServing notes what a member reports of its own health, before or while it is connected. While it does not serve it
// is ejected, whatever the share and the evidence are. One that serves again is treated as one whose connection comes
// back.
func (d *Detector) SetServing(r *Replica, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	if !r.member || ok == (r.cause != CauseHealth) {
		return
	}
	r.serves(ok, now)
	switch {
	case !ok:
	case now.Before(r.until): // it was starting slowly, or was ejected before
		r.startSlowly(now)
	default:
		r.arrive(now)
	}
}

// serves is SetServing, but for the slow start.
func (r *Replica) serves(ok bool, now time.Time) {
	switch {
	case !ok:
		r.d.stats.Ejections[CauseHealth]++
		r.clear()
		if r.probe = nil; r.connected {
			r.lost = now
		}
		r.enter(Ejected, CauseHealth, now)
	case r.cause == CauseHealth:
		r.enter(Healthy, NoCause, now)
	}
}

// arrive begins the slow start of a replica that has connected, if it is new or was away, and the fleet is
// not new itself.
func (r *Replica) arrive(now time.Time) {
	slow := r.d.slowStart
	away := now.Sub(r.lost) >= max(r.d.baseTime, time.Second)
	if away && slow > 0 && now.Sub(r.d.upSince) >= slow && r.state == Healthy {
		r.startSlowly(now)
	}
}

// forget clears the record of a replica that leaves or was restarted. Calls under way are no evidence of what comes
// after it.
func (r *Replica) forget(now time.Time) {
	r.clear()
	r.enter(Healthy, NoCause, now)
	r.record = record{since: now}
}

// AdmitsAssigned reports whether a replica is to get a request that the look-aside server assigned: only own
// calls count.
func (d *Detector) AdmitsAssigned(r *Replica) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !r.out() || r.cause == CauseRemote || r.state == HalfOpen && r.probe == nil
}

// State returns the state of a replica, and why it is ejected or half-open.
func (d *Detector) State(r *Replica) (State, Cause) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return r.state, r.cause
}

// out reports whether the replica is ejected or half-open.
func (r *Replica) out() bool { return r.state >= HalfOpen }

// found reports whether it is so by what calls showed: those count in the share of the fleet that may be ejected.
func (r *Replica) found() bool { return r.out() && r.cause != CauseHealth }

// admits reports whether the replica is to get a request now.
func (r *Replica) admits() bool {
	switch r.state {
	case Ejected:
		return false
	case HalfOpen:
		return r.probe == nil
	case SlowStart:
		return r.host.Reservations() < r.share
	}
	return true
}

// enter puts a replica into a state. All changes of state go through it.
func (r *Replica) enter(s State, cause Cause, since time.Time) {
	freed := r.out()
	if r.state != Healthy {
		r.d.unhealthy.Add(-1)
	}
	if s != Healthy {
		r.d.unhealthy.Add(1)
	}
	if r.found() {
		r.d.outs--
	}
	r.state, r.cause, r.since = s, cause, since
	if r.found() {
		r.d.outs++
	}
	r.host.Admit(r.admits())
	if freed || r.out() {
		r.d.freed.Add(1)
	}
}
