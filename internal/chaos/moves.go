package chaos

import (
	"cmp"
	"slices"
	"time"
)

// misrouted counts calls that were served elsewhere than on their session's replica of the calm, in their first attempt,
// although nothing had happened to that replica.
func (s *stage) misrouted(calls []Call) (n int) {
	home := s.homes(calls)
	for i := range calls {
		c := &calls[i]
		at, settled := home[c.Session]
		if c.Outcome != Served || c.Attempts > 1 || c.Start < s.harm || !settled || c.Replica == at {
			continue
		}
		if since, harmed := s.touched[at]; !harmed || c.End < since {
			n++
		}
	}
	return n
}

// homes are the replicas that sessions had at the end of the calm.
func (s *stage) homes(calls []Call) map[int]string {
	home := map[int]string{}
	for _, c := range byStart(calls) {
		if c.Outcome == Served && c.End < s.harm && c.Start >= s.calm {
			home[c.Session] = c.Replica
		}
	}
	return home
}

// moved is the share of the sessions that were served in each step by a replica that is not their last before it, and
// the mean of it; held is the mean share of those whose last replica was harmed in the step. A call belongs to the step in
// which it ended: what a replica that goes cuts is served by another.
func (s *stage) moved(calls []Call) (shares []float64, mean, held float64) {
	if len(s.steps) < 2 {
		return nil, -1, -1
	}
	at, step := map[int]string{}, -1
	var moved, harmed map[int]bool
	n := float64(s.Sessions)
	for _, c := range inOrder(calls, func(c *Call) time.Duration { return c.End }) {
		for step+1 < len(s.steps) && c.End >= s.steps[step+1] {
			if step++; step > 0 {
				shares = append(shares, float64(len(moved))/n)
				held += float64(len(harmed)) / n
			}
			moved, harmed = map[int]bool{}, map[int]bool{}
			for session, id := range at {
				if step < len(s.harmed) && slices.Contains(s.harmed[step], id) {
					harmed[session] = true
				}
			}
		}
		if c.Outcome != Served || c.Start < s.calm {
			continue
		}
		if before := at[c.Session]; step >= 0 && before != "" && before != c.Replica {
			moved[c.Session] = true
		}
		at[c.Session] = c.Replica
	}
	for _, x := range shares {
		mean += x
	}
	steps := float64(max(len(shares), 1))
	return shares, mean / steps, held / steps
}

// byStart are the calls in the order in which they began.
func byStart(calls []Call) []Call {
	return inOrder(calls, func(c *Call) time.Duration { return c.Start })
}

func inOrder(calls []Call, at func(*Call) time.Duration) []Call {
	return slices.SortedFunc(slices.Values(calls), func(a, b Call) int { return cmp.Compare(at(&a), at(&b)) })
}
