package kvaware

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// kvAware is the policy; it belongs to one Router.
type kvAware struct {
	config     Config
	caches     *cacheview.Index
	popularity *rendezvous.Popularity
	scratch    sync.Pool // of *scratch
	unrouted   unrouted

	// What follows belongs to Choose, and so to the Router's lock.
	recent   recent
	choosing rendezvous.Scorer
	options  []option
}

var (
	_ policy.Policy             = (*kvAware)(nil)
	_ policy.KeyUser            = (*kvAware)(nil)
	_ policy.RouteObserver      = (*kvAware)(nil)
	_ policy.CompletionObserver = (*kvAware)(nil)
	_ policy.WithdrawalObserver = (*kvAware)(nil)
	_ policy.FleetObserver      = (*kvAware)(nil)
	_ policy.CacheObserver      = (*kvAware)(nil)
	_ policy.CapacityObserver   = (*kvAware)(nil)
	_ policy.IndexReporter      = (*kvAware)(nil)
	_ policy.Previewer          = (*kvAware)(nil)
	_ policy.SuperblockReporter = (*kvAware)(nil)
	_ policy.PromptHasher       = (*kvAware)(nil)
)

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (policy.Policy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &kvAware{
		config: c,
		caches: cacheview.New(cacheview.Options{
			MaxBytes: c.IndexBytes,
			Grain:    rendezvous.Grain{Bytes: c.BlockBytes, Tokens: c.BlockTokens},
			Learn:    true,
			Ranks:    true,
			KVTokens: c.KVTokens,
		}),
		popularity: rendezvous.NewPopularity(),
		scratch:    sync.Pool{New: func() any { return new(scratch) }},
	}, nil
}

// Uses implements [policy.KeyUser].
func (p *kvAware) Uses() policy.Uses {
	return policy.UsesSession | policy.UsesPrompt | policy.UsesLoad
}

// Prepare implements [policy.Policy]. Only the first time for a request is the
// prompt read and counted.
func (p *kvAware) Prepare(_ context.Context, q *policy.Request, v policy.View) error {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		if s = p.read(q, v); s == nil {
			return nil
		}
		q.Prepared = s
	}
	s.now, s.since = v.Now(), p.unrouted.before.Load() // before the index is searched
	p.find(s, p.caches.Fleet(v))
	return nil
}

// Routed implements [policy.RouteObserver]: the replica will hold the prompt.
func (p *kvAware) Routed(q *policy.Request, d policy.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	s.Sent(p.popularity)
	s.predicted.End() // of an attempt before, whose end did not come
	p.caches.Routed(&s.predicted, p.caches.Member(d.Replica), max(d.Rank(), 0), cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(),
		Work:  policy.DefaultRequestCost + int64(max(s.Tokens-d.MatchedTokens, 0)),
		Alone: d.Replica.Ongoing() <= 1, Now: s.now,
	})
	p.unrouted.routed(s.number)
}

// Superblocks implements [policy.SuperblockReporter].
func (p *kvAware) Superblocks(q *policy.Request, to []uint64) []uint64 {
	if s, _ := q.Prepared.(*prepared); s != nil {
		to, _ = s.Blocks.Superblocks(to)
	}
	return to
}

// Withdrawn implements [policy.WithdrawalObserver].
func (p *kvAware) Withdrawn(q *policy.Request, d policy.Decision) {
	if s, _ := q.Prepared.(*prepared); s != nil {
		p.forget(s, d)
	}
}

// forget takes back the last pick of a request.
func (p *kvAware) forget(s *prepared, d policy.Decision) {
	p.recent.remove(s, d.Replica, int32(max(d.Rank(), 0)), s.number)
	p.unrouted.routed(s.number)
}

// Completed implements [policy.CompletionObserver].
func (p *kvAware) Completed(q *policy.Request, d policy.Decision, o policy.Outcome) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	s.Ended(p.popularity, o.Sent)
	if !o.Prefilled() {
		p.caches.TakeBack(&s.predicted)
		p.forget(s, d)
		return
	}
	s.predicted.End()
}

// FleetChanged implements [policy.FleetObserver].
func (p *kvAware) FleetChanged(c policy.FleetChange) { p.caches.FleetChanged(c) }

// CacheChanged implements [policy.CacheObserver].
func (p *kvAware) CacheChanged(changes []policy.CacheChange) { p.caches.CacheChanged(changes) }

// ReplicaCapacity implements [policy.CapacityObserver].
func (p *kvAware) ReplicaCapacity(id string, kvTokens int) { p.caches.SetCapacity(id, kvTokens) }

// PromptHashes implements [policy.PromptHasher].
func (p *kvAware) PromptHashes(q *policy.Request) *policy.Hashed {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return nil
	}
	return s.Hashed()
}

// IndexStats implements [policy.IndexReporter].
func (p *kvAware) IndexStats() policy.IndexStats { return p.caches.Stats() }
