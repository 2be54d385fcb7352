package state

import "slices"

// few is how many ids are searched faster than they are made a set.
const few = 8

// A Fleet gives replicas places, 0 to Len-1.
type Fleet interface {
	Len() int
	Place(id string) (place int, ok bool)
	Has(r *Replica, place int) bool
}

// Sets are the replicas that a request excludes, allows and has tried, where the lists are long: a set for each list,
// by place in one fleet, so that a choice costs as much as one that excludes no replica. They cover the beginnings of
// lists that have grown since; a list that is longer than its set is searched.
type Sets struct {
	fleet                    Fleet
	excluded, allowed, tried places
}

// places is a set of replicas of a fleet.
type places struct {
	bits []uint64
	ids  int // how many of the list are in it
}

func newPlaces(in Fleet) places { return places{bits: make([]uint64, (in.Len()+63)/64)} }

func (p *places) put(place int) { p.bits[place/64] |= 1 << (place % 64) }

func (p *places) has(place int) bool { return p.bits[place/64]&(1<<(place%64)) != 0 }

func (p *places) add(in Fleet, ids []string) {
	if len(ids) <= few || p.ids == len(ids) {
		return
	}
	if p.bits == nil || p.ids > len(ids) {
		*p = newPlaces(in)
	}
	for _, id := range ids[p.ids:] {
		if place, ok := in.Place(id); ok {
			p.put(place)
		}
	}
	p.ids = len(ids)
}

// Narrow makes the sets of a request for a fleet, where its lists are long. O(ids that are new, or in a fleet that is).
// Called by the goroutine of the call, or with the Router's lock held for a request that waits.
func (q *Request) Narrow(in Fleet, exclude, allow []string) {
	if len(exclude) > few || len(allow) > few || len(q.Tried) > few {
		q.narrow(in, exclude, allow)
	}
}

func (q *Request) narrow(in Fleet, exclude, allow []string) {
	if q.Sets == nil || q.Sets.fleet != in {
		q.Sets = &Sets{fleet: in}
	}
	q.Sets.excluded.add(in, exclude)
	q.Sets.allowed.add(in, allow)
	q.Sets.tried.add(in, q.Tried)
}

// covers reports whether the sets are of the fleet that has the replica at this place.
func (s *Sets) covers(r *Replica, place int) bool { return s != nil && s.fleet.Has(r, place) }

// HasTried reports whether an earlier attempt went to the replica.
func (q *Request) HasTried(r *Replica, place int, id string) bool {
	return q.lists(q.Tried, func(s *Sets) *places { return &s.tried }, r, place, id)
}

// Excludes reports whether the lists rule the replica out.
func (q *Request) Excludes(exclude, allow []string, r *Replica, place int, id string) bool {
	return len(exclude) > 0 && q.lists(exclude, func(s *Sets) *places { return &s.excluded }, r, place, id) ||
		len(allow) > 0 && !q.lists(allow, func(s *Sets) *places { return &s.allowed }, r, place, id)
}

// lists reports whether a replica is among ids, of which this is the set.
func (q *Request) lists(ids []string, set func(*Sets) *places, r *Replica, place int, id string) bool {
	if len(ids) > few && q.Sets.covers(r, place) {
		if p := set(q.Sets); p.ids == len(ids) {
			return p.has(place)
		}
	}
	return slices.Contains(ids, id)
}
