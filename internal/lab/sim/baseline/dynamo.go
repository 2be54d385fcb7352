package baseline

import (
	"context"

	"github.com/warmpath/warmpath/balancer/policy"
)

// dynamo is Dynamo's KV router, without temperature, credits of lower tiers and decay, as by default.
type dynamo struct {
	prompted
	fleet  *Fleet
	scale  float64 // S
	active []active
}

func newDynamo(f *Fleet, scale float64) *dynamo {
	return &dynamo{prompted: prompted{block: f.block}, fleet: f, scale: scale, active: make([]active, f.replicas)}
}

// Prepare implements [policy.Policy].
func (p *dynamo) Prepare(_ context.Context, q *policy.Request, _ policy.View) error {
	s := p.read(q, p.fleet.replicas)
	p.fleet.cached(s.blocks, s.depth)
	return nil
}

// Choose implements [policy.Policy].
func (p *dynamo) Choose(q *policy.Request, v policy.View) policy.Decision {
	s := q.Prepared.(*found)
	bs := float64(p.block)
	whole := float64((q.PromptTokens + p.block - 1) / p.block)
	r := least(q, v, func(r *policy.Replica) float64 {
		a := &p.active[r.Index()]
		_, others := r.PeerLoad()
		raw := float64(r.QueuedTokens()+int(others)+q.PromptTokens) / bs
		decode := float64(a.blocks+a.tails) + whole - float64(a.shared(s.blocks))
		return p.scale*max(0, raw-float64(s.depth[r.Index()])) + decode
	})
	return p.to(q, r, policy.ReasonKVCost)
}

// Routed implements [policy.RouteObserver].
func (p *dynamo) Routed(q *policy.Request, d policy.Decision) {
	a := &p.active[d.Replica.Index()]
	s, ok := q.Prepared.(*found)
	if !ok {
		return // pinned
	}
	a.add(s)
	if q.PromptTokens > len(s.blocks)*p.block {
		a.tails++
	}
}

// Completed implements [policy.CompletionObserver].
func (p *dynamo) Completed(q *policy.Request, d policy.Decision, _ policy.Outcome) {
	a := &p.active[d.Replica.Index()]
	s, ok := q.Prepared.(*found)
	if !ok {
		return // pinned
	}
	a.remove(s)
	if q.PromptTokens > len(s.blocks)*p.block {
		a.tails--
	}
}
