package routing

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// Pick chooses a replica and books the request on it in one step. It never
// waits: ErrFull says that every replica that may serve the request is full, and
// b.Decision.WaitFor which. On an error b holds nothing.
func (r *Router) Pick(ctx context.Context, q *Request, b *Booking) error {
	if err := r.pick(ctx, q, b, true); err != nil {
		return err
	}
	r.routed(q, b)
	return nil
}

// Query is Pick for a request that is not sent: it books, and leaves no trace in the policy if that is a [Previewer].
func (r *Router) Query(ctx context.Context, q *Request, b *Booking) error {
	return r.query(ctx, q, b, true)
}

func (r *Router) query(ctx context.Context, q *Request, b *Booking, insists bool) error {
	q.query = true
	defer func() { q.query = false }()
	return r.pick(ctx, q, b, insists)
}

// HasRoom reports whether a replica has room for the request now. A replica that refused a request a moment
// ago counts as full. Nothing stays booked.
func (r *Router) HasRoom(ctx context.Context, q *Request) bool {
	var b Booking
	err := r.query(ctx, q, &b, false)
	b.Release()
	return err == nil
}

// pick insists, if it may, where replicas are full by their own word.
func (r *Router) pick(ctx context.Context, q *Request, b *Booking, insists bool) error {
	q.narrow(r.view.Load())
	if r.prepares {
		r.lockPrepared(ctx, q)
	} else {
		r.mu.Lock()
	}
	defer r.mu.Unlock() // also when the policy panics
	now := r.attend(q)
	v := r.view.Load()
	if len(r.marked) == 0 {
		return r.choose(q, v, b, now)
	}
	r.tick(v)
	err := r.choose(q, v, b, now)
	for insists && err == ErrFull && r.insist(&b.Decision) { // each time there is a mark less
		err = r.choose(q, v, b, now)
	}
	return err
}

// choose asks the policy, checks its answer, and books. Its errors are the
// sentinels themselves; with ErrFull b.Decision says whom the request waits for.
// now is the time, or zero where the clock was not read yet. Called with mu held.
func (r *Router) choose(q *Request, v *View, b *Booking, now time.Time) error {
	if b.held {
		return ErrHeld
	}
	d := &b.Decision
	if err := r.decide(q, v, d); err != nil {
		return err
	}
	r.book(q, v, b, now)
	return nil
}

// book charges a booking with what was decided; now as for choose. Called with mu held.
func (r *Router) book(q *Request, v *View, b *Booking, now time.Time) {
	d := &b.Decision
	d.unasked = q.unasked
	if r.shadow != nil {
		r.shadow.choose(q, v, d, r.off.Load() || q.query)
	}
	l := d.Replica.live
	book := l.book.Load()
	d.Load = r.shared.load(l, book)
	if r.learns {
		q.ahead = book&tokenMask + l.foreign.Load()&tokenMask
	}
	if d.Rank() >= max(d.Replica.Ranks, 1) {
		d.rank = 0
	}
	prefill := min(max(int64(q.PromptTokens)-int64(d.MatchedTokens), 0), maxPrefill)
	b.router, b.replica, b.prefill, b.held = r, d.Replica, prefill, true
	r.watch(q, b, l, book, now)
	r.charge(l, 1, prefill)
}

func (r *Router) decide(q *Request, v *View, d *Decision) error {
	q.narrow(v) // for a fleet that has changed since
	q.unasked = !r.Decides(q)
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
		if r.routeObs != nil && !q.unasked {
			d.MatchedTokens = matched(r.opts.Policy, q, v, d.Replica)
		}
	default:
		q.anyModel = v.anyModel(q)
		if len(r.reports) > 0 {
			r.expire()
		}
		q.keeper = nil
		if len(v.leaving) > 0 {
			q.keeper = r.keeper(q, v)
		}
		if err := r.ask(q, v, d); err != nil {
			if r.outliers.AllHealthy() && len(v.leaving) == 0 {
				return err
			}
			if err := r.askAll(q, v, d); err != nil {
				return err
			}
		}
	}
	if q.attempt > 0 {
		d.because(ReasonRetry)
	}
	return nil
}

// ask asks the policy and corrects it.
func (r *Router) ask(q *Request, v *View, d *Decision) error {
	p := r.chooser(q)
	if previewer, ok := p.(Previewer); ok && q.query {
		*d = previewer.Preview(q, v)
	} else {
		*d = p.Choose(q, v)
		d.chosen = r.backObs != nil && d.Replica != nil && !q.unasked
	}
	if d.Replica == nil || v.current(d.Replica) != d.Replica || !v.Available(q, d.Replica) {
		picked := *d
		err := v.correct(q, d)
		if picked.Replica != nil && (err != nil || d.Replica.ID != picked.Replica.ID) {
			r.corrected(q, v, &picked)
		}
		return err
	}
	return nil
}

// corrected notes that a pick of the policy is not used. Called with mu held.
func (r *Router) corrected(q *Request, v *View, picked *Decision) {
	r.withdrawn(q, picked)
	rep := v.current(picked.Replica)
	if rep != nil && rep.Connected() && v.allowed(q, rep) {
		return // only full: the request waits for it
	}
	if r.corrections.Add(1) == 1 {
		slog.Warn("warmpath: the policy picks a replica that the request may not be given: the least loaded is taken instead; "+
			"a policy picks among those that View.Available reports (logged once)",
			"policy", fmt.Sprintf("%T", r.chooser(q)), "replica", picked.Replica.ID)
	}
}

// takeBack is withdrawn for a booking that was not sent: the shadow has chosen for it too.
func (r *Router) takeBack(q *Request, d *Decision) {
	s, x := r.shadow, q.shade
	shades := s != nil && s.backObs != nil && x != nil && x.decided && x.decision.Replica != nil
	if !d.chosen && !shades {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdrawn(q, d)
	if shades {
		x.decided = false
		s.backObs.Withdrawn(&x.request, x.decision)
	}
}

// withdrawn has the policy forget a pick of its Choose that is not used. Called with mu held.
func (r *Router) withdrawn(q *Request, d *Decision) {
	if d.chosen {
		d.chosen = false
		r.backObs.Withdrawn(q, *d)
	}
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
	plain := len(q.Exclude) == 0 && len(q.Allow) == 0 && (q.Model == "" || q.anyModel) && q.keeper == nil && v.shared.outliers.AllHealthy()
	if full != nil || v.open() > 0 && plain {
		return ErrFull
	}
	_, full = v.whom(q, v.connected)
	switch len(full) {
	case 0:
		return v.nobody(q)
	case v.open(): // anyone, after all, unless some of them drain
		if q.keeper != nil || q.lastResort {
			d.WaitFor = full
		}
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
	l.book.Add(delta) // quick picks write it too
	if !r.outliers.AllHealthy() {
		r.outliers.Readmit(l.outlier)
	}
}
