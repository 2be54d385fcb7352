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
	ray        bool // on_miss: smallest
	caches     *cacheview.Index
	popularity *rendezvous.Popularity
	scratch    sync.Pool // of *scratch

	// choosing belongs to Choose, and so to the Router's lock.
	choosing rendezvous.Scorer
	sampled  int // where the next search for the least load begins

	reuse rendezvous.Reuse
}

var (
	_ policy.Policy             = (*affinity)(nil)
	_ policy.KeyUser            = (*affinity)(nil)
	_ policy.RouteObserver      = (*affinity)(nil)
	_ policy.CompletionObserver = (*affinity)(nil)
	_ policy.FleetObserver      = (*affinity)(nil)
	_ policy.CacheObserver      = (*affinity)(nil)
	_ policy.CapacityObserver   = (*affinity)(nil)
	_ policy.IndexReporter      = (*affinity)(nil)
	_ policy.Previewer          = (*affinity)(nil)
	_ policy.SuperblockReporter = (*affinity)(nil)
	_ policy.PromptHasher       = (*affinity)(nil)
)

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &affinity{
		config: c,
		ray:    c.OnMiss == OnMissSmallest,
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.Grain{Bytes: c.BlockBytes, Tokens: c.BlockTokens},
		}),
		popularity: rendezvous.NewPopularity(),
		scratch:    sync.Pool{New: func() any { return new(scratch) }},
	}, nil
}

// Uses implements [policy.KeyUser].
func (p *affinity) Uses() policy.Uses {
	return policy.UsesSession | policy.UsesPrompt | policy.UsesLoad
}

// Prepare implements [policy.Policy]. Only the first time for a request is the
// prompt read and counted.
func (p *affinity) Prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if s = p.read(q, v); s == nil {
			return nil
		}
		q.Prepared = s
	}
	s.now = v.Now()
	p.find(s, p.caches.Fleet(v))
	return nil
}

// Routed implements [policy.RouteObserver]: the replica will hold the prompt.
func (p *affinity) Routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.release(s)
	if len(s.Hashes) == 0 {
		return
	}
	m := p.caches.Member(d.Replica)
	if p.ray {
		p.countBytes(s, m)
	} else {
		s.Sent(p.popularity)
	}
	s.predicted.End() // of an attempt before, whose end did not come
	p.caches.Routed(&s.predicted, m, 0, cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(), Alone: d.Replica.Ongoing() <= 1, Now: s.now,
	})
}

// Superblocks implements [policy.SuperblockReporter].
func (p *affinity) Superblocks(q *policy.Request, to []uint64) []uint64 {
	if s, _ := q.Prepared.(*prepared); s != nil {
		to, _ = s.Blocks.Superblocks(to)
	}
	return to
}

// Completed implements [policy.CompletionObserver].
func (p *affinity) Completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil || len(s.Hashes) == 0 {
		return
	}
	s.Ended(p.popularity, o.Sent)
	if !o.Prefilled() {
		p.caches.TakeBack(&s.predicted)
		if p.ray {
			p.caches.Member(d.Replica).SentBytes.Add(-s.bytes)
		}
		return
	}
	s.predicted.End()
	if d.Reason == policy.ReasonRendezvous && o.Usage.CachedTokens >= 0 {
		shared := s.CoveredTokens(s.shared)
		p.reuse.Learn(o.Usage.CachedTokens-shared, s.Tokens-shared)
	}
}

// release gives back the memory of the search.
func (p *affinity) release(s *prepared) {
	if s.found != nil {
		p.scratch.Put(s.found)
		s.found = nil
	}
}

// FleetChanged implements [policy.FleetObserver].
func (p *affinity) FleetChanged(c policy.FleetChange) { p.caches.FleetChanged(c) }

// CacheChanged implements [policy.CacheObserver]: what is reported of a replica goes
// before what was routed there. Ray's rule ignores it.
func (p *affinity) CacheChanged(changes []policy.CacheChange) {
	if !p.ray {
		p.caches.CacheChanged(changes)
	}
}

// ReplicaCapacity implements [policy.CapacityObserver]: what was routed to a replica
// counts as long as its KV cache can hold it.
func (p *affinity) ReplicaCapacity(id string, kvTokens int) { p.caches.SetCapacity(id, kvTokens) }

// PromptHashes implements [policy.PromptHasher].
func (p *affinity) PromptHashes(q *policy.Request) *policy.Hashed {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return nil
	}
	return s.Hashed()
}

// IndexStats implements [policy.IndexReporter].
func (p *affinity) IndexStats() policy.IndexStats { return p.caches.Stats() }
