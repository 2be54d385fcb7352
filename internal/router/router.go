package router

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/outlier"
	"github.com/warmpath/warmpath/internal/router/load"
)

// A Router hosts one policy over one fleet: it picks and reserves. Safe for use by
// many goroutines.
type Router struct {
	quick Quick
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
	// Load is what is under way on the replicas, of other clients above all.
	Load *load.Tracker

	opts      Options
	prepares  bool
	callsOut  bool
	takesLoad bool            // reports of it
	learns    bool            // rates
	own       policy.Observer // of the policy
	hosted    hosted
	gate      gate
	tokens    tokenizing
	shadow    *shadow // nil = none

	// mu makes choosing and reserving one step. It guards every book, the queue,
	// the randomness, and all below. It is held while the policy's Choose and
	// FleetChanged run, and no other lock of warmpath is taken before it but
	// a host's own.
	mu     sync.Mutex
	shared *shared
	queue  queue

	outliers *outlier.Detector // its lock may be taken under mu
}

// Counts are what went wrong in the life of a Router.
type Counts struct {
	// Corrections are the picks of a replica that the request may not be given, whether or not it waits. The Router
	// replaced them.
	Corrections   atomic.Int64
	PrepareErrors atomic.Int64 // of the policy's Prepare
}

// NewRouter returns a Router over an empty fleet.
func NewRouter(o Options) (*Router, error) {
	if o.Policy.Choose == nil {
		return nil, errors.New("router: Options.Policy has no Choose")
	}
	quick := o.Policy.ChooseQuick
	if o.Rand != nil { // quick picks do not draw from it
		quick = nil
	}
	o = o.withDefaults()
	r := &Router{
		opts:   o,
		shared: &shared{rand: o.Rand, now: o.Now},
		shadow: newShadow(o.Shadow),
	}
	r.Health.router, r.Rollout.router, r.quick.router = r, r, r
	r.Fleet = Fleet{router: r, departed: make(map[string]*live)}
	uses := r.Uses()
	r.prepares = o.Policy.Prepare != nil || o.Shadow.Prepare != nil
	r.callsOut = uses&policy.CallsOut != 0
	r.takesLoad = uses&(policy.UsesLoad|policy.UsesOngoing) != 0
	r.learns = uses&policy.UsesLoad != 0 && !o.FixedRates
	ejection := o.Ejection
	if ejection != nil && o.Policy.Uses&policy.SharesByKey != 0 {
		own := *ejection
		own.SlowStart = -1
		ejection = &own
	}
	r.Load = load.New(load.Options{
		RequestCost: o.RequestCost, ReportTTL: o.ReportTTL, Now: o.Now,
		Reporting: func(on bool) { r.quick.hinder(reporting, on) },
	})
	r.shared.load = r.Load
	r.outliers = outlier.New(ejection, o.Now)
	r.shared.outliers = r.outliers
	r.queue.waiting.order, r.queue.free.order, r.queue.arrived.order = served, served, arrived
	r.queue.opts, r.queue.outliers, r.queue.router = &r.opts, r.outliers, r
	if o.DrainGrace > 0 && uses&policy.UsesSession != 0 {
		r.Fleet.sessions = newSessions()
	}
	if uses&policy.UsesPrompt != 0 {
		r.tokens.tokenizer = o.Tokenizer
	}
	r.own = o.Policy.Observer
	r.hosted = hosted{&r.own}
	if r.shadow != nil {
		r.hosted = append(r.hosted, &r.shadow.Observer)
	}
	r.Routes.index = o.Policy.IndexStats != nil && r.own.Routed != nil
	r.gate.closer = closerOf(o)
	if r.own.Routed == nil && r.own.Completed == nil && o.Policy.Close == nil && r.shadow == nil {
		r.quick.choose = quick
	}
	r.view.Store(&view{fleet: &membership{byID: map[string]*policy.Replica{}}, shared: r.shared})
	return r, nil
}

// Policy returns the Router's policy.
func (r *Router) Policy() policy.Policy { return r.opts.Policy }

// Uses returns what the policy looks at, its shadow, and a Rollout.
func (r *Router) Uses() policy.Uses {
	if r.Rollout.off.Load() {
		return 0
	}
	uses := r.opts.Policy.Uses
	if r.shadow != nil {
		uses |= r.shadow.policy.Uses
	}
	if r.Rollout.sharing.Load() {
		uses |= policy.UsesSession
	}
	return uses
}

// Observes reports whether how calls end is of use: whether Complete
// does anything.
func (r *Router) Observes() bool {
	return r.own.Completed != nil || r.own.Withdrawn != nil || r.learns || r.outliers.Ejects() || r.shadow != nil
}

// Queued returns how many requests wait.
func (r *Router) Queued() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.queued
}

// Quick returns how plain requests are reserved without the lock.
func (r *Router) Quick() *Quick { return &r.quick }

// View returns the current snapshot of the fleet.
func (r *Router) View() policy.View { return r.view.Load() }

// Prepare does the part of a pick that needs no lock. A host calls it before
// Reserve so that the work is done off the picker; it does so
// itself for a request that is not prepared, or was for an older fleet.
func (r *Router) Prepare(ctx context.Context, q *policy.Request) {
	if !r.needsPrepare(q) {
		return
	}
	v := r.view.Load()
	if r.prepared(q, v) || !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	if q.State().Prepared != any(r) {
		q.State().Prepared, q.Prepared, q.State().Tokenized = r, nil, false // another policy's is of no use
	}
	q.State().AnyModel = v.anyModel(q)
	decides := r.Rollout.Decides(q)
	if !decides && !r.shades() {
		q.State().Epoch = v.fleet.epoch
		return
	}
	r.tokens.run(ctx, q)
	if r.callsOut {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.opts.PrepareTimeout)
		defer cancel()
	}
	if decides && r.opts.Policy.Prepare != nil && (q.Pin == "" || r.own.Routed != nil) {
		if err := r.opts.Policy.Prepare(ctx, q, v); err != nil {
			r.Counts.PrepareErrors.Add(1)
		}
	}
	if r.shades() {
		r.shadow.prepare(ctx, r, q, v)
	}
	q.State().Epoch = v.fleet.epoch
}

// needsPrepare reports whether a request is prepared. One that is pinned is where its route is observed.
func (r *Router) needsPrepare(q *policy.Request) bool {
	return r.prepares && (q.Pin == "" || r.own.Routed != nil || r.shades() && r.shadow.Routed != nil)
}

func (r *Router) prepared(q *policy.Request, v *view) bool {
	return len(v.fleet.replicas) == 0 || q.State().Prepared == any(r) && q.State().Epoch == v.fleet.epoch
}

// lockPrepared takes the lock with the request prepared for the current View, or,
// where the fleet changes faster than that, nearly so.
func (r *Router) lockPrepared(ctx context.Context, q *policy.Request) {
	const tries = 3
	for range tries {
		r.Prepare(ctx, q)
		r.mu.Lock()
		v := r.view.Load()
		if !r.needsPrepare(q) || r.queue.closed || r.prepared(q, v) {
			return
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
}

// Complete passes to the policy how a call with a reservation ended, if it observed the
// route, and learns the replica's rate from it. d is the Decision of the reservation. The
// host calls it once per reservation, after Release or before, or Reservation.Withdraw in its
// place. After Close it does nothing.
func (r *Router) Complete(q *policy.Request, d policy.Decision, o policy.Outcome) {
	if r.learns && d.Replica != nil {
		r.Load.Learn(q, &d, &o)
	}
	if d.Replica != nil {
		r.Health.judge(d.Replica, q.State().Mark, &o)
	}
	if !o.Sent {
		r.takeBack(q, &d)
	}
	if o.Prefilled() {
		r.Routes.send(&d, d.State().Route)
	}
	if r.own.Completed == nil && r.shadow == nil || d.Replica == nil || !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	if r.own.Completed != nil && d.State().Observed {
		r.own.Completed(q, d, o)
	}
	if r.shadow != nil {
		r.shadow.completed(q, o)
	}
}

func (r *Router) routed(q *policy.Request, b *Reservation) {
	if r.Fleet.sessions != nil {
		r.Fleet.sessions.note(q.Session, liveOf(b.Decision.Replica))
	}
	sink := r.Routes.sink.Load()
	if r.own.Routed == nil && r.own.Completed == nil && r.shadow == nil && sink == nil || !r.gate.enter() {
		return
	}
	defer r.gate.leave()
	if sink != nil {
		r.Routes.note(q, &b.Decision)
	}
	b.Decision.State().Observed = !b.Decision.State().Plain
	if r.own.Routed != nil && b.Decision.State().Observed {
		r.own.Routed(q, b.Decision)
	}
	if r.shadow != nil {
		r.shadow.routed(q)
	}
}

// Closes reports whether the Router holds what Close gives back.
func (r *Router) Closes() bool { return r.gate.closer != nil }

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
	r.quick.hold()
	r.queue.requeue()
	r.queue.alarm.off()
	r.mu.Unlock()
	return r.gate.close()
}
