package router

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

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
