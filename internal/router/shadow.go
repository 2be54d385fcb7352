package router

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
)

// A shadow is a policy that decides on every request that is reserved, and is not obeyed. It learns from where requests
// really went, as a policy in force would.
type shadow struct{ policy.Policy }

// A shadowed is a request as the shadow policy sees it: state.Request.Shadow.
type shadowed struct {
	shadow   *shadow
	request  policy.Request
	decision policy.Decision // its own, of the last pick
	led      policy.Decision // what it observes: the replica of the request, with the shadow's own prediction for that replica
	actual   int             // prompt tokens predicted to be cached where the request went
	decided  bool
	observed bool // the shadow observed the route, so it observes the end
}

// shadowOf returns a request as the shadow policy sees it, nil where it does not.
func shadowOf(q *policy.Request) *shadowed {
	x, _ := part.OfRequest(q).Shadow.(*shadowed)
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
	return x.shadow.Name, x.decision, x.actual, true
}

// shades reports whether the shadow is to be called: the kill switch is the shadow's too.
func (r *Router) shades() bool { return r.shadow != nil && !r.Rollout.off() }

// shade asks the shadow about a request, unless that is a leg or not sent. Called with mu held, before it is charged.
func (r *Router) shade(q *policy.Request, v *view, d *policy.Decision) {
	if x := shadowOf(q); x != nil {
		x.decided = false // that was an earlier pick
	}
	if r.shades() && !part.OfRequest(q).Query && part.OfDecision(d).Prefill == nil && !part.OfDecision(d).Decode {
		r.shadow.choose(q, v, d)
	}
}

// sees returns the request as this shadow sees it: a copy, in which nothing is prepared at first. It has the prompt of
// the request until done.
func (s *shadow) sees(q *policy.Request, v *view) *shadowed {
	x := shadowOf(q)
	if x == nil || x.shadow != s {
		x = &shadowed{shadow: s, request: *q}
		x.request.Prepared, part.OfRequest(&x.request).Shadow = nil, nil
		part.OfRequest(q).Shadow = x
	}
	own, is := part.OfRequest(&x.request), part.OfRequest(q)
	x.request.Prompt, x.request.PromptTokens = q.Prompt, q.PromptTokens
	own.Attempt, own.Tried, own.Sets, own.AnyModel = is.Attempt, is.Tried, is.Sets, v.anyModel(q)
	return x
}

func (x *shadowed) done() { x.request.Prompt = policy.Prompt{} }

// choose asks the shadow. d is where the request goes.
func (s *shadow) choose(q *policy.Request, v *view, d *policy.Decision) {
	x := s.sees(q, v)
	defer x.done()
	mine := s.Choose(&x.request, v)
	if mine.Replica != nil {
		// The request is not sent there, and a policy that learns from routes is told where it is. Any other policy keeps
		// what it noted, as the turn of round_robin: it would have sent the request.
		if o := &s.Observer; o.Withdrawn != nil && (o.Routed != nil || o.Completed != nil) {
			o.Withdrawn(&x.request, mine)
		}
		if mine.Replica = v.byID(mine.Replica.ID); mine.Replica != nil && !v.Available(q, mine.Replica) {
			mine.Replica = nil
		}
	}
	x.decision, x.led, x.decided = mine, *d, true
	if x.led.MatchedTokens = mine.MatchedTokens; mine.Replica != d.Replica {
		x.led.MatchedTokens = matched(&s.Policy, &x.request, v, d.Replica)
	}
	if x.actual = d.MatchedTokens; s.Preview != nil && s.Uses&policy.UsesPrompt != 0 {
		x.actual = x.led.MatchedTokens
	}
}

// routed and completed pass to the shadow where a request went and how it ended. What it predicted for another replica
// does not apply to this one's usage.
func (s *shadow) routed(q *policy.Request) {
	x := shadowOf(q)
	if x == nil || !x.decided {
		return
	}
	x.observed = true
	if s.Observer.Routed != nil {
		s.Observer.Routed(&x.request, x.led)
	}
}

func (s *shadow) completed(q *policy.Request, o policy.Outcome) {
	x := shadowOf(q)
	if x == nil || !x.observed {
		return
	}
	x.observed = false
	if x.decision.Replica != x.led.Replica {
		o.Usage = policy.NoUsage
	}
	if s.Observer.Completed != nil {
		s.Observer.Completed(&x.request, x.led, o)
	}
}
