package kvaware

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// choose notes the pick until it is in the index.
func (p *kvAware) choose(q *policy.Request, v policy.View) policy.Decision {
	c := choice{kvAware: p}
	d, o := c.pick(q, v)
	if o != nil {
		p.recent.add(c.prepared, o.replica, o.rank)
		c.unfound, c.shows = o.saved == 0, d.Reason == policy.ReasonRendezvous
		if c.home.exists {
			c.watch()
		}
	}
	return d
}

// preview is choose, and no pick is noted.
func (p *kvAware) preview(q *policy.Request, v policy.View) policy.Decision {
	c := choice{kvAware: p}
	d, _ := c.pick(q, v)
	return d
}

// pick returns the option that was chosen by cost, nil if it was another way. It notes nothing.
func (c *choice) pick(q *policy.Request, v policy.View) (policy.Decision, *option) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return policy.To(v.LeastOfTwo(q), policy.ReasonNoKey), nil
	}
	c.prepared, c.Scope = s, cacheview.NewScope(s.fleet, v)
	c.burst, c.alone = c.recent.picks > s.since, c.reuse.Alone()
	for i := 0; ; i++ {
		pool, ok := v.Pool(q, i)
		if !ok {
			return policy.Wait(), nil
		}
		c.Pool = pool
		c.findHome()
		if c.list(); len(c.options) == 0 {
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
	home  home
	now   time.Time // zero until it is needed
	burst bool      // picks were made that the index may not have had
	alone bool      // no other client sends prompts to the fleet
	least float64   // load of the least loaded of the options
	queue float64   // tokens not yet prefilled there
	saves float64   // the most that an option saves
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
	credit := k.credit
	if c.home.exists {
		credit = c.weigh(&k)
	}
	// What more than 1/N of the requests share is worth as much where it is not cached yet,
	// since it is more than one replica should bear.
	saved := max(credit, float64(c.CoveredTokens(c.First)))
	part := 1.0
	if k.ranks > 1 {
		part = c.part(&k, r)
	}
	load := part*c.View.Load(r) + c.unseen(r)
	if load < c.least {
		c.least, c.queue = load, part*cacheview.Queue(r)
	}
	c.saves = max(c.saves, saved)
	c.options = append(c.options, option{candidate: k, replica: r, saved: saved, load: load})
}

// unseen returns the work that a call's wait shows to be there beyond what is known: that of clients that share nothing,
// and that of an engine whose KV cache is full.
func (c *choice) unseen(r *policy.Replica) float64 {
	if r.QueuedTokens() == 0 {
		return 0
	}
	if c.now.IsZero() {
		c.now = c.View.Now()
	}
	wait := r.Waiting(c.now)
	return max(math.Float64frombits(c.speed.Load())*wait.Seconds()-cacheview.Queue(r)/r.Rate(), 0)
}

// part returns which part of the work on a replica is on a rank of it. Peer load is taken to be spread evenly.
func (c *choice) part(k *candidate, r *policy.Replica) float64 {
	m := c.fleet.Members[k.at]
	var all int64
	for rank := range int(k.ranks) {
		all += m.Work(rank)
	}
	even := 1 / float64(k.ranks)
	if all <= 0 {
		return even
	}
	ongoing, queued := r.PeerLoad()
	peers := float64(queued) + policy.RequestCost*float64(ongoing)
	own := float64(r.QueuedTokens()) + policy.RequestCost*float64(r.Ongoing())
	return (own*float64(m.Work(int(k.rank)))/float64(all) + peers*even) / max(own+peers, 1)
}

// best returns, of the options that cost about the least, one that saves the most. Among several of these the least
// loaded comes first if what it computes is found again wherever it goes, because the engine reports its cache or
// because this client is alone, and no peer load drifts. Else, if nothing was found lately, and for requests without a
// prompt, the first in the rendezvous order comes first, which all clients share.
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
	exact := drift == 0 && !c.Stale && len(c.Hashes) > 0 && c.misses.Load() < unshared
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
			if exact && o.load != best.load && (c.alone || c.fleet.Members[o.at].Reported()) {
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
	known := d.MatchedTokens > c.CoveredTokens(c.First)
	switch {
	case c.home.exists && c.is(&o.candidate) && (!known || d.MatchedTokens < c.home.expected):
		d.Reason = policy.ReasonRendezvous
		d.ExpectedTokens = c.home.expected
	case known:
		d.Reason = policy.ReasonPrefixMatch
	case len(c.Hashes) == 0 && d.Place == 0: // the session's
		d.Reason = policy.ReasonRendezvous
	case c.home.exists || len(c.Hashes) == 0 && d.Place > 0:
		d.Reason = policy.ReasonRendezvousSpill
	}
	if c.home.exists {
		d.Home = c.home.replica
	}
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
