package prefixaffinity

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// affinity is the policy; it belongs to one Router.
type affinity struct {
	config     Config
	rate       float64 // Config.MatchRateThreshold
	ray        bool    // on_miss: smallest
	caches     *cacheview.Index
	popularity *rendezvous.Popularity
	scratch    sync.Pool // of *scratch

	// choosing belongs to Choose, and so to the Router's lock.
	choosing rendezvous.Scorer

	reuse rendezvous.Reuse
}

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	p, err := build(c)
	if err != nil {
		return policy.Policy{}, err
	}
	return p.policy(), nil
}

func (p *affinity) policy() policy.Policy {
	return policy.Policy{
		Uses:    policy.UsesSession | policy.UsesPrompt | policy.UsesLoad,
		Prepare: p.prepare,
		Choose:  p.choose,
		Preview: p.choose, // another sample
		Observer: policy.Observer{
			Routed:          p.routed,
			Completed:       p.completed,
			FleetChanged:    p.caches.FleetChanged,
			CacheChanged:    p.cacheChanged,
			CapacityChanged: p.caches.SetCapacity,
		},
		IndexStats: p.caches.Stats,
	}
}

func build(c Config) (*affinity, error) {
	c = c.WithDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &affinity{
		config: c,
		rate:   max(float64(c.MatchRateThreshold), 0),
		ray:    c.OnMiss == OnMissSmallest,
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.GrainOf(c.BlockTokens),
		}),
		popularity: rendezvous.NewPopularity(),
		scratch:    sync.Pool{New: func() any { return new(scratch) }},
	}, nil
}

// prepare reads the prompt the first time for a request, and searches the index.
func (p *affinity) prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if q.Prompt.Empty() && (q.Session == "" || p.ray) {
			return nil
		}
		s = new(prepared)
		p.read(s, q, len(v.Replicas()))
		q.Prepared = s
	}
	p.find(s, p.caches.Fleet(v))
	return nil
}

// routed notes that the replica will hold the prompt.
func (p *affinity) routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || len(s.Hashes) == 0 {
		return
	}
	m := p.caches.Member(d.Replica)
	if p.ray {
		p.countBytes(s, m)
	} else {
		p.popularity.Sent(&s.Prompt)
	}
	s.predicted.End(true) // of an attempt before, whose end did not come
	m.Routed(&s.predicted, 0, cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(), Alone: d.Replica.Ongoing() <= 1,
	})
}

func (p *affinity) completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || len(s.Hashes) == 0 {
		return
	}
	p.popularity.Ended(&s.Prompt, o.Sent)
	if !o.Prefilled() {
		s.predicted.End(false)
		if p.ray {
			p.caches.Member(d.Replica).SentBytes.Add(-s.bytes)
		}
		return
	}
	s.predicted.End(true)
	if d.Reason == policy.ReasonRendezvous && o.Usage.CachedTokens >= 0 {
		shared := s.CoveredTokens(s.shared)
		p.reuse.Learn(o.Usage.CachedTokens-shared, s.Tokens-shared)
	}
}

// cacheChanged takes what is reported of a replica, which goes before what was routed there. Ray's rule ignores it.
func (p *affinity) cacheChanged(changes []policy.CacheChange) {
	if !p.ray {
		p.caches.CacheChanged(changes)
	}
}
