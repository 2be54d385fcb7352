package router

import (
	"context"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

// Legs are how a request is reserved that may be sent in two: a replica prefills it, and another one, which has the same
// pair label, gets the KV blocks from there and decodes it.
type Legs struct {
	// Prefill is where the prefill leg is reserved, in the same step. The Decision there has a replica where the request
	// is split: the replica of b then decodes it. nil, or no replica there = it is served whole.
	Prefill *Reservation
	// From is the replica that has prefilled the request: one is reserved that decodes it. nil = it is not prefilled.
	From *policy.Replica
	// Only is for an engine whose replicas refuse a request that is not split, if they have a role, and legs, if they have
	// none.
	Only bool
}

// legs are those of a request that may be split.
//
// One decision, under the Router's lock, compares what it costs to prefill the request on the replica that the policy
// chooses for it whole, and on the one that it chooses among those that prefill, from where the KV is handed over to
// the one of the least load. A prefill costs the tokens that wait there, and its own uncached ones once for the request
// and once for each that is under way there: it delays them all.
type legs struct {
	state.Legs
	request  policy.Request  // the prefill leg's
	view     *view           // of the replicas that prefill, at the last choice
	prefill  *Reservation    // where the prefill leg is reserved; nil = there is none
	from     *policy.Replica // that has prefilled the request; nil = it is not prefilled
	observer *policy.Observer
	pairs    [8]string // memory of Pairs
}

// legsOf returns the legs of a request that has some.
func legsOf(q *policy.Request) *legs { return part.OfRequest(q).Legs.Owner.(*legs) }

// two reports whether the request was split: both legs are reserved.
func (x *legs) two() bool { return x.prefill != nil && x.prefill.Decision.Replica != nil }

// split gives a request its legs, if replicas have roles. Those of an earlier attempt may still be in use.
func (f *prefiller) split(ctx context.Context, q *policy.Request, how *How) {
	r, s, l, p, v := f.router, part.OfRequest(q), how.Legs, f.policy.Load(), f.router.view.Load()
	whole := v.prefill == nil || p == nil || q.Pin != ""
	if whole && l.Prefill != nil {
		l.Prefill.Decision = policy.Decision{}
	}
	if v.prefill == nil {
		return
	}
	x, assigned := new(legs), how.Assigned
	// Whatever the policy prefers, the reservation may be that of a leg.
	paired := l.From != nil || l.Prefill != nil && assigned != nil && assigned.Prefill != nil
	x.Owner, x.Only, x.Leg, s.Legs = x, l.Only, paired, &x.Legs
	if whole {
		return
	}
	if x.from = l.From; l.Prefill == nil {
		return
	}
	x.prefill, x.observer, x.request = l.Prefill, &p.Observer, *q
	x.request.Prepared, x.request.Prompt = nil, policy.Prompt{}
	*part.OfRequest(&x.request) = state.Request{
		Origin: s.Origin, Attempt: s.Attempt, Tried: s.Tried, Query: how.Query, Legs: &x.Legs,
	}
	if (assigned == nil || s.Prepared == r.number) && r.Rollout.Decides(q) {
		f.prepare(ctx, q, x, v.prefill)
	}
	narrow(&x.request)
}

// begin readies the memory of the prefill leg, if there is one, for a choice.
func (x *legs) begin(v *view) error {
	if x.prefill == nil {
		return nil
	}
	if x.prefill.held.Load() {
		return ErrHeld
	}
	x.prefill.Decision, x.view = policy.Decision{}, v.prefilling()
	leg := part.OfRequest(&x.request)
	leg.AnyModel, leg.Plain = x.view.anyModel(&x.request), !v.router.Rollout.Decides(&x.request)
	return nil
}

// withdraw gives back the prefill leg of a request that was split and is not sent.
func (x *legs) withdraw() {
	if x.two() {
		x.prefill.Withdraw(&x.request)
	}
}

// routed passes the route of the prefill leg to what observes it.
func (x *legs) routed(r *Router) {
	if x.two() {
		r.observe(x.observer, &x.request, &x.prefill.Decision)
	}
}

// leg is the choice of the prefill leg.
func (c choice) leg(x *legs) choice {
	return choice{c.r, c.r.prefiller.policy.Load(), &x.request, x.view, &x.prefill.Decision}
}

// pair decides between serving a request whole, as c has decided or failed with err, and in two legs, where c then has
// the decode leg. What no replica serves whole waits for room for the legs, or takes replicas that are passed over as
// long as there are others.
func (c choice) pair(x *legs, err error) error {
	s, leg, only := part.OfRequest(c.q), part.OfRequest(&x.request), err != nil && err != ErrFull
	defer func() { x.Pairs, x.Leg, s.Resort, leg.Resort = nil, false, state.NoResort, state.NoResort }()
	for err == nil && s.Resort < state.Ejected && !c.v.Allowed(c.q, c.d.Replica) { // what it takes whole, its legs may take
		s.Resort++
	}
	x.Leg, leg.Resort = true, s.Resort
	for !c.inTwo(x, err) {
		if !only {
			return err
		}
		if err := c.waitForLegs(x); err == ErrFull || s.Resort == state.Ejected {
			return err
		}
		s.Resort++
		leg.Resort = s.Resort
		if p := c.leg(x); s.Resort == state.Ejected && (c.v.coming(c.q) || p.v.coming(p.q)) {
			return ErrConnecting
		}
	}
	return nil
}

// inTwo decides on two legs, and reports whether there are, and they cost less than what c has decided.
func (c choice) inTwo(x *legs, err error) bool {
	p := c.leg(x)
	if x.Pairs = c.labels(x.pairs[:0]); len(x.Pairs) > 0 && len(p.v.connected) > 0 && p.prefills() == nil {
		if d := c.decode(x, p.d.Replica, *c.d); d.Replica != nil && (err != nil || c.splits(p)) {
			withdrawn(&c.p.Observer, c.q, c.d)
			*c.d = d
			return true
		}
		withdrawn(&p.p.Observer, p.q, p.d)
	}
	*p.d = policy.Decision{}
	return false
}

// waitForLegs fills in that a request waits for every full replica that one of its legs may take.
func (c choice) waitForLegs(x *legs) error {
	x.Pairs = nil
	*c.d = policy.Wait()
	err := ErrNoSuchReplica
	for _, leg := range []choice{c, c.leg(x)} {
		for _, rep := range leg.v.replicas {
			switch {
			case !leg.v.Allowed(leg.q, rep):
			case !rep.Connected():
				err = ErrNotConnected
			case rep.Full():
				c.d.WaitFor = append(c.d.WaitFor, rep)
			}
		}
	}
	if c.d.WaitFor != nil {
		return ErrFull
	}
	return err
}

// prefills chooses the prefill leg: by load alone, where a rollout keeps the request from the policy.
func (c choice) prefills() error {
	if part.OfRequest(c.q).Plain {
		return c.correct()
	}
	return c.ask()
}

// assignedLegs takes what a look-aside server decided on the legs of a request.
func (c choice) assignedLegs(x *legs, a *Assigned) (err error) {
	from := x.from
	if x.prefill != nil && a.Prefill != nil {
		err, from = c.leg(x).assigned(a.Prefill), x.prefill.Decision.Replica
	}
	if err == nil && from != nil && from.Pair != c.d.Replica.Pair {
		if err = ErrNoSuchReplica; x.prefill != nil {
			x.prefill.Decision = policy.Decision{}
		}
	}
	part.OfDecision(c.d).Decode = from != nil
	return err
}

// labels appends the pair labels of which a replica may decode the request now.
func (c choice) labels(all []string) []string {
	for _, rep := range c.v.connected {
		if !slices.Contains(all, rep.Pair) && c.v.Available(c.q, rep) {
			all = append(all, rep.Pair)
		}
	}
	return all
}

// decode returns the decision for the replica with the least load of those that the request may use and that
// pair with the one that prefills it, which is not one of them. What the replica of whole holds of the prompt counts as
// so many tokens less: it need not be moved there.
func (c choice) decode(x *legs, from *policy.Replica, whole policy.Decision) policy.Decision {
	x.Pairs = append(x.pairs[:0], from.Pair)
	rep := c.v.search(c.q, func(v *view, p policy.Pool) (best *policy.Replica) {
		var least float64
		n := len(p.Replicas)
		start := v.IntN(max(n, 1)) // so that clients do not all take the first of equals
		for i := range n {
			r := p.Replicas[(start+i)%n]
			if r.ID == from.ID || !v.takes(&p, r) {
				continue
			}
			load := v.Load(r)
			if r == whole.Replica {
				load -= float64(whole.MatchedTokens)
			}
			if best == nil || load < least {
				best, least = r, load
			}
		}
		return best
	})
	d := policy.To(rep, policy.ReasonDecode)
	d.MatchedTokens, part.OfDecision(&d).Decode = c.q.PromptTokens, true
	return d
}

// decodes chooses the decode leg of a request that was prefilled.
func (c choice) decodes(x *legs) error {
	defer func() { x.Pairs = nil }()
	if *c.d = c.decode(x, x.from, policy.Decision{}); c.d.Replica != nil {
		return nil
	}
	*c.d = policy.Wait()
	return c.wait()
}

// handOver is what it costs to move the KV of a prompt, in prompt tokens: the transfer, and the passes that the decode
// leg waits for. With 500, short prompts of agents are split at a loss (docs/routing-quality.md).
const handOver = 2000

// splits reports whether two legs, of which p has decided the first, cost less than the whole request. What the prefill
// replica lacks of what c has found cached counts twice: the next turn of a conversation finds that again where it is
// decoded, and more of it, so it comes back, and the turn after that would pay once more.
func (c choice) splits(p choice) bool {
	if rule := c.r.opts.Split; rule != nil {
		return rule(c.q.PromptTokens, *c.d)
	}
	lost := float64(max(c.d.MatchedTokens-p.d.MatchedTokens, 0))
	return p.cost()+handOver+lost < c.cost()
}

// cost is what it costs to compute the prompt where c has decided, in tokens: what waits there, and the uncached
// tokens, for the request itself and for each that they delay there.
func (c choice) cost() float64 {
	_, peers := c.d.Replica.PeerLoad()
	delayed := float64(part.OfReplica(c.d.Replica).UnderWay())
	return (float64(peers) + float64(c.d.Replica.QueuedTokens()) + c.uncached()*(1+delayed)) / c.d.Replica.Rate()
}

func (c choice) uncached() float64 {
	return float64(max(c.q.PromptTokens-max(c.d.MatchedTokens, c.d.ExpectedTokens), 0))
}
