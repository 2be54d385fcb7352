package state

import "slices"

// few is how many ids are searched faster than they are looked up.
const few = 8

// Sets are the replicas that a request excludes, allows and has tried, where the lists are long: a set for each list, so
// that a choice costs about as much as one that excludes no replica.
type Sets struct{ excluded, allowed, tried set }

// A set has the beginning of a list that may have grown since.
type set struct {
	ids    map[string]struct{}
	listed int // how many of the list are in it
}

func (s *set) add(list []string) {
	if len(list) <= few || s.listed == len(list) {
		return
	}
	if s.ids == nil || s.listed > len(list) {
		*s = set{ids: make(map[string]struct{}, len(list))}
	}
	for _, id := range list[s.listed:] {
		s.ids[id] = struct{}{}
	}
	s.listed = len(list)
}

// Narrow makes the sets of a request, where its lists are long. O(ids that are new). Called by the goroutine of the call.
func (q *Request) Narrow(exclude, allow []string) {
	if max(len(exclude), len(allow), len(q.Tried)) <= few {
		return
	}
	if q.Sets == nil {
		q.Sets = new(Sets)
	}
	q.Sets.excluded.add(exclude)
	q.Sets.allowed.add(allow)
	q.Sets.tried.add(q.Tried)
}

// HasTried reports whether an earlier attempt went to the replica.
func (q *Request) HasTried(id string) bool {
	return q.has(q.Tried, func(s *Sets) *set { return &s.tried }, id)
}

// Excludes reports whether the lists rule the replica out.
func (q *Request) Excludes(exclude, allow []string, id string) bool {
	return len(exclude) > 0 && q.has(exclude, func(s *Sets) *set { return &s.excluded }, id) ||
		len(allow) > 0 && !q.has(allow, func(s *Sets) *set { return &s.allowed }, id)
}

// has reports whether an id is in a list, of which this is the set.
func (q *Request) has(list []string, of func(*Sets) *set, id string) bool {
	if len(list) > few && q.Sets != nil {
		if s := of(q.Sets); s.listed == len(list) {
			_, ok := s.ids[id]
			return ok
		}
	}
	return slices.Contains(list, id)
}
