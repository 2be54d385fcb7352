package kvaware

import (
	"context"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// kvAware is the policy; it belongs to one Router.
type kvAware struct {
	caches     *cacheview.Index
	popularity *rendezvous.Popularity
	recent     recent

	// What follows belongs to Choose, and so to the Router's lock.
	choosing rendezvous.Scorer
	options  []option
	misses   int // picks since one with something cached
}

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	p, err := build(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func (p *kvAware) policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.UsesLoad,
		Prepare: p.prepare,
		Choose:  p.choose,
		Preview: p.preview,
		Observer: policy.Observer{
			Routed:          p.routed,
			Completed:       p.completed,
			Withdrawn:       p.withdrawn,
			FleetChanged:    p.caches.FleetChanged,
			CacheChanged:    p.caches.CacheChanged,
			CapacityChanged: p.caches.SetCapacity,
		},
		IndexStats: p.caches.Stats,
	}
}

func build(c Config) (*kvAware, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &kvAware{
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.GrainOf(c.BlockTokens),
			Learn:    true,
			Ranks:    true,
			KVTokens: max(int(c.KVTokens), 0),
		}),
		popularity: rendezvous.NewPopularity(),
	}, nil
}

// prepare reads and counts the prompt the first time for a request, and searches the index.
func (p *kvAware) prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if q.Prompt.Empty() && q.Session == "" {
			return nil
		}
		s = new(prepared)
		p.popularity.Read(&s.Prompt, q, p.caches.Grain(q.Model), p.caches.Seed(q), len(v.Replicas()))
		q.Prepared = s
	}
	s.since = p.recent.before.Load() // before the index is searched
	p.find(s, p.caches.Fleet(v))
	return nil
}

// routed notes that the replica will hold the prompt.
func (p *kvAware) routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.popularity.Sent(&s.Prompt)
	p.caches.Member(d.Replica).Routed(&s.predicted, max(d.Rank(), 0), cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(),
		Work:  policy.RequestCost + int64(max(s.Tokens-d.MatchedTokens, 0)),
		Alone: d.Replica.Ongoing() <= 1,
	})
	p.recent.routed(s.number)
}

func (p *kvAware) withdrawn(q *policy.Request, _ policy.Decision) {
	if s, _ := q.Prepared.(*prepared); s != nil {
		p.recent.remove(s)
	}
}

func (p *kvAware) completed(q *policy.Request, _ policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.popularity.Ended(&s.Prompt, o.Sent)
	s.predicted.End(o.Prefilled())
	if !o.Prefilled() {
		p.recent.remove(s)
	}
}
