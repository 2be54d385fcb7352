package cacheview

import (
	"cmp"
	"maps"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// CacheChanged is [policy.CacheObserver]'s, for the policy to pass on.
func (x *Index) CacheChanged(changes []policy.CacheChange) {
	for i := range changes {
		c := &changes[i]
		slot := x.slotFor(c)
		x.blocks.Remove(slot, c.Removed)
		x.blocks.Insert(slot, c.Stored)
	}
}

// slotFor returns where a change belongs; NoSlot if its replica is not in the fleet, its blocks do not fit, or it stores
// none in a cache that has none.
func (x *Index) slotFor(c *policy.CacheChange) kvindex.Slot {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[c.Replica]
	if m == nil || c.Tier >= policy.Tiers || c.Rank < 0 {
		return kvindex.NoSlot
	}
	l := lane{member: m, rank: c.Rank, tier: c.Tier, coarse: c.Coarse}
	if c.Cleared { // the engine may have started anew, with other blocks
		if slot, ok := m.lanes[l]; ok { // what it holds is forgotten with its slot
			x.blocks.Drop(slot)
			delete(m.lanes, l)
		}
		if m.block = 0; !c.Coarse && !c.Predicted {
			x.forgetRoutes(m, c.Rank)
		}
	}
	if !x.fits(m, c) {
		if len(c.Stored) > 0 {
			x.refused.Add(1)
		}
		return kvindex.NoSlot
	}
	if !c.Predicted {
		x.reports(m, l.coarse)
	}
	if len(c.Stored) > 0 {
		m.block = cmp.Or(c.BlockTokens, m.block)
	}
	if slot, ok := m.lanes[l]; ok {
		return slot
	}
	if len(c.Stored) == 0 {
		return kvindex.NoSlot
	}
	slot := x.blocks.Add(&l)
	if slot != kvindex.NoSlot {
		m.lanes[l] = slot
		x.blocks.SetLive(slot, !c.Predicted)
		x.coarse.Store(x.coarse.Load() || l.coarse)
	}
	return slot
}

// forgetRoutes forgets the prompts that were routed to a rank: its cache was cleared. Called with mu held.
func (x *Index) forgetRoutes(m *Member, rank int) {
	own := m.own(rank)
	own.mu.Lock()
	defer own.mu.Unlock()
	x.blocks.Drop(own.slot)
	own.slot = x.blocks.Add(&lane{member: m, rank: min(rank, len(m.routes)-1), routed: true})
	own.blocks, own.open = 0, nil
}

// reports notes that a member reports its cache, in superblocks or in blocks. Called with mu held.
func (x *Index) reports(m *Member, coarse bool) {
	old, now := m.reported.Load(), inBlocks
	if coarse {
		now = max(old, inSuperblocks)
	}
	if now == old {
		return
	}
	m.reported.Store(now)
	for rank, own := range m.routes {
		own.mu.Lock()
		x.blocks.Drop(own.underWay)
		if own.underWay = kvindex.NoSlot; now == inSuperblocks {
			own.underWay = x.blocks.Add(&lane{member: m, rank: rank})
		}
		own.mu.Unlock()
	}
	if old == unreported {
		x.learnNames(maps.Clone(x.learnt.Load().names), m)
	}
}

// fits learns the size of the blocks of a change, and reports whether its hashes can be looked up. Called with mu held.
func (x *Index) fits(m *Member, c *policy.CacheChange) bool {
	if c.Coarse && c.BlockTokens == 0 {
		return rendezvous.PerSuperblock(x.o.Grain.Bytes, policy.BytesPerToken) > 0 ||
			rendezvous.PerSuperblock(x.Grain(m.models[0]).Tokens, 1) > 0
	}
	return x.learnSize(m, c.BlockTokens) && (!c.Coarse || rendezvous.PerSuperblock(c.BlockTokens, 1) > 0)
}

// learnt is what reports show of models, by the names that requests may use; "" stands for replicas that declare none.
// It is never written, but replaced under Index.mu.
type learnt struct {
	// names are those under which reported blocks were hashed: the first that a replica declares stands for all of them.
	names map[string]string
	sizes map[string]int // tokens in a block
}

// learnNames adds what members with reports declare to names, which become the learnt ones. Called with mu held.
func (x *Index) learnNames(names map[string]string, members ...*Member) {
	for _, m := range members {
		for _, name := range m.models {
			if _, ok := names[name]; !ok && m.reported.Load() != unreported {
				names[name] = m.models[0]
			}
		}
	}
	if len(names) > 0 {
		x.learnt.Store(&learnt{names, x.learnt.Load().sizes})
	}
}

// learnSize takes the block of the engine of a member; false if another replica of one of its models has blocks of
// another size, which makes their hashes others. Called with mu held.
func (x *Index) learnSize(m *Member, tokens int) bool {
	old := x.learnt.Load()
	isOther := func(name string) bool { return old.sizes[name] != tokens }
	switch {
	case tokens < 1 || tokens > maxBlockTokens:
		return false
	case !slices.ContainsFunc(m.models, isOther):
		return true
	}
	for _, o := range x.members {
		shared := func(name string) bool { return slices.Contains(m.models, name) }
		if o.block != 0 && o.block != tokens && slices.ContainsFunc(o.models, shared) {
			return false
		}
	}
	next := &learnt{old.names, maps.Clone(old.sizes)}
	for _, name := range m.models {
		next.sizes[name] = tokens
	}
	x.learnt.Store(next)
	return true
}

// Grain is how a prompt for this model is to be cut.
func (x *Index) Grain(model string) rendezvous.Grain {
	sizes := x.learnt.Load().sizes
	return rendezvous.Grain{Bytes: x.o.Grain.Bytes, Tokens: cmp.Or(sizes[model], sizes[""], x.o.Grain.Tokens)}
}

// Seed is what the prompt of a request is to be hashed with, so that its blocks are
// those of the reports.
func (x *Index) Seed(q *policy.Request) kvindex.Seed {
	return kvindex.SeedFor(x.learnt.Load().name(q.Model), q.Adapter, q.CacheSalt)
}

// name returns the name to hash a prompt for this model with. A request without model
// means the only one that is reported; one whose model no replica declares means the
// replicas that declare none.
func (l *learnt) name(model string) string {
	if name, ok := l.names[model]; ok {
		return name
	}
	if name, ok := l.names[""]; ok {
		return name
	}
	if model != "" {
		return model
	}
	only := ""
	for _, name := range l.names {
		if only != "" && name != only {
			return model
		}
		only = name
	}
	return only
}
