package router

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/router/part"
)

// A Router hosts one policy over one fleet: it picks and reserves. Safe for use by
// many goroutines.
type Router struct {
	number uint64 // random; set once
	// lineage is that of the Routers that this one has replaced, and its own. It is set before the fleet is.
	lineage *lineage
	// view is replaced under mu and read without it.
	view atomic.Pointer[view]

	// Fleet is the membership, and the connections.
	Fleet Fleet
	// Health puts what outlier detection finds into force.
	Health Health
	// Rollout is which part of the requests the policy decides.
	Rollout Rollout
	// Routes shares where prompts were prefilled.
	Routes Routes
	// Counts are of the life of the Router.
	Counts Counts
	// Decisions are the sums that a look-aside server is sent. The host counts what it does not decide elsewhere.
	Decisions Decisions
	// Load is what is under way on the replicas, of other clients above all.
	Load *load.Tracker

	opts      Options
	uses      policy.Uses // of the policy and its shadow
	prepares  bool
	own       policy.Observer    // of the policy
	observers []*policy.Observer // own, and that of the shadow
	gate      gate
	lengths   lengths
	shadow    *shadow // nil = none
	prefiller prefiller

	// mu makes choosing and reserving one step; what a reservation holds is given back
	// without it. It guards the queue, the randomness, and all below. It is held while the policy's Choose and
	// FleetChanged run, and no other lock of warmpath is taken before it but
	// a host's own.
	mu    sync.Mutex
	queue queue

	outliers *outlier.Detector // its lock may be taken under mu
}

// Counts are what went wrong in the life of a Router.
type Counts struct {
	// Corrections are the picks of a replica that the request may not be given, whether or not it waits. The Router
	// replaced them.
	Corrections    atomic.Int64
	PrepareErrors  atomic.Int64 // of the policy's Prepare
	TokenizeErrors atomic.Int64 // of the Tokenizer
}

// NewRouter returns a Router over an empty fleet.
func NewRouter(o Options) (*Router, error) {
	if o.Policy.Choose == nil {
		return nil, errors.New("router: Options.Policy has no Choose")
	}
	o = o.withDefaults()
	r := &Router{number: rand.Uint64(), opts: o, own: o.Policy.Observer, uses: o.Policy.Uses | o.Shadow.Uses}
	r.lineage = new(lineage)
	r.lineage.latest.Store(r)
	r.Health.router, r.Rollout.router, r.queue.router = r, r, r
	r.Fleet = Fleet{router: r, known: make(map[string]*live)}
	r.prefiller.router, r.prefiller.build = r, o.Prefill
	if r.gate.closers = closersOf(&o); o.Policy.Close != nil {
		r.gate.closers = append(r.gate.closers, r.prefiller.close)
	}
	r.observers = []*policy.Observer{&r.own}
	if o.Shadow.Choose != nil {
		r.shadow = &shadow{o.Shadow}
		r.observers = append(r.observers, &r.shadow.Observer)
	}
	r.prepares = o.Policy.Prepare != nil || o.Shadow.Prepare != nil
	r.outliers = newDetector(&o)
	r.Load = load.New(o.Now)
	if o.DrainGrace > 0 && r.uses&policy.UsesSession != 0 {
		r.Fleet.sessions = new(sessions)
	}
	if own := o.Policy.IndexStats; own != nil {
		r.opts.Policy.IndexStats = func() policy.IndexStats { return r.prefiller.indexStats(own()) }
	}
	r.Routes.index = r.own.CacheChanged != nil && r.own.Routed != nil
	r.view.Store(newView(r, 0))
	return r, nil
}

// newDetector returns the outlier detection of a Router: without slow start where that would move keys twice.
func newDetector(o *Options) *outlier.Detector {
	ejection := o.Ejection
	if ejection != nil && o.Policy.Uses&policy.SharesByKey != 0 {
		own := *ejection
		own.SlowStart = policy.Off
		ejection = &own
	}
	return outlier.New(ejection, o.Now)
}

// Policy returns the Router's policy.
func (r *Router) Policy() policy.Policy { return r.opts.Policy }

// Uses returns what the policy looks at, its shadow, and a Rollout.
func (r *Router) Uses() policy.Uses {
	switch {
	case r.Rollout.percentage.Load() == nil:
		return r.uses
	case r.Rollout.off():
		return 0
	}
	return r.uses | policy.UsesSession
}

// Observes reports whether how calls end is of use: whether Complete
// does anything.
func (r *Router) Observes() bool {
	return r.own.Completed != nil || r.own.Withdrawn != nil || r.uses&policy.UsesLoad != 0 || r.outliers.Ejects() || r.shadow != nil
}

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.queue.waiters)
}

// View returns the current snapshot of the fleet.
func (r *Router) View() policy.View { return r.view.Load() }

// prepared reports whether there is nothing to prepare for a view.
func (r *Router) prepared(q *policy.Request, v *view) bool {
	s := part.OfRequest(q)
	return !r.prepares || len(v.replicas) == 0 || s.Prepared == r.number && s.Epoch == v.epoch
}

// Prepare does the part of a pick that needs no lock. A host calls it before
// Reserve so that the work is done off the picker; it does so
// itself for a request that is not prepared, or was for an older fleet.
func (r *Router) Prepare(ctx context.Context, q *policy.Request) {
	v, s := r.view.Load().whole, part.OfRequest(q)
	r.lengths.count(q)
	if r.prepared(q, v) || !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	if s.Prepared != r.number {
		s.Prepared, q.Prepared, s.Tokenized = r.number, nil, false // another policy's is of no use
	}
	s.Epoch, s.AnyModel = v.epoch, v.anyModel(q)
	// A pinned request is where its route is observed.
	decides := r.opts.Policy.Prepare != nil && (q.Pin == "" || r.own.Routed != nil) && r.Rollout.Decides(q)
	shades := r.shadow != nil && r.shades() && (q.Pin == "" || r.shadow.Observer.Routed != nil)
	if !decides && !shades {
		return
	}
	if r.opts.Tokenizer != nil && r.uses&policy.UsesPrompt != 0 && !s.Tokenized {
		r.tokenize(ctx, q)
	}
	if decides {
		r.ready(ctx, &r.opts.Policy, q, v)
	}
	if shades {
		x := r.shadow.sees(q, v)
		defer x.done()
		r.ready(ctx, &r.shadow.Policy, &x.request, v)
	}
}

// ready calls the Prepare of a policy, if it has one: with a deadline where it calls out.
func (r *Router) ready(ctx context.Context, p *policy.Policy, q *policy.Request, v *view) {
	if p.Uses&policy.CallsOut != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.PrepareTimeout)
		defer cancel()
	}
	if p.Prepare != nil && p.Prepare(ctx, q, v) != nil {
		r.Counts.PrepareErrors.Add(1)
	}
}

// tokenize replaces the text of a prompt by its tokens, once for a request.
func (r *Router) tokenize(ctx context.Context, q *policy.Request) {
	if q.Prompt.Text == "" || len(q.Prompt.Tokens) > 0 {
		return
	}
	part.OfRequest(q).Tokenized = true
	tokens, err := r.opts.Tokenizer.Tokenize(ctx, q)
	if err != nil {
		r.Counts.TokenizeErrors.Add(1)
	}
	if len(tokens) > 0 {
		q.SetPrompt(policy.Prompt{Tokens: tokens})
		part.OfRequest(q).TextBytes = 0
	}
}

// Complete passes to the policy how a call with a reservation ended, if it observed the
// route, and learns the replica's rate from it. d is the Decision of the reservation. The
// host calls it once per reservation, after Release or before, or Reservation.Withdraw in its
// place. After Close it does nothing.
func (r *Router) Complete(q *policy.Request, d policy.Decision, o policy.Outcome) {
	if d.Replica == nil {
		return
	}
	own, decided := &r.own, part.OfDecision(&d)
	if l := decided.Prefill; l != nil {
		x := l.Owner.(*legs)
		q, own = &x.request, x.observer
	}
	r.lengths.learn(q, o.Usage)
	if r.uses&policy.UsesLoad != 0 && !decided.Decode {
		r.Load.Learn(q, &d, &o)
	}
	r.outliers.Ended(liveOf(d.Replica).outlier, part.OfRequest(q).Mark, &o)
	r.Health.Sync()
	if !o.Sent {
		r.takeBack(own, q, &d)
	}
	if o.Prefilled() {
		r.Routes.send(&d)
	}
	if r.gate.enter() {
		defer r.gate.leave()
		if own.Completed != nil && decided.Observed {
			own.Completed(q, d, o)
		}
		if r.shadow != nil {
			r.shadow.completed(q, o)
		}
	}
}

// routed notes the reservations that a call got.
func (r *Router) routed(q *policy.Request, b *Reservation) {
	if q.Session != "" {
		r.Fleet.sessions.note(q, liveOf(b.Decision.Replica))
	}
	if first := b.Decision.Home; first != nil {
		if home := part.OfReplica(first); home != nil { // else the policy made it up
			home.Book.Homes.Add(1)
			if b.Decision.Reason == policy.ReasonRendezvousSpill {
				home.Book.Spilled.Add(1)
			}
		}
	}
	if r.gate.enter() {
		defer r.gate.leave()
		r.observe(&r.own, q, &b.Decision)
		if part.OfRequest(q).Legs != nil {
			legsOf(q).routed(r)
		}
		if r.shadow != nil {
			r.shadow.routed(q)
		}
	}
}

// observe passes a route to what observes it.
func (r *Router) observe(own *policy.Observer, q *policy.Request, d *policy.Decision) {
	if r.Routes.sink.Load() != nil {
		r.Routes.note(q, d)
	}
	s := part.OfDecision(d)
	s.Observed = !s.Plain
	if own.Routed != nil && s.Observed {
		own.Routed(q, *d)
	}
}

// ObservesCache reports whether the policy or its shadow observes caches: whether CacheChanged does anything.
func (r *Router) ObservesCache() bool {
	return slices.ContainsFunc(r.observers, func(o *policy.Observer) bool { return o.CacheChanged != nil })
}

// CacheChanged passes changes of the replicas' caches to the policy; it does nothing where the policy
// does not observe caches or the Router is closed. Ids that are not in the fleet are
// ignored by the policy. One goroutine at a time per replica calls it.
func (r *Router) CacheChanged(changes []policy.CacheChange) {
	if !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	for o := range r.prefiller.observers() {
		if o.CacheChanged != nil {
			o.CacheChanged(changes)
		}
	}
}

// Report takes a replica's own report: the load goes to [load.Tracker.Report] where the policy looks at it, the size of
// the cache to [Fleet.SetCapacity], and that it drains to [Fleet.Drain].
func (r *Router) Report(id string, report load.Report) {
	r.Fleet.SetCapacity(id, report.KVTokens)
	if report.Draining {
		r.Fleet.Drain(id)
	}
	if r.uses&(policy.UsesLoad|policy.UsesOngoing) != 0 {
		r.Load.Report(id, report)
	}
}

// Closes reports whether the Router holds what Close gives back.
func (r *Router) Closes() bool { return r.gate.closers != nil }

// Close wakes every request in the queue with ErrClosed, fails later picks, and
// closes the policy, once the calls of the policy that are
// under way have ended. What has not ended after CloseTimeout is an error, and goes
// on. Reservations may still be released.
func (r *Router) Close() error {
	r.mu.Lock()
	if r.queue.closed {
		r.mu.Unlock()
		return nil
	}
	r.queue.closed = true
	r.queue.note()
	r.queue.requeue()
	r.queue.arm()
	r.mu.Unlock()
	return r.gate.close()
}
