package baseline

import "github.com/warmpath/warmpath/balancer/policy"

// lmetric is LMetric's product of the work before the first token and the requests under way.
type lmetric struct{ informed }

func newLMetric(f *Fleet) policy.Policy {
	p := &lmetric{newInformed(f)}
	return p.policy(p.choose, nil)
}

func (p *lmetric) choose(q *policy.Request, v policy.View) policy.Decision {
	s := q.Prepared.(*found)
	r := least(q, v, func(r *policy.Replica) float64 {
		_, others := r.PeerLoad()
		uncached := q.PromptTokens - s.depth[r.Index()]*p.block
		return float64(uncached+r.QueuedTokens()+int(others)) * float64(underWay(r)+1)
	})
	return p.to(q, r, policy.ReasonKVCost)
}
