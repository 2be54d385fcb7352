package router

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A Member is one replica as the host reports it to [Fleet.Set].
type Member struct {
	policy.Attributes
	// Host is the host's own handle, given back by Replica.Host. It must be
	// comparable; a pointer as a rule.
	Host any
}

// live is the part of a replica that outlives changes of its attributes.
// Everything is written under the Router's mutex; what state.Replica has may be read by
// policies and metrics without it.
type live struct {
	state.Replica
	number  uint64 // random, below numbers; set once
	outlier *outlier.Replica

	// Guarded by the Router's mutex.
	waiters  line // the requests that wait for it, beside those that take any
	refusals refusals
	drains   time.Time // since when it takes no new sessions
}

func newLive(book *state.Book) *live {
	l := &live{number: rand.Uint64N(numbers), refusals: refusals{most: state.NoBound}}
	l.Owner, l.Book = l, book
	l.outlier = outlier.NewReplica(l)
	return l
}

// liveOf returns the live part of a replica of a Router.
func liveOf(r *policy.Replica) *live { return part.OfReplica(r).Owner.(*live) }

// bounded returns n, where it bounds anything.
func bounded(n int) int64 {
	if n <= 0 {
		return state.NoBound
	}
	return int64(n)
}

// bound puts into force how many reservations the replica may have now.
func (l *live) bound() { l.Max.Store(min(l.Capacity.Load(), l.refusals.most)) }

// Reservations implements [outlier.Host].
func (l *live) Reservations() int64 { return l.Ongoing() }

// Admit implements [outlier.Host].
func (l *live) Admit(ok bool) { l.Set(state.Barred, !ok) }

// Coming implements [outlier.Host].
func (l *live) Coming() bool { return l.Flags.Load()&state.Coming != 0 }

// Suspect implements [outlier.Host].
func (l *live) Suspect(on bool) { l.Replica.Suspect.Store(on) }

// Draining implements [outlier.Host].
func (l *live) Draining() bool { return l.Flags.Load()&(state.Leaving|state.Declared) != 0 }

// A Fleet is the membership of a Router and its connections. The Router's mutex guards it.
type Fleet struct {
	router   *Router
	known    map[string]*live // the members, and those that had reservations when they left
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
	next := newView(r, old.epoch+1)
	same := true
	for i := range members {
		m := &members[i]
		if next.byID(m.ID) != nil {
			continue
		}
		was := old.byID(m.ID)
		rep := f.replica(was, m, len(next.replicas))
		same = same && rep == was
		next.add(rep)
	}
	if same && len(next.replicas) == len(old.replicas) {
		return
	}
	next.divide()
	moved := joined(old, next)
	for _, rep := range moved.Removed {
		l := liveOf(rep) // its book stays with its reservations: the same id coming back does not start from zero
		if next.byID(rep.ID) != nil {
			l.Set(state.Leaving, false)
			r.outliers.Restart(l.outlier)
			continue
		}
		r.outliers.Leave(l.outlier)
		l.Flags.Store(0)
		l.KVTokens.Store(0)
		l.lift()
	}
	maps.DeleteFunc(f.known, func(id string, l *live) bool { return next.byID(id) == nil && l.Ongoing() == 0 })
	r.Load.SetFleet(next.replicas)
	f.show(next, moved)
}

// Change sets members that have changed or are new; the others stay. New members stand behind the others and are
// connected: it is for hosts without connections of their own. Beside copies of pointers it costs what has changed, in
// a fleet without roles.
func (f *Fleet) Change(members []Member) {
	r := f.router
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.closed {
		return
	}
	old := r.view.Load()
	var at []int
	var to, more []*policy.Replica
	var c policy.FleetChange
	divided := old.prefill != nil
	for i := range members {
		m := &members[i]
		divided = divided || m.Role != ""
		place, there := old.places[m.ID]
		if !there {
			rep := f.replica(nil, m, len(old.replicas)+len(more))
			more, c.Added = append(more, rep), append(c.Added, rep)
			continue
		}
		was := old.replicas[place]
		rep := f.replica(was, m, place)
		if rep == was {
			continue
		}
		at, to = append(at, place), append(to, rep)
		if restarted(was, rep) {
			c.Removed, c.Added = append(c.Removed, was), append(c.Added, rep)
			liveOf(rep).Set(state.Leaving, false)
			r.outliers.Restart(liveOf(rep).outlier)
		}
	}
	if len(at)+len(more) == 0 {
		return
	}
	next := old.changed(at, to, more)
	if divided {
		next = old.rebuilt(next.replicas)
		next.divide()
	}
	r.Load.ChangeFleet(to, more)
	for _, rep := range more {
		f.setConnected(rep, true)
	}
	c.Connected = more
	f.show(next, c)
}

// setConnected records the connection of a replica. Called with mu held.
func (f *Fleet) setConnected(rep *policy.Replica, up bool) {
	l := liveOf(rep)
	if up {
		l.Links.Add(1)
		l.Set(state.Leaving|state.Coming, false)
	}
	l.Set(state.Connected, up)
	f.router.outliers.SetConnected(l.outlier, up)
}

// joined returns what joined and left from one view to the next: a replica that was restarted did both.
func joined(old, next *view) (c policy.FleetChange) {
	for _, rep := range next.replicas {
		was := old.byID(rep.ID)
		if was == nil || restarted(was, rep) {
			c.Added = append(c.Added, rep)
		}
		if was != nil && restarted(was, rep) {
			c.Removed = append(c.Removed, was)
		}
	}
	for _, rep := range old.replicas {
		if next.byID(rep.ID) == nil {
			c.Removed = append(c.Removed, rep)
		}
	}
	return c
}

// replica returns the Replica of a member at a place in the fleet, with the live
// part of the one it had before.
func (f *Fleet) replica(old *policy.Replica, m *Member, index int) *policy.Replica {
	r := f.router
	if old != nil && old.Index() == index && old.Host() == m.Host && old.Attributes.Equal(m.Attributes) {
		return old
	}
	l := f.known[m.ID]
	if l == nil {
		l = newLive(new(state.Book))
		f.known[m.ID] = l
	}
	rep := part.NewReplica(m.Attributes, index, m.Host, &l.Replica)
	r.outliers.Join(l.outlier, m.Role)
	rep.Models, rep.Adapters = slices.Clone(m.Models), slices.Clone(m.Adapters)
	rep.Stats = maps.Clone(m.Stats)
	if m.Draining && (old == nil || !old.Drains() || restarted(old, rep)) {
		l.drains = r.opts.Now()
	}
	l.Set(state.Declared, m.Draining)
	l.Capacity.Store(bounded(cmp.Or(m.MaxOngoing, r.opts.MaxOngoing)))
	l.bound()
	return rep
}

// restarted reports whether a replica reports that it was started anew.
func restarted(old, now *policy.Replica) bool {
	return old.Instance != now.Instance && old.Instance != "" && now.Instance != ""
}

// SetConnected records whether the host has a connection to the replica. Unknown
// ids are ignored. O(replicas) when that is a change.
func (f *Fleet) SetConnected(id string, up bool) {
	f.router.mu.Lock()
	defer f.router.mu.Unlock()
	if rep := f.router.view.Load().byID(id); rep != nil {
		f.connect([]*policy.Replica{rep}, func(*policy.Replica) bool { return up })
	}
}

// SetComing records whether the host is connecting to the replica for the first time. While it is, no request that the
// replica may serve goes to one that is ejected: Reserve returns ErrConnecting. Unknown ids are ignored.
func (f *Fleet) SetComing(id string, coming bool) {
	f.router.mu.Lock()
	defer f.router.mu.Unlock()
	if rep := f.router.view.Load().byID(id); rep != nil {
		liveOf(rep).Set(state.Coming, coming && !rep.Connected())
	}
}

// SetConnections is SetConnected for every replica of the fleet at once. up is called under the Router's lock and
// must not call the Router. O(replicas).
func (f *Fleet) SetConnections(up func(*policy.Replica) bool) {
	f.router.mu.Lock()
	defer f.router.mu.Unlock()
	f.connect(f.router.view.Load().replicas, up)
}

// Connect connects every replica of the fleet, for a host that has no connections of its own. O(replicas).
func (f *Fleet) Connect() { f.SetConnections(func(*policy.Replica) bool { return true }) }

// Disconnect takes down every connection at once: the requests in the queue end with ErrNotConnected. What was
// learned stays, for when connections come back.
func (f *Fleet) Disconnect() { f.SetConnections(func(*policy.Replica) bool { return false }) }

// connect records the connections of some replicas. Called with mu held.
func (f *Fleet) connect(some []*policy.Replica, up func(*policy.Replica) bool) {
	var change policy.FleetChange
	for _, rep := range some {
		is := up(rep)
		switch {
		case is == rep.Connected():
			continue
		case is:
			change.Connected = append(change.Connected, rep)
		default:
			change.Disconnected = append(change.Disconnected, rep)
		}
		f.setConnected(rep, is)
	}
	if len(change.Connected)+len(change.Disconnected) > 0 {
		next := *f.router.view.Load()
		f.show(&next, change)
	}
}

// Divided reports whether replicas have roles, so that requests may be sent in two legs.
func (f *Fleet) Divided() bool { return f.router.view.Load().prefill != nil }

// show puts a View into force and lets the queue choose again. O(replicas). Called with mu held.
func (f *Fleet) show(next *view, c policy.FleetChange) {
	r := f.router
	old := r.view.Load()
	if !next.listed {
		next.list()
	}
	next.listed = false
	for _, o := range r.observers {
		notify(o, old.whole, next.whole, c, old.prefill == nil && next.prefill == nil)
	}
	r.prefiller.show(old, next, c)
	r.view.Store(next)
	r.Health.force()
}

// notify passes to an observer the changes of the replicas that it decides for. c is the change of the whole fleet, and
// whole reports whether the observer decides for all of it.
func notify(o *policy.Observer, old, next *view, c policy.FleetChange, whole bool) {
	if o.FleetChanged == nil {
		return
	}
	of := policy.FleetChange{Connected: next.those(c.Connected), Disconnected: next.those(c.Disconnected)}
	switch {
	case old.epoch == next.epoch:
	case whole:
		of.Added, of.Removed = c.Added, c.Removed
	default:
		members := joined(old, next)
		of.Added, of.Removed = members.Added, members.Removed
	}
	if len(of.Added)+len(of.Removed)+len(of.Connected)+len(of.Disconnected) > 0 {
		o.FleetChanged(of)
	}
}

// SetCapacity passes to the policy how many tokens the KV cache of a replica holds, if
// that is news. Unknown ids and sizes that are not positive are ignored.
func (f *Fleet) SetCapacity(id string, kvTokens int) {
	r := f.router
	rep := r.view.Load().byID(id)
	if rep == nil || kvTokens <= 0 || liveOf(rep).KVTokens.Swap(int64(kvTokens)) == int64(kvTokens) || !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	for o := range r.prefiller.observers() {
		if o.CapacityChanged != nil {
			o.CapacityChanged(id, kvTokens)
		}
	}
}

// Drain records a replica's own report that it takes no new sessions: it gets only those that no other may
// serve, as long as it is there. That holds until its connection has been down: what comes back is another life.
// Unknown ids are ignored. O(replicas) the first time.
func (f *Fleet) Drain(id string) {
	r := f.router
	if rep := r.view.Load().byID(id); rep == nil || rep.Drains() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := *r.view.Load()
	rep := next.byID(id)
	if rep == nil || rep.Drains() || !rep.Connected() {
		return
	}
	liveOf(rep).Set(state.Leaving, true)
	liveOf(rep).drains = r.opts.Now()
	f.show(&next, policy.FleetChange{})
}

// sessions remembers where each of the latest sessions went last, so that a replica that drains keeps its own for a
// while. It is a table of fixed size: a session that falls on the place of another takes it. It holds hashes, no names:
// that of a session, xor the number of its replica. Safe for many goroutines.
type sessions [1 << 13]atomic.Uint64

// numbers bounds those of replicas, so that the upper bits of what is kept are the session's.
const numbers = 1 << 24

func (s *sessions) slot(hash uint64) *atomic.Uint64 { return &s[hash%uint64(len(s))] }

// note records that the session of a request went to a replica, unless it ends with the request.
func (s *sessions) note(q *policy.Request, l *live) {
	if s == nil {
		return
	}
	hash := state.SessionHash(q.Session)
	slot := s.slot(hash)
	switch now := hash ^ l.number; {
	case part.OfRequest(q).Final:
		slot.Store(0)
	case slot.Load() != now:
		slot.Store(now)
	}
}

// Forget frees what is kept of a session that has ended, given as state.SessionHash: a replica that drains keeps it no
// longer.
func (f *Fleet) Forget(hash uint64) {
	if f.sessions == nil {
		return
	}
	slot := f.sessions.slot(hash)
	if at := slot.Load(); at^hash < numbers {
		slot.CompareAndSwap(at, 0)
	}
}

// keeper returns the draining replica that keeps the session of the request, or nil. Called with mu held.
func (f *Fleet) keeper(q *policy.Request, v *view) *state.Replica {
	if f.sessions == nil || q.Session == "" || len(v.leaving) == 0 {
		return nil
	}
	hash := state.SessionHash(q.Session)
	at := f.sessions.slot(hash).Load()
	for _, rep := range v.leaving {
		l := liveOf(rep)
		if at == hash^l.number && f.router.opts.Now().Sub(l.drains) < f.router.opts.DrainGrace {
			return part.OfReplica(rep)
		}
	}
	return nil
}
