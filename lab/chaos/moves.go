package chaos

import (
	"cmp"
	"slices"
	"time"
)

// misrouted counts calls that were served elsewhere than on their session's replica of the calm, in their
// first attempt, although nothing had happened to that replica.
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

// moved is the share of the sessions that each step moved, and the mean of it; held is the mean share of
// those whose last replica was harmed in the step.
//
// A session has moved when a replica that is not its last served it and did not have its prompt. What goes
// back and forth between two that both have it, since of many clients some find the one and some the other,
// costs nothing. It is moved by the step that took its prompt from that replica, if one did, else by the step
// in which the call was sent there.
func (s *stage) moved(calls []Call) (shares []float64, mean, held float64) {
	n := len(s.steps) - 1
	if n < 1 {
		return nil, -1, -1
	}
	j := journeys{last: map[int]string{}, prompts: map[place]int{}}
	for _, c := range inOrder(calls, sent) {
		for len(j.moved) < n && sent(&c) >= s.steps[len(j.moved)] {
			j.harm(s.harmed[len(j.moved)])
		}
		if c.Outcome == Served && c.Start >= s.calm {
			j.served(&c, s.cold(&c), sent(&c) < s.steps[n])
		}
	}
	all := float64(s.Sessions * n)
	for step := range n {
		sessions := 0
		if step < len(j.moved) {
			sessions = len(j.moved[step])
		}
		shares = append(shares, float64(sessions)/float64(s.Sessions))
		mean += float64(sessions) / all
	}
	return shares, mean, float64(j.held) / all
}

// place is a session's prompt in a replica's cache.
type place struct {
	session int
	replica string
}

// journeys are those of all sessions.
type journeys struct {
	last    map[int]string // replica by session
	prompts map[place]int  // the number of the step that took it, 0 = it is there
	moved   []map[int]bool // sessions, by step
	held    int            // sessions on replicas that were harmed, of all steps
}

// harm begins a step that takes what these replicas have.
func (j *journeys) harm(replicas []string) {
	j.moved = append(j.moved, map[int]bool{})
	for x, by := range j.prompts {
		if by == 0 && slices.Contains(replicas, x.replica) {
			j.prompts[x] = len(j.moved)
		}
	}
	for _, id := range j.last {
		if slices.Contains(replicas, id) {
			j.held++
		}
	}
}

// served takes note of a call; during is true while the steps are not over.
func (j *journeys) served(c *Call, cold, during bool) {
	here, before := place{c.Session, c.Replica}, j.last[c.Session]
	if cold && before != "" && before != c.Replica && len(j.moved) > 0 {
		if by := j.prompts[here]; by > 0 {
			j.moved[by-1][c.Session] = true
		} else if during {
			j.moved[len(j.moved)-1][c.Session] = true
		}
	}
	j.last[c.Session], j.prompts[here] = c.Replica, 0
}

// sent is about when a call was sent to the replica that served it: at once, or after another one had cut it.
func sent(c *Call) time.Duration {
	if c.Attempts > 1 {
		return c.End
	}
	return c.Start
}

// cold reports whether a replica had to compute the session's prompt for a call that it served.
func (s *stage) cold(c *Call) bool { return 2*c.Cached < s.PromptTokens }

// byStart are the calls in the order in which they began.
func byStart(calls []Call) []Call {
	return inOrder(calls, func(c *Call) time.Duration { return c.Start })
}

func inOrder(calls []Call, at func(*Call) time.Duration) []Call {
	return slices.SortedFunc(slices.Values(calls), func(a, b Call) int { return cmp.Compare(at(&a), at(&b)) })
}
