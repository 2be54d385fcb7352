package routing

// A Previewer is a Policy that can say what Choose would answer, and leave nothing
// behind: no turn is taken, nothing is noted. Preview is called like Choose, after it,
// for the same request, with those excluded that are known already, and for a request
// that Choose was not asked about, with one replica allowed, for the tokens matched there.
type Previewer interface {
	Preview(q *Request, v *View) Decision
}

// matched returns the prompt tokens that a policy predicts to be cached on a replica that it did not choose itself, 0
// for a policy that is no Previewer. Called with the Router's mutex held.
func matched(p Policy, q *Request, v *View, r *Replica) int {
	previewer, ok := p.(Previewer)
	if !ok || q.PromptTokens == 0 {
		return 0
	}
	only := *q
	only.Pin, only.Allow, only.Exclude, only.narrowed = "", []string{r.ID}, nil, nil
	if d := previewer.Preview(&only, v); d.Replica == r {
		return d.MatchedTokens
	}
	return 0
}

// Next appends to to whom a request would go that was booked on a replica, if that and
// those before were not there: n decisions, or as many as there are available replicas
// that it may use, best first. The order is the policy's, or Options.Plain's where that
// decided, if it is a [Previewer], and behind that, and for any other policy, that of the
// loads. Nothing is booked. A pinned request has no other replica. The cost is that of n
// times Choose, whatever the request excludes; the Router's lock is free between two of
// them, so that others can pick.
func (r *Router) Next(q *Request, booked *Replica, n int, to []Decision) []Decision {
	if q.Pin != "" || n <= 0 {
		return to
	}
	previewer, _ := r.chooser(q).(Previewer)
	own := q.Exclude
	q.Exclude, q.narrowed = append(append(make([]string, 0, len(own)+n+1), own...), booked.ID), nil
	defer func() { q.Exclude, q.narrowed = own, nil }()
	for range n {
		d := r.next(q, previewer)
		if d.Replica == nil {
			break
		}
		q.Exclude = append(q.Exclude, d.Replica.ID)
		to = append(to, d)
	}
	return to
}

// next returns a decision without replica if nobody is available.
func (r *Router) next(q *Request, previewer Previewer) Decision {
	q.narrow(r.view.Load())
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics
	if r.closed {
		return Decision{}
	}
	v := r.view.Load()
	q.narrow(v) // for a fleet that has changed since
	return v.next(q, previewer)
}

// next returns a decision without replica if nobody is available. Called with the
// Router's mutex held.
func (v *View) next(q *Request, previewer Previewer) Decision {
	if previewer != nil {
		d := previewer.Preview(q, v)
		if d.Replica != nil {
			d.Replica = v.current(d.Replica)
		}
		if d.Replica != nil && v.Available(q, d.Replica) {
			return d
		}
	}
	if r := v.LeastLoaded(q); r != nil {
		return To(r, ReasonLeastLoaded)
	}
	return Decision{}
}
