package router

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Fleet is the membership of a Router and its connections. The Router's mutex guards it.
type Fleet struct {
	router   *Router
	departed map[string]*live // left the fleet with reservations under way
	numbers  uint32           // given to replicas
	sessions *sessions        // nil where no replica keeps its sessions while it drains
}

// Set replaces the membership. The order given is the stable order of the
// View. A replica keeps its reservations and its connection under the same id,
// whatever else changes; of two members with the same id the first counts. A
// new replica is not connected until SetConnected is called. A fleet that is the
// same as before changes nothing. O(replicas).
func (f *Fleet) Set(members []Member) {
	r := f.router
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.closed {
		return
	}
	old := r.view.Load()
	next := &membership{
		epoch:  old.fleet.epoch + 1,
		byID:   make(map[string]*policy.Replica, len(members)),
		models: make(map[string]bool),
	}
	var added, removed []*policy.Replica
	same := true
	for i := range members {
		m := &members[i]
		if next.byID[m.ID] != nil {
			continue
		}
		was := old.ByID(m.ID)
		rep := f.replica(was, m, len(next.replicas))
		switch {
		case was == nil:
			added = append(added, rep)
		case restarted(was, rep):
			added, removed = append(added, rep), append(removed, was)
			f.begins(liveOf(rep))
		}
		same = same && rep == was
		next.replicas = append(next.replicas, rep)
		next.byID[m.ID] = rep
		for _, adapter := range rep.Adapters {
			if next.loaded == nil {
				next.loaded = make(map[string][]*policy.Replica)
			}
			next.loaded[adapter] = append(next.loaded[adapter], rep)
		}
		for _, model := range m.Models {
			next.models[model] = true
		}
	}
	if same && len(next.replicas) == len(old.fleet.replicas) {
		return
	}
	for _, rep := range old.fleet.replicas {
		if next.byID[rep.ID] == nil {
			removed = append(removed, rep)
			f.depart(rep)
		}
	}
	r.Load.SetFleet(next.replicas)
	r.hosted.fleetChanged(policy.FleetChange{Added: added, Removed: removed})
	f.publish(next)
}

// replica returns the Replica of a member at a place in the fleet, with the live
// part of the one it had before.
func (f *Fleet) replica(old *policy.Replica, m *Member, index int) *policy.Replica {
	r := f.router
	if old != nil && old.Index() == index && old.Host() == m.Host && old.Attributes.Equal(m.Attributes) {
		return old
	}
	var l *live
	switch {
	case old != nil:
		l = liveOf(old)
	case f.departed[m.ID] != nil:
		l = f.departed[m.ID]
		delete(f.departed, m.ID)
		r.quick.hold()
	default:
		f.numbers++
		l = newLive(f.numbers & numberMask)
	}
	rep := policy.NewReplica(m.Attributes, index, m.Host, &l.Replica)
	r.outliers.Join(l.outlier)
	l.Set(state.Declared, m.Draining)
	rep.Models, rep.Adapters = slices.Clone(m.Models), slices.Clone(m.Adapters)
	rep.Stats = maps.Clone(m.Stats)
	if m.Draining {
		f.drainBegins(l, old != nil && old.Drains() && !restarted(old, rep))
	}
	l.limit(cmp.Or(m.MaxOngoing, r.opts.MaxOngoing))
	return rep
}

// restarted reports whether a replica reports that it was started anew.
func restarted(old, now *policy.Replica) bool {
	return old.Instance != now.Instance && old.Instance != "" && now.Instance != ""
}

// begins forgets what was known of a replica's life before. Called with mu held.
func (f *Fleet) begins(l *live) {
	r := f.router
	l.Set(state.Leaving, false)
	r.outliers.Restart(l.outlier)
}

// depart takes a replica out. Its book is kept while it has reservations, so that
// the same id coming back does not start from zero.
func (f *Fleet) depart(rep *policy.Replica) {
	r := f.router
	l := liveOf(rep)
	r.outliers.Leave(l.outlier)
	l.Flags.Store(0)
	l.streams = state.NoBound
	l.lift()
	if rep.Ongoing() > 0 {
		f.departed[rep.ID] = l
		r.quick.hold()
	}
}

// forget drops the book of a replica that left once its last reservation has ended.
func (f *Fleet) forget(rep *policy.Replica) {
	r := f.router
	if f.departed[rep.ID] == liveOf(rep) && rep.Ongoing() == 0 {
		delete(f.departed, rep.ID)
		r.quick.hold()
	}
}

// SetConnected records whether the host has a connection to the replica. Unknown
// ids are ignored. When that is a change, the replica enters or leaves copies of the lists of those that are connected;
// nothing else grows with the fleet.
func (f *Fleet) SetConnected(id string, up bool) {
	r := f.router
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	rep := v.ByID(id)
	if rep == nil || rep.Connected() == up {
		return
	}
	f.connects(liveOf(rep), up)
	changed := []*policy.Replica{rep}
	if up {
		r.hosted.fleetChanged(policy.FleetChange{Connected: changed})
	} else {
		r.hosted.fleetChanged(policy.FleetChange{Disconnected: changed})
	}
	f.show(v.changed(rep, up, &r.opts))
}

// SetStreams sets how many requests the host's connections to the replica take at once, a
// bound beside that of the replica; 0 = not known. Where it is raised, the requests that wait are
// served. Unknown ids are ignored. O(1) but for those served.
func (f *Fleet) SetStreams(id string, n int) {
	r := f.router
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	rep := v.ByID(id)
	if rep == nil || liveOf(rep).streams == bounded(n) {
		return
	}
	liveOf(rep).streams = bounded(n)
	liveOf(rep).bound()
	r.queue.serve(id)
}

// SetConnections is SetConnected for every replica of the fleet at once. up is called under the Router's lock and
// must not call the Router. O(replicas).
func (f *Fleet) SetConnections(up func(*policy.Replica) bool) {
	r := f.router
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	var c policy.FleetChange
	for _, rep := range v.Replicas() {
		switch is := up(rep); {
		case is == rep.Connected():
			continue
		case is:
			c.Connected = append(c.Connected, rep)
		default:
			c.Disconnected = append(c.Disconnected, rep)
		}
		f.connects(liveOf(rep), !rep.Connected())
	}
	if len(c.Connected)+len(c.Disconnected) > 0 {
		r.hosted.fleetChanged(c)
		f.publish(v.fleet)
	}
}

// Connect connects every replica of the fleet, for a host that has no connections of its own. O(replicas).
func (f *Fleet) Connect() { f.SetConnections(func(*policy.Replica) bool { return true }) }

// Disconnect takes down every connection at once: the requests in the queue end with ErrNotConnected. What was
// learned stays, for when connections come back.
func (f *Fleet) Disconnect() { f.SetConnections(func(*policy.Replica) bool { return false }) }

// publish makes a new View of the whole fleet. O(replicas). Called with mu held.
func (f *Fleet) publish(m *membership) {
	r := f.router
	v := &view{fleet: m, shared: r.shared}
	v.build(&r.opts)
	f.show(v)
}

// show puts a View into force and lets the queue choose again. Called with mu held.
func (f *Fleet) show(v *view) {
	r := f.router
	r.view.Store(v)
	r.queue.requeue()
	r.quick.hold()
}

// connects notes that the connection of a replica comes or goes, before the View has it. Called with mu held.
func (f *Fleet) connects(l *live, up bool) {
	l.Set(state.Connected, up)
	if up {
		l.Set(state.Leaving, false)
	}
	f.router.outliers.SetConnected(l.outlier, up)
}

// released does what the end of a reservation means to others. Called with mu held.
func (f *Fleet) released(at *policy.Replica) {
	r := f.router
	if r.queue.queued > 0 {
		r.queue.serve(at.ID)
	}
	f.forget(at)
}

// sessions remembers where each of the latest sessions went last, so that a replica that drains keeps its own for a
// while. It is a table of fixed size: a session that falls on the place of another takes it. It holds hashes, no names.
type sessions struct {
	seed  maphash.Seed
	slots []atomic.Uint64 // the hash without its lowest bits, and the number of the replica
}

const (
	sessionSlots = 1 << 13
	// Each replica has a number for the life of the Router. After 2^24 of them one may come again, and that replica may
	// keep a session of another.
	numberBits = 24
	numberMask = 1<<numberBits - 1
)

func newSessions() *sessions {
	return &sessions{seed: maphash.MakeSeed(), slots: make([]atomic.Uint64, sessionSlots)}
}

// note records that a session went to a replica. Safe for many goroutines.
func (s *sessions) note(session string, l *live) {
	if session == "" {
		return
	}
	hash := maphash.String(s.seed, session)
	slot := &s.slots[hash%sessionSlots]
	if now := hash&^numberMask | uint64(l.number); slot.Load() != now {
		slot.Store(now)
	}
}

// at returns the number of the replica to which the session went last, if it is known.
func (s *sessions) at(session string) (number uint32, ok bool) {
	hash := maphash.String(s.seed, session)
	x := s.slots[hash%sessionSlots].Load()
	return uint32(x & numberMask), x != 0 && (x^hash)&^numberMask == 0
}

// keeper returns the draining replica that keeps the session of the request, or nil. Called with mu held.
func (f *Fleet) keeper(q *policy.Request, v *view) *state.Replica {
	r := f.router
	if f.sessions == nil || q.Session == "" {
		return nil
	}
	number, ok := f.sessions.at(q.Session)
	if !ok {
		return nil
	}
	for _, rep := range v.leaving {
		if liveOf(rep).number == number {
			if r.opts.Now().Sub(liveOf(rep).drains) < r.opts.DrainGrace {
				return rep.State()
			}
			return nil
		}
	}
	return nil
}

// drainBegins notes since when a replica drains that did so before or not. Called with mu held.
func (f *Fleet) drainBegins(l *live, before bool) {
	r := f.router
	if !before {
		l.drains = r.opts.Now()
	}
}

// Drain records a replica's own report that it takes no new sessions: it gets only those that no other may
// serve, as long as it is there. That holds until its connection has been down: what comes back is another life.
// Unknown ids are ignored. O(replicas) the first time.
func (f *Fleet) Drain(id string) {
	r := f.router
	if rep := r.View().ByID(id); rep == nil || rep.Drains() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	rep := v.ByID(id)
	if rep == nil || rep.Drains() || !rep.Connected() {
		return
	}
	liveOf(rep).Set(state.Leaving, true)
	f.drainBegins(liveOf(rep), false)
	f.publish(v.fleet)
}
