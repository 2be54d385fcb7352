package prefixaffinity

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
)

// smallest is Ray's rule, on_miss: smallest, in one pool. Of the replicas that
// are available, those with the longest match are preferred if it is long enough,
// else those that were sent the fewest different bytes; of those preferred, the
// first with the fewest ongoing requests is picked.
func (c *choice) smallest() policy.Decision {
	var best *policy.Replica
	depth := int32(0)
	for _, h := range c.holders {
		if h.Depth < depth {
			break
		}
		if r := c.Take(h.At); r != nil {
			if depth = h.Depth; best == nil || r.Ongoing() < best.Ongoing() {
				best = r
			}
		}
	}
	if best != nil && float64(c.Covered(int(depth))) >= c.p.rate*float64(c.Length) {
		return c.to(best, policy.ReasonPrefixMatch, -1)
	}
	best = nil
	var least int64
	all := c.p.rate == 0 // every replica reaches it, without a match too
	for _, r := range c.Pool.Replicas {
		if !c.Pool.Takes(r) {
			continue
		}
		sent := int64(0)
		if !all {
			sent = c.p.caches.Member(r).SentBytes.Load()
		}
		if best == nil || sent < least || sent == least && r.Ongoing() < best.Ongoing() {
			best, least = r, sent
		}
	}
	if best == nil {
		return policy.Decision{}
	}
	return c.to(best, policy.ReasonLeastLoaded, -1)
}

// countBytes adds to a replica what it does not hold of a prompt.
func (p *affinity) countBytes(s *prepared, m *cacheview.Member) {
	found := p.scratch.Get().(*scratch)
	p.caches.Match(s.fleet, &s.Blocks, &found.Found)
	depth := 0
	if at, ok := s.fleet.Place(m); ok {
		depth = found.Any(at)
	}
	s.bytes = int64((len(s.Hashes) - depth) * s.Size)
	m.SentBytes.Add(s.bytes)
	p.scratch.Put(found)
}
