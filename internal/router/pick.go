package router

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Pick chooses a replica and reserves the request on it in one step. It never
// waits: with ErrFull every replica that may serve the request is full, and
// b.Decision.WaitFor has those to wait for. On an error b holds nothing.
func (r *Router) Pick(ctx context.Context, q *policy.Request, b *Reservation) error {
	if err := r.pick(ctx, q, b, true); err != nil {
		return err
	}
	r.routed(q, b)
	return nil
}

// Query is Pick for a request that is not sent: it reserves, and leaves no trace in the policy if that is a
// [Previewer].
func (r *Router) Query(ctx context.Context, q *policy.Request, b *Reservation) error {
	return r.query(ctx, q, b, true)
}

func (r *Router) query(ctx context.Context, q *policy.Request, b *Reservation, insists bool) error {
	q.State().Query = true
	defer func() { q.State().Query = false }()
	return r.pick(ctx, q, b, insists)
}

// HasRoom reports whether a replica has room for the request now. A replica that refused a request a moment
// ago counts as full. Nothing stays reserved.
func (r *Router) HasRoom(ctx context.Context, q *policy.Request) bool {
	var b Reservation
	err := r.query(ctx, q, &b, false)
	b.Release()
	return err == nil
}

// pick insists, if it may, where replicas are full by their own word.
func (r *Router) pick(ctx context.Context, q *policy.Request, b *Reservation, insists bool) error {
	r.view.Load().narrow(q)
	if r.prepares {
		r.lockPrepared(ctx, q)
	} else {
		r.mu.Lock()
	}
	defer r.mu.Unlock() // also when the policy panics
	now := r.attend(q)
	v := r.view.Load()
	if len(r.queue.marked) == 0 {
		return r.choose(q, v, b, now)
	}
	r.queue.tick()
	err := r.choose(q, v, b, now)
	for insists && err == ErrFull && r.queue.insist(&b.Decision) { // each time there is a mark less
		err = r.choose(q, v, b, now)
	}
	return err
}

// choose calls the policy, checks its answer, and reserves. Its errors are the
// sentinels themselves; with ErrFull b.Decision has what the request waits for.
// now is the time, or zero where the clock was not read yet. Called with mu held.
func (r *Router) choose(q *policy.Request, v *view, b *Reservation, now time.Time) error {
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

// book charges a reservation with what was decided; now as for choose. Called with mu held.
func (r *Router) book(q *policy.Request, v *view, b *Reservation, now time.Time) {
	d := &b.Decision
	d.State().Plain = q.State().Plain
	if r.shadow != nil {
		r.shadow.choose(q, v, d, r.rollout.off.Load() || q.State().Query)
	}
	l := liveOf(d.Replica)
	book := l.Book.Load()
	d.Load = r.shared.load(&l.Replica, book)
	if r.learns {
		q.State().Ahead = book&state.TokenMask + l.Peer.Load()&state.TokenMask
	}
	if d.Rank() >= max(d.Replica.Ranks, 1) {
		d.SetRank(policy.AnyRank)
	}
	prefill := min(max(int64(q.PromptTokens)-int64(d.MatchedTokens), 0), state.MaxPrefill)
	b.router, b.replica, b.prefill, b.held = r, d.Replica, prefill, true
	r.watch(q, b, l, book, now)
	r.charge(l, 1, prefill)
}

func (r *Router) decide(q *policy.Request, v *view, d *policy.Decision) error {
	v.narrow(q) // for a fleet that has changed since
	q.State().Plain = !r.Decides(q)
	switch {
	case r.queue.closed:
		*d = policy.Decision{}
		return ErrClosed
	case len(v.connected) == 0:
		*d = policy.Decision{}
		return ErrNotConnected
	case q.Pin != "":
		if err := v.pinned(q, d); err != nil {
			return err
		}
		if r.own.route != nil && !q.State().Plain {
			d.MatchedTokens = matched(r.opts.Policy, q, v, d.Replica)
		}
	default:
		q.State().AnyModel = v.anyModel(q)
		if len(r.reports) > 0 {
			r.expire()
		}
		q.State().Keeper = nil
		if len(v.leaving) > 0 {
			q.State().Keeper = r.keeper(q, v)
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
	if q.State().Attempt > 0 {
		because(d, policy.ReasonRetry)
	}
	return nil
}

// ask calls the policy and corrects it.
func (r *Router) ask(q *policy.Request, v *view, d *policy.Decision) error {
	p := r.chooser(q)
	if previewer, ok := p.(policy.Previewer); ok && q.State().Query {
		*d = previewer.Preview(q, v)
	} else {
		*d = p.Choose(q, v)
		d.State().Chosen = r.own.back != nil && d.Replica != nil && !q.State().Plain
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
func (r *Router) corrected(q *policy.Request, v *view, picked *policy.Decision) {
	r.withdrawn(q, picked)
	rep := v.current(picked.Replica)
	if rep != nil && rep.Connected() && v.Allowed(q, rep) {
		return // only full: the request waits for it
	}
	if r.corrections.Add(1) == 1 {
		slog.Warn("warmpath: the policy picks a replica that the request may not be given: the least loaded is taken instead; "+
			"a policy picks among those that View.Available reports (logged once)",
			"policy", fmt.Sprintf("%T", r.chooser(q)), "replica", picked.Replica.ID)
	}
}

// takeBack is withdrawn for a reservation that was not sent: the shadow has chosen for it too.
func (r *Router) takeBack(q *policy.Request, d *policy.Decision) {
	s, x := r.shadow, shadowOf(q)
	shades := s != nil && s.back != nil && x != nil && x.decided && x.decision.Replica != nil
	if !d.State().Chosen && !shades {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdrawn(q, d)
	if shades {
		x.decided = false
		s.back.Withdrawn(&x.request, x.decision)
	}
}

// withdrawn has the policy forget a pick of its Choose that is not used. Called with mu held.
func (r *Router) withdrawn(q *policy.Request, d *policy.Decision) {
	if d.State().Chosen {
		d.State().Chosen = false
		r.own.back.Withdrawn(q, *d)
	}
}

func (v *view) pinned(q *policy.Request, d *policy.Decision) error {
	rep := v.ByID(q.Pin)
	*d = policy.Decision{}
	switch {
	case rep == nil || rep.Draining || excluded(q, rep):
		return ErrNoSuchReplica
	case !rep.Connected():
		return ErrNotConnected
	case rep.Full():
		*d = policy.Wait(rep)
		return ErrFull
	}
	*d = policy.To(rep, policy.ReasonPinned)
	return nil
}

// correct deals with an answer that is not an available replica of this View:
// one that waits, rests on an older View, or breaks the rules. It sees to it
// that no request waits for what has room, or can never have any.
func (v *view) correct(q *policy.Request, d *policy.Decision) error {
	want := d.WaitFor
	if d.Replica != nil {
		rep := v.current(d.Replica)
		if rep != nil && v.Available(q, rep) {
			d.Replica = rep
			return nil
		}
		want = []*policy.Replica{rep} // full, or not to be picked at all
	}
	room, full := v.split(q, want)
	if room == nil && full == nil { // any will do
		room = v.LeastLoaded(q)
	}
	if room != nil {
		*d = policy.To(room, policy.ReasonLeastLoaded)
		return nil
	}
	*d = policy.Wait(full...)
	plain := len(q.Exclude) == 0 && len(q.Allow) == 0 && (q.Model == "" || q.State().AnyModel) && q.State().Keeper == nil && v.shared.outliers.AllHealthy()
	if full != nil || v.open() > 0 && plain {
		return ErrFull
	}
	_, full = v.split(q, v.connected)
	switch len(full) {
	case 0:
		return v.unserved(q)
	case v.open(): // any, after all, unless some of them drain
		if q.State().Keeper != nil || q.State().LastResort {
			d.WaitFor = full
		}
	default:
		d.WaitFor = full
	}
	return ErrFull
}

// split looks at the replicas that a request would wait for: the least loaded that has room
// now, and the full ones whose room it may have later.
func (v *view) split(q *policy.Request, want []*policy.Replica) (room *policy.Replica, full []*policy.Replica) {
	for _, rep := range want {
		if rep != nil {
			rep = v.current(rep)
		}
		switch {
		case rep == nil || !rep.Connected() || !v.Allowed(q, rep):
		case rep.Full():
			full = append(full, rep)
		case room == nil || v.Load(rep) < v.Load(room):
			room = rep
		}
	}
	return room, full
}

// unserved is the reason why no connected replica may serve the request.
func (v *view) unserved(q *policy.Request) error {
	for _, rep := range v.fleet.replicas {
		if v.Allowed(q, rep) {
			return ErrNotConnected
		}
	}
	return ErrNoSuchReplica
}

// charge adds to a replica's book. Called with mu held.
func (r *Router) charge(l *live, ongoing, tokens int64) {
	delta := ongoing<<state.TokenBits + tokens
	l.Book.Add(delta) // quick picks write it too
	if !r.outliers.AllHealthy() {
		r.outliers.Readmit(l.outlier)
	}
}

// because gives a reason of the Router's and keeps the policy's own as the rule.
func because(d *policy.Decision, why policy.Reason) {
	if d.Reason != policy.ReasonRetry {
		d.Rule = d.Reason
	}
	d.Reason = why
}
