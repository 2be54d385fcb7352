package baseline

import (
	"github.com/warmpath/warmpath/balancer/policy"
)

// llm-d's weights, and the block of its guess.
const (
	llmdQueue  = 2
	llmdKV     = 2
	llmdPrefix = 3
	llmdBlock  = 64
)

// llmd is the endpoint picker's default profile.
type llmd struct {
	prompted
	fleet *Fleet
}

func newLLMD(f *Fleet) policy.Policy {
	// As many entries as the engine has blocks, although an entry is four of them.
	p := &llmd{guess(f, llmdBlock, unbounded), f}
	for _, s := range p.slots {
		p.index.SetCapacity(s, f.blocks)
	}
	return p.policy(p.choose, p.remember)
}

func (p *llmd) choose(q *policy.Request, v policy.View) policy.Decision {
	s := q.Prepared.(*found)
	low, high := bounds(v.Connected(), func(r *policy.Replica) int { return p.fleet.seen[r.Index()].Waiting })
	r := least(q, v, func(r *policy.Replica) float64 {
		seen := p.fleet.seen[r.Index()]
		queue, used, prefix := 1., 0., 0.
		if high > low {
			queue = float64(high-seen.Waiting) / float64(high-low)
		}
		if seen.TotalTokens > 0 {
			used = float64(seen.UsedTokens) / float64(seen.TotalTokens)
		}
		if len(s.blocks) > 0 {
			prefix = float64(s.depth[r.Index()]) / float64(len(s.blocks))
		}
		return -(llmdQueue*queue + llmdKV*(1-used) + llmdPrefix*prefix)
	})
	return p.to(q, r, "score")
}
