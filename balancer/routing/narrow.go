package routing

import "slices"

// few is how many ids are looked through faster than they are made a set of.
const few = 8

// A narrowing is what a request with many excluded or tried replicas knows of them in one fleet: a set for each list, by
// place in the fleet, so that a choice costs as much as one that excludes nobody. It covers the beginnings of lists that
// have grown since; who sees more of a list than it covers looks through the list.
type narrowing struct {
	fleet                    *membership
	excluded, allowed, tried places
}

// places is a set of replicas of a fleet.
type places struct {
	bits []uint64
	ids  int // how many of the list are in it
}

// narrow makes the sets of a request's replicas for a View, where its lists are long. O(ids that are new, or in a fleet
// that is). Called by the goroutine of the call, or with the Router's mutex held for one that waits.
func (q *Request) narrow(v *View) {
	if len(q.Exclude) > few || len(q.Allow) > few || len(q.tried) > few {
		q.narrowTo(v)
	}
}

func (q *Request) narrowTo(v *View) {
	n := q.narrowed
	if n == nil || n.fleet != v.fleet {
		n = &narrowing{fleet: v.fleet}
		q.narrowed = n
	}
	n.excluded.add(v.fleet, q.Exclude)
	n.allowed.add(v.fleet, q.Allow)
	n.tried.add(v.fleet, q.tried)
}

func (p *places) add(in *membership, ids []string) {
	if len(ids) <= few || p.ids == len(ids) {
		return
	}
	if p.bits == nil || p.ids > len(ids) {
		*p = newPlaces(in)
	}
	for _, id := range ids[p.ids:] {
		if r := in.byID[id]; r != nil {
			p.put(r)
		}
	}
	p.ids = len(ids)
}

func newPlaces(in *membership) places { return places{bits: make([]uint64, (len(in.replicas)+63)/64)} }

func (p *places) put(r *Replica) { p.bits[r.index/64] |= 1 << (r.index % 64) }

func (p *places) has(r *Replica) bool { return p.bits[r.index/64]&(1<<(r.index%64)) != 0 }

// covers reports whether the sets are of the fleet that the replica is of.
func (n *narrowing) covers(r *Replica) bool {
	return n != nil && r.index < len(n.fleet.replicas) && n.fleet.replicas[r.index] == r
}

// Tried reports whether an earlier attempt of the call went to the replica.
func (q *Request) Tried(r *Replica) bool {
	return len(q.tried) > 0 && q.lists(q.tried, func(n *narrowing) *places { return &n.tried }, r)
}

// excluded reports whether the request itself rules the replica out.
func (q *Request) excluded(r *Replica) bool {
	return len(q.Exclude) > 0 && q.lists(q.Exclude, func(n *narrowing) *places { return &n.excluded }, r) ||
		len(q.Allow) > 0 && !q.lists(q.Allow, func(n *narrowing) *places { return &n.allowed }, r)
}

// lists reports whether a replica is among ids, of which this is the set.
func (q *Request) lists(ids []string, set func(*narrowing) *places, r *Replica) bool {
	if len(ids) > few && q.narrowed.covers(r) {
		if p := set(q.narrowed); p.ids == len(ids) {
			return p.has(r)
		}
	}
	return slices.Contains(ids, r.ID)
}
