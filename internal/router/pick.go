package router

import (
	"context"
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

// Query is Pick for a request that is not sent: it reserves, and leaves no trace in the policy if that has a
// Preview.
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
	if err := (choice{r, q, v, d}).decide(); err != nil {
		return err
	}
	r.reserve(q, v, b, now)
	return nil
}

// reserve charges a reservation with what was decided; now as for choose. Called with mu held.
func (r *Router) reserve(q *policy.Request, v *view, b *Reservation, now time.Time) {
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

// takeBack is withdrawn for a reservation that was not sent: the shadow has chosen for it too.
func (r *Router) takeBack(q *policy.Request, d *policy.Decision) {
	s, x := r.shadow, shadowOf(q)
	shades := s != nil && s.Withdrawn != nil && x != nil && x.decided && x.decision.Replica != nil
	if !d.State().Chosen && !shades {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdrawn(q, d)
	if shades {
		x.decided = false
		s.Withdrawn(&x.request, x.decision)
	}
}

// withdrawn has the policy forget a pick of its Choose that is not used. Called with mu held.
func (r *Router) withdrawn(q *policy.Request, d *policy.Decision) {
	if d.State().Chosen {
		d.State().Chosen = false
		r.own.Withdrawn(q, *d)
	}
}

// charge adds to a replica's book. Called with mu held.
func (r *Router) charge(l *live, ongoing, tokens int64) {
	delta := ongoing<<state.TokenBits + tokens
	l.Book.Add(delta) // quick picks write it too
	if !r.outliers.AllHealthy() {
		r.outliers.Readmit(l.outlier)
	}
}
