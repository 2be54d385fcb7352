package kvaware

import (
	"math"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// choose notes the pick until it is in the index.
func (p *kvAware) choose(q *policy.Request, v policy.View) policy.Decision {
	d, o := p.pick(q, v)
	if o != nil {
		p.recent.add(q.Prepared.(*prepared), o.replica, o.rank)
		if p.misses++; o.saved > 0 {
			p.misses = 0
		}
	}
	return d
}

// preview is choose, and no pick is noted.
func (p *kvAware) preview(q *policy.Request, v policy.View) policy.Decision {
	d, _ := p.pick(q, v)
	return d
}

// pick returns the option that was chosen by cost, nil if it was another way.
func (p *kvAware) pick(q *policy.Request, v policy.View) (policy.Decision, *option) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return policy.To(v.LeastOfTwo(q), policy.ReasonNoKey), nil
	}
	c := choice{kvAware: p, prepared: s, Scope: cacheview.NewScope(s.fleet, v), burst: p.recent.picks > s.since}
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return policy.Wait(), nil
		}
		c.Pool = pool
		if c.list(); len(p.options) == 0 {
			continue
		}
		o, why := c.best()
		return c.to(o, why), o
	}
}

// A choice is one run of Choose.
type choice struct {
	*kvAware
	*prepared
	cacheview.Scope
	burst bool    // picks were made that the index may not have had
	least float64 // load of the least loaded of the options
	queue float64 // tokens not yet prefilled there
	saves float64 // the most that an option saves
}

// An option is a candidate that is available.
type option struct {
	candidate
	replica *policy.Replica
	saved   float64 // tokens that need not be computed there, those that all replicas share included
	load    float64 // the work under way there
	cost    float64 // set by best
}

// list lists the options of the pool: all of a small fleet, else the candidates and
// some drawn at random, among which the least loaded is about as good as any.
func (c *choice) list() {
	c.options, c.least, c.saves = c.options[:0], math.Inf(1), 0
	for _, k := range c.candidates {
		if r := c.Take(k.at); r != nil {
			c.add(k, r)
		}
	}
	if !c.Stale && c.fleet.Units() <= many {
		return
	}
	c.choosing.SetKey(c.Key)
	listed, n, from := c.options, len(c.Pool.Replicas), 0
	if n > many {
		from = c.View.IntN(n)
	}
	for i, drawn := 0, 0; i < n && drawn < many; i++ {
		r := c.Pool.Replicas[(from+i)%n]
		if !c.Pool.Takes(r) {
			continue
		}
		drawn++
		if !has(listed, r) { // with nothing cached
			c.add(candidate{score: c.choosing.Score(r), at: int32(r.Index())}, r)
		}
	}
}

func has(options []option, r *policy.Replica) bool {
	for i := range options {
		if options[i].replica == r {
			return true
		}
	}
	return false
}

func (c *choice) add(k candidate, r *policy.Replica) {
	if c.burst {
		if n := c.recent.held(c.prepared, r, k.rank); n > int(k.tokens) {
			k.tokens = int32(n)
			k.credit = max(k.credit, float64(n))
		}
	}
	// What more than 1/N of the requests share is worth as much where it is not cached yet,
	// since it is more than one replica should bear.
	saved := max(k.credit, float64(c.CoveredTokens(c.First)))
	load := c.load(&k, r)
	if load < c.least {
		c.least, c.queue = load, cacheview.Queue(r)/float64(max(k.ranks, 1))
	}
	c.saves = max(c.saves, saved)
	c.options = append(c.options, option{candidate: k, replica: r, saved: saved, load: load})
}

// load is the work under way on a replica, or on one of its ranks.
func (c *choice) load(k *candidate, r *policy.Replica) float64 {
	load := c.View.Load(r)
	if k.ranks > 1 {
		ongoing, queued := r.PeerLoad()
		peers := float64(queued) + policy.RequestCost*float64(ongoing)
		own := float64(r.QueuedTokens()) + policy.RequestCost*float64(r.Ongoing())
		load *= (c.share(k)*own + peers/float64(k.ranks)) / max(own+peers, 1)
	}
	return load
}

// share returns which part of this client's work on a replica is on a rank of it. Peer
// load is taken to be spread evenly.
func (c *choice) share(k *candidate) float64 {
	m := c.fleet.Members[k.at]
	var all int64
	for rank := range int(k.ranks) {
		all += m.Work(rank)
	}
	if all <= 0 {
		return 1 / float64(k.ranks)
	}
	return float64(m.Work(int(k.rank))) / float64(all)
}

// best returns, of those that cost about the least, one that saves the most, and of these
// the least loaded if no peer load drifts and engines report what they hold, so that others find the prompt
// wherever it goes; else, and of equals, and where nothing was found lately, the first in the rendezvous order, which
// all clients share.
func (c *choice) best() (*option, policy.Reason) {
	// A token that must be computed delays all requests that wait, which are taken to be like this one.
	waiting := cacheview.Waiting(c.queue, float64(c.Tokens)-c.saves)
	least := math.Inf(1)
	for i := range c.options {
		o := &c.options[i]
		o.cost = uncachedWeight*(float64(c.Tokens)-o.saved)/o.replica.Rate() + o.load - waiting*o.saved
		least = min(least, o.cost)
	}
	var best *option
	equal := 0
	drift := c.View.PeerDrift()
	slack := max(nearTie, drift)
	exact := drift == 0 && !c.Stale && c.misses < unshared
	for i := range c.options {
		o := &c.options[i]
		if o.cost > least+slack {
			continue
		}
		switch {
		case best == nil || o.saved > best.saved:
			best, equal = o, 1
		case o.saved == best.saved:
			equal++
			before := rendezvous.Before(o.score, o.replica, best.score, best.replica)
			if exact && o.load != best.load && c.fleet.Members[o.at].Reported() {
				before = o.load < best.load
			}
			if before {
				best = o
			}
		}
	}
	if equal == 1 {
		return best, policy.ReasonKVCost
	}
	return best, policy.ReasonKVNearTie
}

func (c *choice) to(o *option, why policy.Reason) policy.Decision {
	d := policy.To(o.replica, why)
	d.MatchedTokens = int(o.tokens)
	d.Place = c.placeOf(o)
	if o.ranks > 1 {
		d.SetRank(int(o.rank))
	}
	return d
}

// placeOf returns the option's place in the rendezvous order of the whole fleet; -1 if that
// is not among the first of a large one.
func (c *choice) placeOf(o *option) int {
	if c.Stale {
		return -1
	}
	place := 0
	for i := range c.candidates {
		k := &c.candidates[i]
		first := i == 0 || c.candidates[i-1].at != k.at // of its replica's ranks
		if first && rendezvous.Before(k.score, c.fleet.Replicas[k.at], o.score, o.replica) {
			place++
		}
	}
	if c.fleet.Units() > many && place >= head {
		return -1
	}
	return place
}
