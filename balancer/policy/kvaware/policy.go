package kvaware

import (
	"context"
	"sync"

	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/cacheview"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// Policy is the policy. Make it with [New]; it belongs to one Router.
type Policy struct {
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
	_ routing.Policy             = (*Policy)(nil)
	_ routing.KeyUser            = (*Policy)(nil)
	_ routing.RouteObserver      = (*Policy)(nil)
	_ routing.CompletionObserver = (*Policy)(nil)
	_ routing.WithdrawalObserver = (*Policy)(nil)
	_ routing.FleetObserver      = (*Policy)(nil)
	_ routing.CacheObserver      = (*Policy)(nil)
	_ routing.CapacityObserver   = (*Policy)(nil)
	_ routing.IndexReporter      = (*Policy)(nil)
	_ routing.Previewer          = (*Policy)(nil)
	_ routing.SuperblockReporter = (*Policy)(nil)
	_ routing.PromptHasher       = (*Policy)(nil)
)

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (*Policy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Policy{
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

// Uses implements [routing.KeyUser].
func (p *Policy) Uses() routing.Uses {
	return routing.UsesSession | routing.UsesPrompt | routing.UsesLoad
}

// Prepare implements [routing.Policy]. Only the first time for a request is the
// prompt read and counted.
func (p *Policy) Prepare(_ context.Context, q *routing.Request, v *routing.View) error {
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

// Routed implements [routing.RouteObserver]: the replica will hold the prompt.
func (p *Policy) Routed(q *routing.Request, d routing.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	s.Sent(p.popularity)
	s.predicted.End() // of an attempt before, whose end did not come
	p.caches.Routed(&s.predicted, p.caches.Member(d.Replica), max(d.Rank(), 0), cacheview.Route{
		Blocks: s.Hashes, BlockTokens: s.TokensPerBlock(),
		Work:  routing.DefaultRequestCost + int64(max(s.Tokens-d.MatchedTokens, 0)),
		Alone: d.Replica.Ongoing() <= 1, Now: s.now,
	})
	p.unrouted.routed(s.number)
}

// Superblocks implements [routing.SuperblockReporter].
func (p *Policy) Superblocks(q *routing.Request, to []uint64) []uint64 {
	if s, _ := q.Prepared.(*prepared); s != nil {
		to, _ = s.Blocks.Superblocks(to)
	}
	return to
}

// Withdrawn implements [routing.WithdrawalObserver].
func (p *Policy) Withdrawn(q *routing.Request, d routing.Decision) {
	if s, _ := q.Prepared.(*prepared); s != nil {
		p.forget(s, d)
	}
}

// forget takes back the last pick of a request.
func (p *Policy) forget(s *prepared, d routing.Decision) {
	p.recent.remove(s, d.Replica, int32(max(d.Rank(), 0)), s.number)
	p.unrouted.routed(s.number)
}

// Completed implements [routing.CompletionObserver].
func (p *Policy) Completed(q *routing.Request, d routing.Decision, o routing.Outcome) {
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

// FleetChanged implements [routing.FleetObserver].
func (p *Policy) FleetChanged(c routing.FleetChange) { p.caches.FleetChanged(c) }

// CacheChanged implements [routing.CacheObserver].
func (p *Policy) CacheChanged(changes []routing.CacheChange) { p.caches.CacheChanged(changes) }

// ReplicaCapacity implements [routing.CapacityObserver].
func (p *Policy) ReplicaCapacity(id string, kvTokens int) { p.caches.SetCapacity(id, kvTokens) }

// PromptHashes implements [routing.PromptHasher].
func (p *Policy) PromptHashes(q *routing.Request) *routing.Hashed {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return nil
	}
	return s.Hashed()
}

// IndexStats implements [routing.IndexReporter].
func (p *Policy) IndexStats() routing.IndexStats { return p.caches.Stats() }
