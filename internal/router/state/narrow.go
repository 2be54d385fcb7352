package state

import "slices"

// few is how many ids are searched faster than they are looked up.
const few = 8

// Sets are the replicas that a request excludes, allows and has tried, where the lists are long: a set for each list,
// so that a choice costs about as much as one that excludes no replica.
type Sets struct{ excluded, allowed, tried set }

// A set has the beginning of a list that may have grown since.
type set struct {
	ids    map[string]struct{}
	listed int // how many of the list are in it
}

// has reports whether an id is in the list, of which this is the set. O(ids that are new).
func (s *set) has(list []string, id string) bool {
	if s.ids == nil || s.listed > len(list) {
		*s = set{ids: make(map[string]struct{}, len(list))}
	}
	for _, id := range list[s.listed:] {
		s.ids[id] = struct{}{}
	}
	s.listed = len(list)
	_, ok := s.ids[id]
	return ok
}

// HasTried reports whether an earlier attempt went to the replica. Like Excludes, it is called by the goroutine of the
// call, or with the Router's lock held.
func (q *Request) HasTried(id string) bool { return q.has(q.Tried, id, tried) }

// Excludes reports whether the lists rule the replica out.
func (q *Request) Excludes(exclude, allow []string, id string) bool {
	return len(exclude) > 0 && q.has(exclude, id, excluded) || len(allow) > 0 && !q.has(allow, id, allowed)
}

func tried(s *Sets) *set    { return &s.tried }
func excluded(s *Sets) *set { return &s.excluded }
func allowed(s *Sets) *set  { return &s.allowed }

// has reports whether an id is in a list.
func (q *Request) has(list []string, id string, of func(*Sets) *set) bool {
	if len(list) <= few {
		return slices.Contains(list, id)
	}
	if q.Sets == nil {
		q.Sets = new(Sets)
	}
	return of(q.Sets).has(list, id)
}
