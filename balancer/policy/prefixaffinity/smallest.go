package prefixaffinity

import (
	"cmp"
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
)

// smallest is Ray's rule, on_miss: smallest, in one pool. Of the replicas that
// are available, those with the longest match are preferred if it is long enough,
// else those that were sent the fewest different bytes; of those preferred, the
// first with the fewest ongoing requests is picked.
func (c *choice) smallest() (*policy.Replica, policy.Reason) {
	var best *policy.Replica
	depth := int32(0)
	for _, h := range c.places {
		if h.Depth < depth {
			break
		}
		if r := c.Take(h.At); r != nil {
			depth = h.Depth
			best = fewer(r, best)
		}
	}
	if best != nil && float64(c.Covered(int(depth))) >= c.p.rate*float64(c.Length) {
		return best, policy.ReasonPrefixMatch
	}
	best = nil
	least := int64(math.MaxInt64)
	for _, r := range c.Pool.Replicas {
		if !c.Pool.Takes(r) {
			continue
		}
		sent := int64(0)
		if c.p.rate > 0 { // else every replica reaches it, without a match too
			sent = c.p.caches.Member(r).SentBytes.Load()
		}
		switch {
		case sent < least:
			best, least = r, sent
		case sent == least:
			best = fewer(r, best)
		}
	}
	return best, policy.ReasonLeastLoaded
}

// fewer returns the one of two with fewer ongoing requests, of equals the first in the fleet.
// The second may be nil.
func fewer(r, o *policy.Replica) *policy.Replica {
	if o == nil || cmp.Or(cmp.Compare(r.Ongoing(), o.Ongoing()), cmp.Compare(r.Index(), o.Index())) < 0 {
		return r
	}
	return o
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
