package prefixaffinity

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// preview is choose, and the next search for the least load begins where it would have.
func (p *affinity) preview(q *policy.Request, v policy.View) policy.Decision {
	sampled := p.sampled
	defer func() { p.sampled = sampled }()
	return p.choose(q, v)
}

func (p *affinity) choose(q *policy.Request, v policy.View) policy.Decision {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return leastOfTwo(q, v, policy.ReasonNoKey)
	}
	c := choice{
		p: p, prepared: s, Scope: cacheview.NewScope(s.fleet, v),
		slack: max(loadSlack, peerSlack*v.MeanPeerLoad()),
	}
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return policy.Wait()
		}
		c.Enter(pool)
		c.least = -1
		if p.config.ImbalancedThreshold > 0 && c.imbalance() > p.config.ImbalancedThreshold {
			return leastOfTwo(q, v, policy.ReasonLeastOfTwo)
		}
		if d := c.choose(); d.Replica != nil {
			return d
		}
	}
}

func leastOfTwo(q *policy.Request, v policy.View, why policy.Reason) policy.Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return policy.To(r, why)
	}
	return policy.Wait()
}

// A choice is one run of Choose in one pool.
type choice struct {
	p *affinity
	*prepared
	cacheview.Scope
	slack float64 // by how much a replica's load may be above the least
	least float64 // load of the least loaded of the pool; negative = not looked for yet
}

// choose returns a decision without replica where none of the pool is available.
func (c *choice) choose() policy.Decision {
	if c.p.ray {
		return c.smallest()
	}
	shared := c.CoveredTokens(c.shared)
	for _, h := range c.holders {
		if r := c.Take(h.At); r != nil && c.within(r, c.CoveredTokens(int(h.Depth))-shared) {
			return c.to(r, policy.ReasonPrefixMatch, c.placeOf(r))
		}
	}
	if c.p.config.OnMiss == OnMissRendezvous {
		if !c.Stale {
			for i := range c.ntop {
				expected := 0
				if i == 0 {
					expected = int(c.p.reuse.Share() * float64(c.Tokens-shared))
				}
				if r := c.Take(c.top[i].At); r != nil && c.within(r, expected) {
					return c.to(r, reasonAt(i), i)
				}
			}
		}
		if c.Stale || c.ntop < len(c.fleet.Replicas) {
			if r := c.search(); r != nil {
				i := c.placeOf(r)
				return c.to(r, reasonAt(i), i)
			}
		}
	}
	if r := c.leastLoaded(); r != nil {
		return c.to(r, policy.ReasonLeastLoaded, c.placeOf(r))
	}
	return policy.Decision{}
}

func (c *choice) to(r *policy.Replica, why policy.Reason, place int) policy.Decision {
	d := policy.To(r, why)
	d.Place = place
	d.MatchedTokens = c.CoveredTokens(c.depth(r))
	return d
}

func reasonAt(place int) policy.Reason {
	if place == 0 {
		return policy.ReasonRendezvous
	}
	return policy.ReasonRendezvousSpill
}

// search returns the first in the rendezvous order of the pool within the bound, in
// one pass. It looks at scores first, which stand side by side.
func (c *choice) search() *policy.Replica {
	c.p.choosing.SetKey(c.key)
	var best *policy.Replica
	var high uint64
	for _, r := range c.Pool.Replicas {
		score := c.score(r)
		if best != nil && !rendezvous.Before(score, r, high, best) || !c.within(r, 0) || !c.Pool.Takes(r) {
			continue
		}
		best, high = r, score
	}
	return best
}

// leastLoaded returns the available replica of the pool with the least load, of
// equals the first in the rendezvous order.
func (c *choice) leastLoaded() *policy.Replica {
	c.p.choosing.SetKey(c.key)
	var best *policy.Replica
	var least float64
	for _, r := range c.Pool.Replicas {
		if !c.Pool.Takes(r) {
			continue
		}
		load := c.View.Load(r)
		if best == nil || load < least || load == least && rendezvous.Before(c.score(r), r, c.score(best), best) {
			best, least = r, load
		}
	}
	return best
}

// score returns the score of a replica of the current View. choosing has the key.
func (c *choice) score(r *policy.Replica) uint64 {
	if c.found != nil && !c.Stale {
		return c.found.scores[r.Index()]
	}
	return c.p.choosing.Score(r.ID)
}

// placeOf returns the replica's place in the rendezvous order of the whole fleet.
func (c *choice) placeOf(r *policy.Replica) int {
	if !c.Stale {
		for i := range c.ntop {
			if int(c.top[i].At) == r.Index() {
				return i
			}
		}
	}
	c.p.choosing.SetKey(c.key)
	n, score := 0, c.score(r)
	if c.found != nil && !c.Stale {
		for i, s := range c.found.scores {
			if s >= score && rendezvous.Before(s, c.fleet.Replicas[i], score, r) {
				n++
			}
		}
		return n
	}
	for _, o := range c.View.Replicas() {
		if rendezvous.Before(c.p.choosing.Score(o.ID), o, score, r) {
			n++
		}
	}
	return n
}

// depth returns how many leading blocks the replica holds, as predicted or reported.
func (c *choice) depth(r *policy.Replica) int {
	for _, h := range c.holders {
		if c.fleet.Replicas[h.At].ID == r.ID {
			return int(h.Depth)
		}
	}
	for _, p := range c.top[:c.ntop] {
		if c.fleet.Replicas[p.At].ID == r.ID {
			return int(p.Depth)
		}
	}
	if c.found != nil && !c.Stale {
		return c.found.Any(r.Index())
	}
	return 0
}

// imbalance returns by how much the ongoing requests of the pool differ.
func (c *choice) imbalance() int {
	least, most := -1, 0
	for _, r := range c.Pool.Replicas {
		if !c.Pool.Takes(r) {
			continue
		}
		n := r.Ongoing()
		if least < 0 || n < least {
			least = n
		}
		most = max(most, n)
	}
	return most - max(least, 0)
}
