package routing

import (
	"hash/maphash"
	"sync/atomic"
)

// sessions remembers where each of the latest sessions went last, so that a replica that drains keeps its own for a
// while. It is a table of fixed size: a session that falls on the place of another takes it. It holds hashes, no names.
type sessions struct {
	seed  maphash.Seed
	slots []atomic.Uint64 // the hash without its lowest bits, and the number of the replica
}

const (
	sessionSlots = 1 << 13
	numberBits   = 24
	numberMask   = 1<<numberBits - 1
)

func newSessions() *sessions {
	return &sessions{seed: maphash.MakeSeed(), slots: make([]atomic.Uint64, sessionSlots)}
}

// note says that a session went to a replica. Safe for many goroutines.
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

// numbered gives a replica a number of its own for the life of the Router. After 2^24 of them one may come again, and that replica
// may keep a session that is another's.
func (r *Router) numbered(l *live) *live {
	r.numbers++
	l.number = r.numbers & numberMask
	return l
}

// keeper returns the draining replica that keeps the session of the request, or nil. Called with mu held.
func (r *Router) keeper(q *Request, v *View) *Replica {
	if r.sessions == nil || q.Session == "" {
		return nil
	}
	number, ok := r.sessions.at(q.Session)
	if !ok {
		return nil
	}
	for _, rep := range v.leaving {
		if rep.live.number == number {
			if r.opts.Now().Sub(rep.live.drains) < r.opts.DrainGrace {
				return rep
			}
			return nil
		}
	}
	return nil
}

// drains reports whether the replica takes no new sessions.
func (r *Replica) drains() bool { return r.Draining || r.leaves() }

// leaves reports whether the replica said itself that it drains.
func (r *Replica) leaves() bool { return r.live.state.Load()&leaving != 0 }

// Drains reports whether the replica takes no new sessions, as its attributes or the replica itself say.
func (r *Replica) Drains() bool { return r.drains() }

// drainBegins notes since when a replica drains that did so before or not. Called with mu held.
func (r *Router) drainBegins(l *live, before bool) {
	if !before {
		l.drains = r.opts.Now()
	}
}

// ReplicaDrains says, on a replica's own word, that it is better sent no new sessions: it gets those that nobody else may
// serve, as long as it is there. That holds until its connection has been down: what comes back is another life. Unknown
// ids are ignored. O(replicas) the first time.
func (r *Router) ReplicaDrains(id string) {
	if rep := r.View().ByID(id); rep == nil || rep.drains() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.view.Load()
	rep := v.ByID(id)
	if rep == nil || rep.drains() || !rep.Connected() {
		return
	}
	rep.live.set(leaving, true)
	r.drainBegins(rep.live, false)
	r.publish(v.fleet)
}
