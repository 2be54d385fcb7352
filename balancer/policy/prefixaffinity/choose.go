package prefixaffinity

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Choose implements [routing.Policy].
func (p *Policy) Choose(q *routing.Request, v *routing.View) routing.Decision {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return leastOfTwo(q, v, routing.ReasonNoKey)
	}
	mean := v.MeanLoad()
	c := choice{
		p: p, prepared: s, q: q, v: v,
		stale: s.fleet == nil || s.fleet.epoch != v.Epoch(),
		limit: max(p.config.LoadFactor*mean, mean+p.config.LoadSlackTokens),
	}
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return routing.Wait()
		}
		c.pool, c.whole = pool, len(pool.Replicas) == len(v.Connected())
		if p.config.ImbalancedThreshold > 0 && c.imbalance() > p.config.ImbalancedThreshold {
			return leastOfTwo(q, v, routing.ReasonLeastOfTwo)
		}
		if d := c.choose(); d.Replica != nil {
			return d
		}
	}
}

func leastOfTwo(q *routing.Request, v *routing.View, why routing.Reason) routing.Decision {
	if r := v.LeastOfTwo(q); r != nil {
		return routing.To(r, why)
	}
	return routing.Wait()
}

// A choice is one run of Choose in one pool.
type choice struct {
	p *Policy
	*prepared
	q     *routing.Request
	v     *routing.View
	pool  routing.Pool
	whole bool    // the pool is all that is connected
	stale bool    // what was prepared is of another fleet
	limit float64 // the load bound
}

// choose returns a decision without replica when the pool has nobody available.
func (c *choice) choose() routing.Decision {
	if c.p.ray {
		return c.smallest()
	}
	for _, h := range c.holders {
		if r := c.take(h); r != nil && c.v.Load(r) <= c.limit {
			return c.to(r, routing.ReasonPrefixMatch, c.placeOf(r))
		}
	}
	if c.p.config.OnMiss == OnMissAgreed {
		if !c.stale {
			for i := range c.ntop {
				if r := c.take(c.top[i]); r != nil && c.v.Load(r) <= c.limit {
					return c.to(r, reasonAt(i), i)
				}
			}
		}
		if c.stale || c.ntop < len(c.fleet.replicas) {
			if r := c.search(); r != nil {
				i := c.placeOf(r)
				return c.to(r, reasonAt(i), i)
			}
		}
	}
	if r := c.leastLoaded(); r != nil {
		return c.to(r, routing.ReasonLeastLoaded, c.placeOf(r))
	}
	return routing.Decision{}
}

func (c *choice) to(r *routing.Replica, why routing.Reason, place int) routing.Decision {
	d := routing.To(r, why)
	d.Place = place
	d.MatchedTokens = c.matchedTokens(c.depth(r))
	return d
}

func reasonAt(place int) routing.Reason {
	if place == 0 {
		return routing.ReasonAgreedOrder
	}
	return routing.ReasonAgreedSpill
}

// take returns the replica, as it is now, if it is in the pool and available.
func (c *choice) take(p place) *routing.Replica {
	r := c.fleet.replicas[p.at]
	if c.stale {
		if r = c.v.ByID(r.ID); r == nil {
			return nil
		}
	}
	if !c.pool.Takes(r) {
		return nil
	}
	if c.whole {
		return r
	}
	at, ok := slices.BinarySearchFunc(c.pool.Replicas, r.Index(), func(o *routing.Replica, i int) int {
		return o.Index() - i
	})
	if !ok || c.pool.Replicas[at] != r {
		return nil
	}
	return r
}

// search returns the first in the agreed order of the pool within the bound, in
// one pass. It looks at scores first, which stand side by side.
func (c *choice) search() *routing.Replica {
	c.p.choosing.setKey(c.key)
	var best *routing.Replica
	var high uint64
	for _, r := range c.pool.Replicas {
		score := c.score(r)
		if best != nil && !before(score, r, high, best) || c.v.Load(r) > c.limit || !c.pool.Takes(r) {
			continue
		}
		best, high = r, score
	}
	return best
}

// leastLoaded returns the available replica of the pool with the least load, of
// equals the first in the agreed order.
func (c *choice) leastLoaded() *routing.Replica {
	c.p.choosing.setKey(c.key)
	var best *routing.Replica
	var least float64
	for _, r := range c.pool.Replicas {
		if !c.pool.Takes(r) {
			continue
		}
		load := c.v.Load(r)
		if best == nil || load < least || load == least && before(c.score(r), r, c.score(best), best) {
			best, least = r, load
		}
	}
	return best
}

// score returns the score of a replica of the current View. choosing has the key.
func (c *choice) score(r *routing.Replica) uint64 {
	if c.found != nil && !c.stale {
		return c.found.scores[r.Index()]
	}
	return c.p.choosing.score(r.ID)
}

// placeOf returns the replica's place in the agreed order of the whole fleet.
func (c *choice) placeOf(r *routing.Replica) int {
	if !c.stale {
		for i := range c.ntop {
			if int(c.top[i].at) == r.Index() {
				return i
			}
		}
	}
	c.p.choosing.setKey(c.key)
	n, score := 0, c.score(r)
	if c.found != nil && !c.stale {
		for i, s := range c.found.scores {
			if s >= score && before(s, c.fleet.replicas[i], score, r) {
				n++
			}
		}
		return n
	}
	for _, o := range c.v.Replicas() {
		if before(c.p.choosing.score(o.ID), o, score, r) {
			n++
		}
	}
	return n
}

// depth returns how many leading blocks the replica is believed to hold.
func (c *choice) depth(r *routing.Replica) int {
	for _, h := range c.holders {
		if c.fleet.replicas[h.at].ID == r.ID {
			return int(h.depth)
		}
	}
	for _, p := range c.top[:c.ntop] {
		if c.fleet.replicas[p.at].ID == r.ID {
			return int(p.depth)
		}
	}
	if c.found != nil && !c.stale {
		return c.found.matches.Depth(c.fleet.members[r.Index()].slot)
	}
	return 0
}

// imbalance returns by how much the ongoing requests of the pool differ.
func (c *choice) imbalance() int {
	least, most := -1, 0
	for _, r := range c.pool.Replicas {
		if !c.pool.Takes(r) {
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
