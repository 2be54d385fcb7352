package baseline

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

// SMG's defaults, those of its command line.
const (
	smgThreshold = 0.3
	smgAbs       = 64
	smgRel       = 1.5
	smgPage      = 16
	// smgIndex holds three times what its tree of 2^26 tokens does. On the conversation trace that makes no difference:
	// either is far more than the engines cache.
	smgIndex = 288 << 20
)

// smg is cache_aware.
type smg struct {
	prompted
	gate   bool     // the rule since August 2026
	routed uint64   // requests so far
	sent   []uint64 // of them, by replica
	last   []uint64 // routed when the replica was used last
}

func newSMG(f *Fleet, gate bool) policy.Policy {
	p := &smg{
		prompted: guess(f, smgPage, smgIndex), gate: gate,
		sent: make([]uint64, f.replicas), last: make([]uint64, f.replicas),
	}
	return p.policy(p.choose, p.note)
}

func (p *smg) choose(q *policy.Request, v policy.View) policy.Decision {
	s := q.Prepared.(*found)
	matched := float64(s.most*p.block) > smgThreshold*float64(q.PromptTokens)
	if !p.gate && unbalanced(q, v) {
		return p.to(q, p.idlest(q, v), policy.ReasonLeastLoaded)
	}
	if matched {
		if r := p.holder(q, v, s); r != nil && !(p.gate && overloaded(v, r)) {
			return p.to(q, r, policy.ReasonPrefixMatch)
		}
	}
	return p.to(q, p.idlest(q, v), policy.ReasonLeastLoaded)
}

// holder is the replica to use of those that were sent the longest prefix.
func (p *smg) holder(q *policy.Request, v policy.View, s *found) *policy.Replica {
	const no = 1e18
	r := least(q, v, func(r *policy.Replica) float64 {
		switch {
		case s.depth[r.Index()] < s.most:
			return no
		case p.gate:
			return float64(underWay(r))
		default:
			return -float64(p.last[r.Index()])
		}
	})
	if r == nil || s.depth[r.Index()] < s.most {
		return nil
	}
	return r
}

// idlest has the fewest requests, of several the fewest so far.
func (p *smg) idlest(q *policy.Request, v policy.View) *policy.Replica {
	var best *policy.Replica
	for _, r := range v.Connected() {
		if !v.Available(q, r) {
			continue
		}
		if best == nil || underWay(r) < underWay(best) ||
			underWay(r) == underWay(best) && p.sent[r.Index()] < p.sent[best.Index()] {
			best = r
		}
	}
	return best
}

// unbalanced is the look at the fleet as a whole.
func unbalanced(q *policy.Request, v policy.View) bool {
	full := func(r *policy.Replica) bool { return !v.Available(q, r) }
	low, high := bounds(slices.DeleteFunc(slices.Clone(v.Connected()), full), underWay)
	return high-low > smgAbs && float64(high) > smgRel*float64(low)
}

// overloaded is the gate on one replica.
func overloaded(v policy.View, r *policy.Replica) bool {
	sum := 0
	for _, o := range v.Connected() {
		sum += underWay(o)
	}
	mean := float64(sum) / float64(len(v.Connected()))
	n := float64(underWay(r))
	return n > smgRel*mean && n > mean+smgAbs
}

// note counts a route.
func (p *smg) note(q *policy.Request, d policy.Decision) {
	p.routed++
	p.sent[d.Replica.Index()]++
	p.last[d.Replica.Index()] = p.routed
	p.remember(q, d)
}
