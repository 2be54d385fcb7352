package routing

import (
	"context"
	"sync/atomic"
)

// A shadow is a policy that decides on every request that is booked, and is not obeyed. It learns from where requests
// really went, as a policy in force would.
type shadow struct {
	policy   Policy
	name     string
	predicts bool // how much of a prompt any replica has cached
	routeObs RouteObserver
	endObs   CompletionObserver
	backObs  WithdrawalObserver
	fleetObs FleetObserver
	cacheObs CacheObserver
	sizeObs  CapacityObserver

	decisions, differs, none       atomic.Int64
	prompt, matched, matchedActual atomic.Int64
}

func newShadow(p Policy, name string) *shadow {
	if p == nil {
		return nil
	}
	s := &shadow{policy: p, name: name}
	if _, ok := p.(Previewer); ok {
		s.predicts = usesOf(p)&UsesPrompt != 0
	}
	s.routeObs, _ = p.(RouteObserver)
	s.endObs, _ = p.(CompletionObserver)
	s.backObs, _ = p.(WithdrawalObserver)
	s.fleetObs, _ = p.(FleetObserver)
	s.cacheObs, _ = p.(CacheObserver)
	s.sizeObs, _ = p.(CapacityObserver)
	return s
}

// ShadowStats say how a shadow policy compares with what was done.
type ShadowStats struct {
	Policy string // Options.ShadowName
	// Decisions are the requests that it decided on, Differs those that it would have sent elsewhere, None those
	// for which it found nobody and would have waited. None are not among Differs.
	Decisions, Differs, None int64
	// Of these requests: their prompt tokens, those that it predicts to be cached where it would have sent them, and where
	// they went. Where it predicts nothing for replicas that it does not choose, the latter is the policy's in force.
	PromptTokens, Matched, MatchedActual int64
}

// ShadowStats returns how the shadow policy compares; false where there is none. Safe from any goroutine.
func (r *Router) ShadowStats() (ShadowStats, bool) {
	s := r.shadow
	if s == nil {
		return ShadowStats{}, false
	}
	return ShadowStats{
		Policy:    s.name,
		Decisions: s.decisions.Load(), Differs: s.differs.Load(), None: s.none.Load(),
		PromptTokens: s.prompt.Load(), Matched: s.matched.Load(), MatchedActual: s.matchedActual.Load(),
	}, true
}

// A shade is a request as the shadow policy sees it.
type shade struct {
	policy   string // the shadow's name
	request  Request
	decision Decision // its own, of the last pick
	led      Decision // what it is told of: where the request went, with what it believes of that
	actual   int      // prompt tokens predicted to be cached where the request went
	decided  bool
	told     bool // the shadow was told of the route: so it is told of the end
}

// Shadow returns what the shadow policy decided at the last pick that was booked, and the prompt tokens predicted to be
// cached where the request went, by it or, where it predicts none for any replica, by the policy in force; false where there is no shadow. The Replica is nil where it found none. To be read
// by the goroutine of the call.
func (q *Request) Shadow() (policy string, d Decision, actual int, ok bool) {
	if q.shade == nil || !q.shade.decided {
		return "", Decision{}, 0, false
	}
	return q.shade.policy, q.shade.decision, q.shade.actual, true
}

// shades reports whether the shadow is to be asked.
func (r *Router) shades() bool { return r.shadow != nil && !r.off.Load() }

// prepare lets the shadow prepare a request, of which it has a copy.
func (s *shadow) prepare(ctx context.Context, r *Router, q *Request, v *View) {
	if q.shade == nil || q.shade.request.router != r {
		q.shade = &shade{policy: s.name, request: *q}
		q.shade.request.router, q.shade.request.Prepared, q.shade.request.shade = r, nil, nil
	}
	c := &q.shade.request
	c.anyModel, c.epoch = v.anyModel(c), v.fleet.epoch
	if err := s.policy.Prepare(ctx, c, v); err != nil {
		r.prepErrors.Add(1)
	}
}

// choose asks the shadow, unless it is switched off, and counts. d is where the request goes. Called with the Router's
// mutex held, before it is charged.
func (s *shadow) choose(q *Request, v *View, d *Decision, off bool) {
	x := q.shade
	if off {
		if x != nil {
			x.decided = false
		}
		return
	}
	if x == nil { // a policy that prepares nothing
		x = &shade{policy: s.name, request: *q}
		q.shade = x
	}
	x.request.attempt, x.request.tried, x.request.narrowed, x.request.anyModel = q.attempt, q.tried, q.narrowed, q.anyModel
	own := s.policy.Choose(&x.request, v)
	if own.Replica != nil {
		if own.Replica = v.current(own.Replica); own.Replica != nil && !v.Available(q, own.Replica) {
			own.Replica = nil
		}
	}
	x.decision, x.led, x.decided = own, *d, true
	s.decisions.Add(1)
	s.prompt.Add(int64(q.PromptTokens))
	if x.led.MatchedTokens = own.MatchedTokens; own.Replica != d.Replica {
		x.led.MatchedTokens = matched(s.policy, &x.request, v, d.Replica)
	}
	if x.actual = d.MatchedTokens; s.predicts {
		x.actual = x.led.MatchedTokens
	}
	s.matchedActual.Add(int64(x.actual))
	switch own.Replica {
	case nil:
		s.none.Add(1)
		return
	case d.Replica:
	default:
		s.differs.Add(1)
	}
	s.matched.Add(int64(own.MatchedTokens))
}

// routed and completed tell the shadow where a request went and how it ended. What it predicted for another replica says
// nothing of this one's usage.
func (s *shadow) routed(q *Request) {
	x := q.shade
	if x == nil || !x.decided {
		return
	}
	x.told = true
	if s.routeObs != nil {
		s.routeObs.Routed(&x.request, x.led)
	}
}

func (s *shadow) completed(q *Request, o Outcome) {
	x := q.shade
	if x == nil || !x.told {
		return
	}
	x.told = false
	if s.endObs == nil {
		return
	}
	if x.decision.Replica != x.led.Replica {
		o.Usage = NoUsage
	}
	s.endObs.Completed(&x.request, x.led, o)
}
