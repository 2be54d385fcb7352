package router

import (
	"context"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A How is how a request is reserved. The zero value waits in the queue while every replica that the request may use
// is full.
type How struct {
	// NoWait returns ErrFull instead; the Decision's WaitFor has the replicas that the request would wait for. Where
	// they are full by their own refusal only, it is sent to one of them.
	NoWait bool
	// Query is NoWait for a request that is not sent: it leaves no trace in a policy that has a Preview, and a
	// replica that refused a request a moment ago counts as full.
	Query bool
	// Backoff is for a request that a full replica refused: it waits in the queue, and may be served there once the
	// backoff has passed. 0 = it was not refused.
	Backoff time.Duration
	// Assigned is what a look-aside server decided, in the place of the policy; nil = nothing. It does not wait.
	Assigned *Assigned
	// Legs is for a request that may be sent in two legs; nil = it is served whole.
	Legs *Legs
	// Ticket is for a host that blocks no goroutine: where the request has to wait, it is the request's place in the
	// queue, and Reserve returns ErrQueued. Then either Take or GiveUp is called, once. nil = Reserve waits.
	Ticket *Ticket
}

// An Assigned is the decision of a look-aside server. The policy learns the route as it does its own, if the request
// was prepared.
type Assigned struct {
	Replica  string          // its id
	Decision policy.Decision // but for the replica
	Prefill  *Assigned       // of the prefill leg; nil = the request is not split
}

// Reserve chooses a replica and reserves the request on it in one step. On an error b holds nothing:
//
//   - ErrFull, where the request does not wait;
//   - ErrNotConnected, without waiting or from the queue, when no replica is connected that could ever serve it;
//   - ErrConnecting, likewise, while one that could is being connected for the first time;
//   - ErrNoSuchReplica, when none of the fleet may serve it;
//   - ErrClosed;
//   - a *WaitError, when the context ends first, or for ErrQueueFull: too many wait, or it made room for a request of
//     higher priority.
func (r *Router) Reserve(ctx context.Context, q *policy.Request, b *Reservation, how How) error {
	if how.Assigned == nil {
		r.Prepare(ctx, q)
	}
	if part.OfRequest(q).Legs = nil; how.Legs != nil {
		r.prefiller.split(ctx, q, &how)
	}
	narrow(q)
	w, err := r.reserve(ctx, q, b, &how)
	switch {
	case w == nil && err == nil && !how.Query:
		r.routed(q, b)
		return nil
	case w == nil:
		return err
	case how.Ticket != nil:
		*how.Ticket = Ticket{r, w}
		return ErrQueued
	}
	t := Ticket{r, w}
	if how.Backoff > 0 {
		defer r.opts.AfterFunc(how.Backoff, t.backedOff)()
	}
	return t.wait(ctx)
}

// reserve reserves at once, or puts the request into the queue. One that was refused is only put there, where it waits
// for no replica until its backoff has passed.
func (r *Router) reserve(ctx context.Context, q *policy.Request, b *Reservation, how *How) (*waiter, error) {
	u, s, waits := &r.queue, part.OfRequest(q), !how.NoWait && !how.Query && how.Assigned == nil
	s.Query = how.Query
	comes, watched := waits && s.QueuedAt != r.number, s.Answer != state.AnswerUnseen || !r.outliers.AllHealthy()
	var now time.Time // the clock is read where that is of use
	if comes || watched {
		now = r.opts.Now()
	}
	r.mu.Lock()
	if how.Assigned == nil && !r.prepared(q, r.view.Load().whole) { // the fleet has changed meanwhile
		r.mu.Unlock()
		r.Prepare(ctx, q)
		r.mu.Lock()
	}
	defer r.mu.Unlock() // also when the policy panics
	if comes {
		u.number(s, now)
	}
	if watched {
		r.outliers.Look(now)
	}
	if r.Health.stale() { // those that wait choose first
		r.Health.force()
	}
	if !u.marked.IsZero() {
		u.tick()
	}
	switch {
	case how.Assigned != nil:
		return nil, r.choose(q, b, how.Assigned, now)
	case how.Backoff > 0 && !u.closed:
		return u.add(q, b)
	}
	err := r.choose(q, b, nil, now)
	for how.NoWait && err == ErrFull && u.insist(&b.Decision) { // each time there is a mark less
		err = r.choose(q, b, nil, now)
	}
	if err != ErrFull || !waits {
		return nil, err
	}
	w, err := u.add(q, b)
	if err != nil {
		return nil, err
	}
	u.stand(w, true)
	if u.room(w) { // a release may have made it before it saw the waiter
		u.again(w)
	}
	u.arm()
	return w, nil
}

// charged charges a reservation with what was decided; ahead is the work of an earlier leg, now as for choose. Called
// with mu held.
func (r *Router) charged(q *policy.Request, v *view, b *Reservation, ahead float64, now time.Time) (work float64) {
	d, is := &b.Decision, part.OfRequest(q)
	decided := part.OfDecision(d)
	decided.Plain = is.Plain
	if is.Attempt > 0 {
		because(d, policy.ReasonRetry)
	}
	if r.shadow != nil || is.Shadow != nil {
		r.shade(q, v, d)
	}
	l := liveOf(d.Replica)
	book := l.Book.Load()
	all := book + l.Peer.Load()
	d.Load, is.Ahead = r.Load.Of(&l.Replica, book), all&state.TokenMask
	if d.Rank() >= max(d.Replica.Ranks, 1) {
		d.SetRank(policy.AnyRank)
	}
	prefill := min(max(int64(q.PromptTokens)-int64(max(d.MatchedTokens, d.ExpectedTokens)), 0), state.MaxPrefill)
	if decided.Decode {
		prefill = 0
	}
	b.router = r
	if b.shows = false; prefill > 0 && is.Answer != state.AnswerWhole && l.Book.Waits.Load() == 0 {
		if now.IsZero() {
			now = r.opts.Now()
		}
		b.shows = l.Book.Waits.CompareAndSwap(0, now.UnixNano())
	}
	b.prefill.Store(prefill)
	// Requests under way are work too: a replica that is given more than others is not late for it.
	work = ahead + float64(prefill+is.Ahead+load.Overhead*(all>>state.TokenBits+1))
	l.Book.Add(1<<state.TokenBits + prefill)
	r.outliers.Begin(&b.attempt, l.outlier, is.Answer, work, q.Principal, now)
	is.Mark, decided.Probe = &b.attempt.Mark, b.attempt.Probe
	b.held.Store(true)
	return work
}

// takeBack is withdrawn for a reservation that was not sent.
func (r *Router) takeBack(own *policy.Observer, q *policy.Request, d *policy.Decision) {
	if !part.OfDecision(d).Chosen {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	withdrawn(own, q, d)
}

// withdrawn has the policy forget a pick of its Choose that is not used. Called with the Router's mutex held.
func withdrawn(o *policy.Observer, q *policy.Request, d *policy.Decision) {
	if s := part.OfDecision(d); s.Chosen {
		s.Chosen = false
		o.Withdrawn(q, *d)
	}
}

// PromptHashes returns the hashed blocks of a request that was prepared, nil where the policy has made none.
func (r *Router) PromptHashes(q *policy.Request) *policy.Hashed {
	b, ok := q.Prepared.(blocks)
	if !ok || part.OfRequest(q).Prepared != r.number || q.Pin != "" {
		return nil
	}
	return b.Hashed()
}

// matched returns the prompt tokens that a policy predicts to be cached on a replica that it did not choose itself, 0
// for a policy that has no Preview. Called with the Router's mutex held.
func matched(p *policy.Policy, q *policy.Request, v *view, r *policy.Replica) int {
	if p.Preview == nil || q.PromptTokens == 0 {
		return 0
	}
	only := *q
	only.Pin, only.Allow, only.Exclude = "", []string{r.ID}, nil
	part.OfRequest(&only).Sets = nil
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
func (r *Router) Next(q *policy.Request, reserved *policy.Replica, n int, to []policy.Decision) []policy.Decision {
	if q.Pin != "" || n <= 0 {
		return to
	}
	own := q.Exclude
	s := part.OfRequest(q)
	q.Exclude, s.Sets = append(append(make([]string, 0, len(own)+n+1), own...), reserved.ID), nil
	defer func() { q.Exclude, s.Sets = own, nil }()
	for range n {
		narrow(q)
		d := r.next(q)
		if d.Replica == nil {
			break
		}
		q.Exclude = append(q.Exclude, d.Replica.ID)
		to = append(to, d)
	}
	return to
}

// narrow makes the sets of long lists before the lock is taken, so that no choice has to.
func narrow(q *policy.Request) {
	if s := part.OfRequest(q); len(q.Exclude)+len(q.Allow)+len(s.Tried) > 0 {
		s.Excludes(q.Exclude, q.Allow, "")
		s.HasTried("")
	}
}

// next returns a decision without replica if none is available.
func (r *Router) next(q *policy.Request) (d policy.Decision) {
	r.mu.Lock()
	defer r.mu.Unlock() // also when the policy panics
	v, preview := r.view.Load().whole, r.opts.Policy.Preview
	if part.OfRequest(q).Plain {
		preview = r.opts.Plain.Preview
	}
	switch {
	case r.queue.closed:
		return d
	case preview != nil:
		d = preview(q, v)
	}
	if d.Replica != nil {
		d.Replica = v.byID(d.Replica.ID)
	}
	if d.Replica != nil && v.Available(q, d.Replica) {
		return d
	}
	if rep := v.LeastLoaded(q); rep != nil {
		return policy.To(rep, policy.ReasonLeastLoaded)
	}
	return policy.Decision{}
}
