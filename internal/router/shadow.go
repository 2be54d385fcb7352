package router

import (
	"context"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A shadow is a policy that decides on every request that is reserved, and is not obeyed. It learns from where requests
// really went, as a policy in force would.
type shadow struct {
	policy   policy.Policy
	predicts bool // how much of a prompt any replica has cached
	policy.Observer

	decisions, differs, none       atomic.Int64
	prompt, matched, matchedActual atomic.Int64
}

func newShadow(p policy.Policy) *shadow {
	if p.Choose == nil {
		return nil
	}
	return &shadow{policy: p, predicts: p.Preview != nil && p.Uses&policy.UsesPrompt != 0, Observer: p.Observer}
}

// ShadowStats say how a shadow policy compares with what was done.
type ShadowStats struct {
	Policy string // its name
	// Decisions are the requests that it decided on, Differs those that it would have sent elsewhere, None those
	// for which it found none and would have waited. None are not among Differs.
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
		Policy:    s.policy.Name,
		Decisions: s.decisions.Load(), Differs: s.differs.Load(), None: s.none.Load(),
		PromptTokens: s.prompt.Load(), Matched: s.matched.Load(), MatchedActual: s.matchedActual.Load(),
	}, true
}

// A shadowed is a request as the shadow policy sees it: state.Request.Shadow.
type shadowed struct {
	policy   string // the shadow's name
	request  policy.Request
	decision policy.Decision // its own, of the last pick
	led      policy.Decision // what it observes: where the request went, with what it predicts of that
	actual   int             // prompt tokens predicted to be cached where the request went
	decided  bool
	observed bool // the shadow observed the route, so it observes the end
}

// shadowOf returns a request as the shadow policy sees it, nil where it does not.
func shadowOf(q *policy.Request) *shadowed {
	x, _ := q.State().Shadow.(*shadowed)
	return x
}

// Shadow returns what the shadow policy decided at the last pick of a request that was reserved, and the prompt tokens
// predicted to be cached where the request went, by it or, where it predicts none for any replica, by the policy in
// force; false where there is no shadow. The Replica is nil where it found none. To be read by the goroutine of the
// call.
func Shadow(q *policy.Request) (name string, d policy.Decision, actual int, ok bool) {
	x := shadowOf(q)
	if x == nil || !x.decided {
		return "", policy.Decision{}, 0, false
	}
	return x.policy, x.decision, x.actual, true
}

// shades reports whether the shadow is to be called.
func (r *Router) shades() bool { return r.shadow != nil && !r.Rollout.off.Load() }

// prepare lets the shadow prepare a request, of which it has a copy.
func (s *shadow) prepare(ctx context.Context, r *Router, q *policy.Request, v *view) {
	x := shadowOf(q)
	if x == nil || x.request.State().Prepared != any(r) {
		x = &shadowed{policy: s.policy.Name, request: *q}
		own := x.request.State()
		own.Prepared, own.Shadow, x.request.Prepared = r, nil, nil
		q.State().Shadow = x
	}
	c := &x.request
	c.State().AnyModel, c.State().Epoch = v.anyModel(c), v.fleet.epoch
	if s.policy.Prepare == nil {
		return
	}
	if err := s.policy.Prepare(ctx, c, v); err != nil {
		r.Counts.PrepareErrors.Add(1)
	}
}

// choose asks the shadow, unless it is switched off, and counts. d is where the request goes. Called with the Router's
// mutex held, before it is charged.
func (s *shadow) choose(q *policy.Request, v *view, d *policy.Decision, off bool) {
	x := shadowOf(q)
	if off {
		if x != nil {
			x.decided = false
		}
		return
	}
	if x == nil { // a policy that prepares nothing
		x = &shadowed{policy: s.policy.Name, request: *q}
		q.State().Shadow = x
	}
	own, is := x.request.State(), q.State()
	own.Attempt, own.Tried, own.Sets, own.AnyModel = is.Attempt, is.Tried, is.Sets, is.AnyModel
	mine := s.policy.Choose(&x.request, v)
	if mine.Replica != nil {
		if mine.Replica = v.current(mine.Replica); mine.Replica != nil && !v.Available(q, mine.Replica) {
			mine.Replica = nil
		}
	}
	x.decision, x.led, x.decided = mine, *d, true
	s.decisions.Add(1)
	s.prompt.Add(int64(q.PromptTokens))
	if x.led.MatchedTokens = mine.MatchedTokens; mine.Replica != d.Replica {
		x.led.MatchedTokens = matched(&s.policy, &x.request, v, d.Replica)
	}
	if x.actual = d.MatchedTokens; s.predicts {
		x.actual = x.led.MatchedTokens
	}
	s.matchedActual.Add(int64(x.actual))
	switch mine.Replica {
	case nil:
		s.none.Add(1)
		return
	case d.Replica:
	default:
		s.differs.Add(1)
	}
	s.matched.Add(int64(mine.MatchedTokens))
}

// routed and completed pass to the shadow where a request went and how it ended. What it predicted for another replica
// does not apply to this one's usage.
func (s *shadow) routed(q *policy.Request) {
	x := shadowOf(q)
	if x == nil || !x.decided {
		return
	}
	x.observed = true
	if s.Routed != nil {
		s.Routed(&x.request, x.led)
	}
}

func (s *shadow) completed(q *policy.Request, o policy.Outcome) {
	x := shadowOf(q)
	if x == nil || !x.observed {
		return
	}
	x.observed = false
	if s.Completed == nil {
		return
	}
	if x.decision.Replica != x.led.Replica {
		o.Usage = policy.NoUsage
	}
	s.Completed(&x.request, x.led, o)
}
