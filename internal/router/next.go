package router

import "github.com/warmpath/warmpath/balancer/policy"

// matched returns the prompt tokens that a policy predicts to be cached on a replica that it did not choose itself, 0
// for a policy that has no Preview. Called with the Router's mutex held.
func matched(p *policy.Policy, q *policy.Request, v *view, r *policy.Replica) int {
	if p.Preview == nil || q.PromptTokens == 0 {
		return 0
	}
	only := *q
	only.Pin, only.Allow, only.Exclude = "", []string{r.ID}, nil
	only.State().Sets = nil
	if d := p.Preview(&only, v); d.Replica == r {
		return d.MatchedTokens
	}
	return 0
}

// Next appends the decisions for a request that has a reservation, if that replica and
// those before were not there: n decisions, or as many as there are available replicas
// that it may use, best first. The order is the policy's, or Options.Plain's where that
// decided, if it has a Preview, and behind that, and for any other policy, that of the
// loads. Nothing is reserved. A pinned request has no other replica. The cost is that of n
// times Choose, whatever the request excludes; the Router's lock is free between two of
// them, so that others can pick.
func (r *Router) Next(q *policy.Request, booked *policy.Replica, n int, to []policy.Decision) []policy.Decision {
	if q.Pin != "" || n <= 0 {
		return to
	}
	p := r.Rollout.policy(q)
	own := q.Exclude
	q.Exclude, q.State().Sets = append(append(make([]string, 0, len(own)+n+1), own...), booked.ID), nil
	defer func() { q.Exclude, q.State().Sets = own, nil }()
	for range n {
		d := next(r, q, p)
		if d.Replica == nil {
			break
		}
		q.Exclude = append(q.Exclude, d.Replica.ID)
		to = append(to, d)
	}
	return to
}

// next returns a decision without replica if none is available.
func next(r *Router, q *policy.Request, p *policy.Policy) policy.Decision {
	r.view.Load().narrow(q)
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics
	if r.queue.closed {
		return policy.Decision{}
	}
	v := r.view.Load()
	v.narrow(q) // for a fleet that has changed since
	return v.next(q, p)
}

// next returns a decision without replica if none is available. Called with the
// Router's mutex held.
func (v *view) next(q *policy.Request, p *policy.Policy) policy.Decision {
	if p.Preview != nil {
		d := p.Preview(q, v)
		if d.Replica != nil {
			d.Replica = v.current(d.Replica)
		}
		if d.Replica != nil && v.Available(q, d.Replica) {
			return d
		}
	}
	if r := v.LeastLoaded(q); r != nil {
		return policy.To(r, policy.ReasonLeastLoaded)
	}
	return policy.Decision{}
}
