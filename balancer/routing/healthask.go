package routing

// askAll asks again with those that are passed over as long as there are others: those that are starting slowly and, where
// nobody else could ever serve the request, those that say that they drain, and then those that are ejected. Called with
// mu held.
func (r *Router) askAll(q *Request, v *View, d *Decision) error {
	err := r.askWith(q, v, d, Warming)
	if err == nil || err == ErrFull {
		return err
	}
	q.lastResort = true
	defer func() { q.lastResort = false }()
	if err = r.askWith(q, v, d, Warming); err == nil || err == ErrFull {
		return err
	}
	return r.askWith(q, v, d, Ejected)
}

func (r *Router) askWith(q *Request, v *View, d *Decision, most Condition) error {
	for _, rep := range v.connected {
		if h := &rep.live.health; h.unwell() && h.condition() <= most {
			rep.live.set(barred, false)
		}
	}
	defer func() {
		for _, rep := range v.connected {
			r.rebar(rep.live)
		}
	}()
	return r.ask(q, v, d)
}
