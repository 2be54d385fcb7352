package routing

import "context"

// Pick chooses a replica and books the request on it in one step. It never
// waits: ErrFull says that every replica that may serve the request is full, and
// b.Decision.WaitFor which. On an error b holds nothing.
func (r *Router) Pick(ctx context.Context, q *Request, b *Booking) error {
	if err := r.pick(ctx, q, b); err != nil {
		return err
	}
	r.routed(q, b)
	return nil
}

func (r *Router) pick(ctx context.Context, q *Request, b *Booking) error {
	if r.prepares {
		r.lockPrepared(ctx, q)
	} else {
		r.mu.Lock()
	}
	defer r.mu.Unlock() // also when the policy panics
	return r.choose(q, r.view.Load(), b)
}

// choose asks the policy, checks its answer, and books. Its errors are the
// sentinels themselves; with ErrFull b.Decision says whom the request waits for.
// Called with mu held.
func (r *Router) choose(q *Request, v *View, b *Booking) error {
	if b.held {
		return ErrHeld
	}
	d := &b.Decision
	if err := r.decide(q, v, d); err != nil {
		return err
	}
	l := d.Replica.live
	book := l.book.Load()
	d.Load = r.shared.load(l, book)
	prefill := min(max(int64(q.PromptTokens)-int64(d.MatchedTokens), 0), maxPrefill)
	b.router, b.replica, b.prefill, b.held = r, d.Replica, prefill, true
	r.charge(l, 1, prefill)
	return nil
}

func (r *Router) decide(q *Request, v *View, d *Decision) error {
	switch {
	case r.closed:
		*d = Decision{}
		return ErrClosed
	case len(v.connected) == 0:
		*d = Decision{}
		return ErrNotConnected
	case q.Pin != "":
		if err := v.pinned(q, d); err != nil {
			return err
		}
	default:
		q.anyModel = v.anyModel(q)
		if !r.keepsSum {
			r.keepSum(v)
		}
		*d = r.opts.Policy.Choose(q, v)
		if d.Replica == nil || v.current(d.Replica) != d.Replica || !v.Available(q, d.Replica) {
			if err := v.correct(q, d); err != nil {
				return err
			}
		}
	}
	if q.attempt > 0 {
		d.because(ReasonRetry)
	}
	return nil
}

func (v *View) pinned(q *Request, d *Decision) error {
	rep := v.ByID(q.Pin)
	*d = Decision{}
	switch {
	case rep == nil || rep.Draining || q.excluded(rep):
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		*d = Wait(rep)
		return ErrFull
	}
	*d = To(rep, ReasonPinned)
	return nil
}

// correct deals with an answer that is not an available replica of this View:
// one that waits, rests on an older View, or breaks the rules. It sees to it
// that nobody waits for what has room, or can never have any.
func (v *View) correct(q *Request, d *Decision) error {
	want := d.WaitFor
	if d.Replica != nil {
		rep := v.current(d.Replica)
		if rep != nil && v.Available(q, rep) {
			d.Replica = rep
			return nil
		}
		want = []*Replica{rep} // full, or not to be picked at all
	}
	room, full := v.whom(q, want)
	if room == nil && full == nil { // anyone
		room = v.LeastLoaded(q)
	}
	if room != nil {
		*d = To(room, ReasonLeastLoaded)
		return nil
	}
	*d = Wait(full...)
	if full != nil || v.open > 0 && len(q.Exclude) == 0 && (q.Model == "" || q.anyModel) {
		return ErrFull
	}
	_, full = v.whom(q, v.connected)
	switch len(full) {
	case 0:
		return v.nobody(q)
	case v.open: // anyone, after all
	default:
		d.WaitFor = full
	}
	return ErrFull
}

// whom looks at those a request would wait for: the least loaded that has room
// now, and the full ones whose room it may have later.
func (v *View) whom(q *Request, want []*Replica) (room *Replica, full []*Replica) {
	for _, rep := range want {
		if rep != nil {
			rep = v.current(rep)
		}
		switch {
		case rep == nil || !rep.Connected() || !v.allowed(q, rep):
		case rep.Full():
			full = append(full, rep)
		case room == nil || v.Load(rep) < v.Load(room):
			room = rep
		}
	}
	return room, full
}

// nobody says why no connected replica may serve the request.
func (v *View) nobody(q *Request) error {
	for _, rep := range v.fleet.replicas {
		if v.allowed(q, rep) {
			return ErrNotConnected
		}
	}
	return ErrNoSuchReplica
}

// charge adds to a replica's book. Called with mu held.
func (r *Router) charge(l *live, ongoing, tokens int64) {
	delta := ongoing<<tokenBits + tokens
	book := l.book.Add(delta) // quick picks write it too
	if r.keepsSum && l.connected.Load() {
		r.shared.loadSum.Add(r.shared.fixed(l, book) - r.shared.fixed(l, book-delta))
	}
}

// keepSum counts the sum of the loads anew if somebody wants it. Called with mu held.
func (r *Router) keepSum(v *View) {
	if r.shared.slow.Load()&sumWanted != 0 {
		r.shared.loadSum.Store(v.sumLoads())
		r.shared.sumKept.Store(true)
		r.keepsSum = true
	}
}
