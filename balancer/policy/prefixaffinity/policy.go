package prefixaffinity

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/routing"
)

// Policy is the policy. Make it with [New]; it belongs to one Router.
type Policy struct {
	config     Config
	ray        bool // on_miss: smallest
	index      *kvindex.Index
	popularity *popularity
	scratch    sync.Pool // of *scratch

	// choosing belongs to Choose, and so to the Router's lock.
	choosing scorer

	// mu guards known and the making of a new fleet. ReplicasChanged takes it under
	// the Router's lock; under it the index's is taken.
	mu    sync.Mutex
	known map[string]*member
	fleet atomic.Pointer[fleet]
}

var (
	_ routing.Policy             = (*Policy)(nil)
	_ routing.KeyUser            = (*Policy)(nil)
	_ routing.RouteObserver      = (*Policy)(nil)
	_ routing.MembershipObserver = (*Policy)(nil)
	_ routing.IndexReporter      = (*Policy)(nil)
)

// New returns a policy, or an error that names the field that is out of bounds.
func New(c Config) (*Policy, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Policy{
		config:     c,
		ray:        c.OnMiss == OnMissSmallest,
		index:      kvindex.New(kvindex.Options{MaxBytes: c.IndexBytes}),
		popularity: newPopularity(),
		scratch:    sync.Pool{New: func() any { return new(scratch) }},
		known:      make(map[string]*member),
	}, nil
}

// Uses implements [routing.KeyUser].
func (p *Policy) Uses() routing.Uses { return routing.UsesSession | routing.UsesPrompt }

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
	p.find(s, q, p.fleetOf(v))
	return nil
}

// Routed implements [routing.RouteObserver]: the replica will hold the prompt.
func (p *Policy) Routed(q *routing.Request, d routing.Decision) {
	s, _ := q.Prepared.(*prepared)
	if s == nil {
		return
	}
	p.release(s)
	if len(s.blocks) == 0 {
		return
	}
	m := p.member(d.Replica)
	if p.ray {
		p.countBytes(s, m)
	}
	p.index.Insert(m.slot, s.blocks)
}

// release gives back the memory of the search.
func (p *Policy) release(s *prepared) {
	if s.found != nil {
		p.scratch.Put(s.found)
		s.found = nil
	}
}

// IndexStats implements [routing.IndexReporter].
func (p *Policy) IndexStats() routing.IndexStats {
	x := p.index.Stats()
	return routing.IndexStats{Bytes: x.Bytes, Blocks: int64(x.Blocks), Evictions: int64(x.Evictions)}
}
