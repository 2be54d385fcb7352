package baseline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/enginesim"
)

// kind is one baseline.
type kind struct {
	build  func(*Fleet) policy.Policy
	events bool          // looks at what engines have cached
	scrape time.Duration // how often it looks at engines' loads; 0 = never
}

var kinds = map[string]kind{
	"random":               {build: func(*Fleet) policy.Policy { return scan(anyOf, "random") }},
	"least_requests":       {build: func(*Fleet) policy.Policy { return scan(requests, "least_requests") }},
	"least_tokens":         {build: func(*Fleet) policy.Policy { return scan(load, policy.ReasonLeastLoaded) }},
	"ray_prefix":           {build: newRay},
	"smg_cache_aware_2025": {build: func(f *Fleet) policy.Policy { return newSMG(f, false) }},
	"smg_cache_aware":      {build: func(f *Fleet) policy.Policy { return newSMG(f, true) }},
	"llmd_default":         {build: newLLMD, scrape: 50 * time.Millisecond},
	"lmetric_queued":       {build: newLMetric, events: true},
	"dynamo":               {build: func(f *Fleet) policy.Policy { return newDynamo(f, 1).policy() }, events: true},
	"dynamo_s16":           {build: func(f *Fleet) policy.Policy { return newDynamo(f, 16).policy() }, events: true},
}

// Names are the baselines, sorted.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// NeedsKVEvents reports whether a baseline looks at what the engines have cached.
func NeedsKVEvents(name string) bool { return kinds[name].events }

// New builds a baseline for one Router; none if the name is not one of them. Those of one run share the Fleet.
func New(name string, f *Fleet) policy.Policy {
	k, ok := kinds[name]
	if !ok {
		return policy.Policy{}
	}
	p := k.build(f)
	p.Name = name
	return p
}

// Fleet is what baselines see of the engines beside their own reservations. One goroutine uses it.
type Fleet struct {
	// ScrapeEvery is how often to call Scrape; 0 means never.
	ScrapeEvery time.Duration

	replicas int
	engines  []*enginesim.Engine
	block    int // tokens
	blocks   int // of the largest engine
	seen     []enginesim.Load
}

// unbounded is an index's budget where the rule has none.
const unbounded = 64 << 30

// NewFleet prepares what the baseline of this name needs; for any other name, nothing. The engines of the fleet,
// with their defaults filled in, have blocks of one size.
func NewFleet(name string, replicas int, engines []enginesim.Config) *Fleet {
	k := kinds[name]
	f := &Fleet{ScrapeEvery: k.scrape, replicas: replicas, seen: make([]enginesim.Load, replicas),
		block: engines[0].BlockSize}
	for _, e := range engines {
		f.blocks = max(f.blocks, e.KVTokens/e.BlockSize)
	}
	return f
}

// slots makes a fleet known to an index, in its order.
func slots(x *kvindex.Index, replicas int) []kvindex.Slot {
	all := make([]kvindex.Slot, replicas)
	for i := range all {
		all[i] = x.Add(nil)
	}
	return all
}

// Watch gives the next engine, in the order of the fleet.
func (f *Fleet) Watch(e *enginesim.Engine) { f.engines = append(f.engines, e) }

// Scrape looks at the engines' loads.
func (f *Fleet) Scrape() {
	for i, e := range f.engines {
		f.seen[i] = e.Load()
	}
}

// cached is how many leading blocks each engine has, by its events.
func (f *Fleet) cached(blocks []uint64, depth []int) {
	for i, e := range f.engines {
		depth[i] = e.Published(blocks)
	}
}

// newRay is the product's policy with Ray's rule.
func newRay(*Fleet) policy.Policy {
	p, err := prefixaffinity.New(prefixaffinity.Config{EvictionThresholdChars: 32 << 20})
	if err != nil {
		panic(err) // the config is a constant
	}
	return p
}

// prompted is a policy that reads prompts.
type prompted struct {
	index *kvindex.Index // of what it routed; nil where it follows the engines' events
	slots []kvindex.Slot
	block int
}

// guess is a prompted policy with an index of its own, of what it routed where.
func guess(f *Fleet, block int, maxBytes int64) prompted {
	x := kvindex.New(maxBytes)
	return prompted{x, slots(x, f.replicas), block}
}

// policy is one with this rule. routed gets each decision.
func (p *prompted) policy(
	choose func(*policy.Request, policy.View) policy.Decision, routed func(*policy.Request, policy.Decision),
) policy.Policy {
	return policy.Policy{
		Uses: policy.UsesPrompt, Prepare: p.prepare, Choose: choose, Observer: policy.Observer{Routed: routed},
	}
}

// informed is a prompted policy that follows the engines' events.
type informed struct {
	prompted
	fleet *Fleet
}

func newInformed(f *Fleet) informed { return informed{prompted{block: f.block}, f} }

// policy is one with this rule. routed gets each decision.
func (p *informed) policy(
	choose func(*policy.Request, policy.View) policy.Decision, routed func(*policy.Request, policy.Decision),
) policy.Policy {
	all := p.prompted.policy(choose, routed)
	all.Prepare = p.prepare
	return all
}

func (p *informed) prepare(_ context.Context, q *policy.Request, _ policy.View) error {
	s := p.read(q, p.fleet.replicas)
	p.fleet.cached(s.blocks, s.depth)
	return nil
}

// found is what was found for a prompt.
type found struct {
	blocks []uint64
	tail   int   // 1 if the prompt ends in the middle of a block
	depth  []int // by replica
	most   int
}

func (p *prompted) prepare(_ context.Context, q *policy.Request, _ policy.View) error {
	s := p.read(q, len(p.slots))
	var m kvindex.Matches
	p.index.Match(s.blocks, &m)
	s.most = 0
	for i, slot := range p.slots {
		s.depth[i] = m.Depth(slot)
		s.most = max(s.most, s.depth[i])
	}
	return nil
}

// read hashes the prompt, the first time.
func (p *prompted) read(q *policy.Request, replicas int) *found {
	s, _ := q.Prepared.(*found)
	if s == nil {
		seed := kvindex.SeedFor(q.Model, q.Adapter, q.CacheSalt)
		s = &found{blocks: kvindex.AppendTokens(nil, q.Prompt.Tokens, p.block, seed), depth: make([]int, replicas)}
		if q.PromptTokens > len(s.blocks)*p.block {
			s.tail = 1
		}
		q.Prepared = s
	}
	return s
}

// remember notes that a replica was sent a prompt, unless it was pinned.
func (p *prompted) remember(q *policy.Request, d policy.Decision) {
	if s, ok := q.Prepared.(*found); ok {
		p.index.Insert(p.slots[d.Replica.Index()], s.blocks)
	}
}

// to is the decision for a replica.
func (p *prompted) to(q *policy.Request, r *policy.Replica, why policy.Reason) policy.Decision {
	if r == nil {
		return policy.Wait()
	}
	d := policy.To(r, why)
	d.MatchedTokens = q.Prepared.(*found).depth[r.Index()] * p.block
	return d
}

// scan returns a policy that looks at loads only.
func scan(cost func(policy.View, *policy.Replica) float64, why policy.Reason) policy.Policy {
	return policy.Policy{Choose: func(q *policy.Request, v policy.View) policy.Decision {
		r := least(q, v, func(r *policy.Replica) float64 { return cost(v, r) })
		if r == nil {
			return policy.Wait()
		}
		return policy.To(r, why)
	}}
}

func anyOf(policy.View, *policy.Replica) float64        { return 0 }
func load(v policy.View, r *policy.Replica) float64     { return v.Load(r) }
func requests(_ policy.View, r *policy.Replica) float64 { return float64(underWay(r)) }

// underWay counts the requests on a replica, those of others too as far as they are known.
func underWay(r *policy.Replica) int {
	others, _ := r.PeerLoad()
	return r.Ongoing() + others
}

// bounds are the least and the largest number of some replicas; 0 where there are none.
func bounds(replicas []*policy.Replica, of func(*policy.Replica) int) (low, high int) {
	for i, r := range replicas {
		n := of(r)
		if i == 0 || n < low {
			low = n
		}
		high = max(high, n)
	}
	return low, high
}

// least is the available replica with the lowest cost, a random one of equals.
func least(q *policy.Request, v policy.View, cost func(*policy.Replica) float64) *policy.Replica {
	var best *policy.Replica
	var low float64
	ties := 0
	for _, r := range v.Connected() {
		if !v.Available(q, r) {
			continue
		}
		switch c := cost(r); {
		case best == nil || c < low:
			best, low, ties = r, c, 1
		case c == low:
			if ties++; v.IntN(ties) == 0 {
				best = r
			}
		}
	}
	return best
}
