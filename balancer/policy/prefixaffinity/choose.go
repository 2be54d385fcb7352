package prefixaffinity

import (
	"cmp"
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// sample is among how many replicas of a larger pool the least loaded is looked for.
const sample = 64

func (p *affinity) choose(q *policy.Request, v policy.View) policy.Decision {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return policy.To(v.LeastOfTwo(q), policy.ReasonNoKey)
	}
	c := choice{
		p: p, prepared: s, Scope: cacheview.NewScope(s.fleet, v),
		slack: max(loadSlack, v.PeerDrift()),
	}
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return policy.Wait()
		}
		c.Pool = pool
		c.least = -1
		if p.config.ImbalancedThreshold > 0 && policy.Limit(c.imbalance()) > p.config.ImbalancedThreshold {
			return policy.To(v.LeastOfTwo(q), policy.ReasonLeastOfTwo)
		}
		if r, why := c.choose(); r != nil {
			return c.to(r, why)
		}
	}
}

// A choice is one run of Choose in one pool.
type choice struct {
	p *affinity
	*prepared
	cacheview.Scope
	slack  float64         // by how much a replica's load may be above the least
	home   *policy.Replica // the first in the rendezvous order; nil = not available, or it does not matter
	atHome int             // tokens of the prompt beyond the shared ones that it is likely to hold
	least  float64         // load of the least loaded of the pool; negative = not looked for yet
	queue  float64         // tokens not yet prefilled there, once it is looked for
}

// choose returns no replica where none of the pool is available.
func (c *choice) choose() (*policy.Replica, policy.Reason) {
	if c.p.ray {
		return c.smallest()
	}
	c.findHome()
	shared := c.CoveredTokens(c.shared)
	balanced := c.home != nil && c.home.State().HomeWeight.Load() != 0 && !c.p.reported.Load()
	for _, h := range c.places[:c.holders] {
		cached := c.CoveredTokens(int(h.Depth)) - shared
		if balanced && cached < c.atHome+loadSlack {
			break // other clients send prompts of the key to the home, so it is evicted elsewhere
		}
		if r := c.Take(h.At); r != nil && c.within(r, cached) {
			return r, policy.ReasonPrefixMatch
		}
	}
	if c.p.config.OnMiss == OnMissLeastLoaded {
		return c.leastLoaded(), policy.ReasonLeastLoaded
	}
	if c.home != nil && c.within(c.home, c.atHome) {
		return c.home, policy.ReasonRendezvous
	}
	if !c.Stale {
		for _, p := range c.places[c.holders:] {
			if r := c.Take(p.At); r != nil && c.within(r, 0) {
				return r, policy.ReasonRendezvous
			}
		}
	}
	return c.search(), policy.ReasonRendezvous
}

// findHome sets home, and what it is expected to have cached beyond what is shared.
func (c *choice) findHome() {
	if c.home = nil; c.Stale || c.p.config.OnMiss == OnMissLeastLoaded || len(c.places) == c.holders {
		return
	}
	first, shared := c.places[c.holders], c.CoveredTokens(c.shared)
	c.home = c.Take(first.At)
	c.atHome = max(c.CoveredTokens(int(first.Depth))-shared, int(c.p.reuse.Share()*float64(c.Tokens-shared)))
}

// within reports whether a replica that is expected to have so many of the prompt's
// tokens cached is within the load bound. Where requests wait even at the least loaded, a miss
// there delays all of these, which are taken to be like this one.
func (c *choice) within(r *policy.Replica, expected int) bool {
	cached := float64(max(expected, 0))
	over := c.View.Load(r) - c.slack - reuseWeight*cached
	if over <= 0 {
		return true
	}
	least := c.leastLoad()
	return over <= least+cacheview.Waiting(c.queue, float64(c.Tokens)-cached)*cached
}

// leastLoad returns the load of the least loaded that is available in the pool, or in
// a sample of it drawn at random. It is looked for once a pool, and not before it is needed.
func (c *choice) leastLoad() float64 {
	if c.least >= 0 {
		return c.least
	}
	c.least = math.Inf(1)
	n, from := len(c.Pool.Replicas), 0
	if n > sample {
		from = c.View.IntN(n)
	}
	for i, left := 0, sample; i < n && left > 0; i++ {
		r := c.Pool.Replicas[(from+i)%n]
		if !c.Pool.Takes(r) {
			continue
		}
		if load := c.View.Load(r); load < c.least {
			c.least, c.queue = load, cacheview.Queue(r)
		}
		left--
	}
	return c.least
}

// search returns the first in the rendezvous order of the pool within the bound, in
// one pass.
func (c *choice) search() *policy.Replica {
	c.p.choosing.SetKey(c.Key)
	var best *policy.Replica
	var high uint64
	for _, r := range c.Pool.Replicas {
		if !c.within(r, 0) {
			continue
		}
		score := c.p.choosing.Score(r)
		if (best == nil || rendezvous.Before(score, r, high, best)) && c.Pool.Takes(r) {
			best, high = r, score
		}
	}
	return best
}

// leastLoaded returns the available replica of the pool with the least load, of
// equals the first in the rendezvous order.
func (c *choice) leastLoaded() *policy.Replica {
	c.p.choosing.SetKey(c.Key)
	score := c.p.choosing.Score
	var best *policy.Replica
	var least float64
	for _, r := range c.Pool.Replicas {
		if !c.Pool.Takes(r) {
			continue
		}
		load := c.View.Load(r)
		if best == nil || load < least || load == least && rendezvous.Before(score(r), r, score(best), best) {
			best, least = r, load
		}
	}
	return best
}

// to returns the decision for a replica, with its place in the rendezvous order of the
// whole fleet, and what it is known to hold.
func (c *choice) to(r *policy.Replica, why policy.Reason) policy.Decision {
	d := policy.To(r, why)
	if c.home != nil && !c.p.reported.Load() {
		d.State().Home = c.home.State()
	}
	if c.home == r && why == policy.ReasonRendezvous {
		d.State().Expected = int32(min(c.CoveredTokens(c.shared)+c.atHome, math.MaxInt32))
	}
	for i, p := range c.places {
		if c.fleet.Replicas[p.At].ID == r.ID {
			d.MatchedTokens = c.CoveredTokens(int(p.Depth))
			if i >= c.holders {
				d.Place = i - c.holders
			}
		}
	}
	if !c.p.ray && (d.Place < 0 || c.Stale) {
		d.Place = c.placeOf(r)
	}
	if why == policy.ReasonRendezvous && d.Place > 0 {
		d.Reason = policy.ReasonRendezvousSpill
	}
	return d
}

// placeOf returns the replica's place in the rendezvous order of the View.
func (c *choice) placeOf(r *policy.Replica) (place int) {
	c.p.choosing.SetKey(c.Key)
	score := c.p.choosing.Score(r)
	for _, o := range c.View.Replicas() {
		if rendezvous.Before(c.p.choosing.Score(o), o, score, r) {
			place++
		}
	}
	return place
}

// imbalance returns by how much the ongoing requests of the pool differ.
func (c *choice) imbalance() int {
	least, most := math.MaxInt, 0
	for _, r := range c.Pool.Replicas {
		if c.Pool.Takes(r) {
			least, most = min(least, r.Ongoing()), max(most, r.Ongoing())
		}
	}
	return most - least
}

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
	if best != nil && float64(c.Covered(int(depth)))/float64(c.Length) >= c.p.rate {
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
