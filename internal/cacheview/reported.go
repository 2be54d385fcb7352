package cacheview

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

// CacheChanged is [policy.CacheObserver]'s, for the policy to pass on.
func (x *Index) CacheChanged(changes []policy.CacheChange) {
	for i := range changes {
		x.change(&changes[i])
	}
}

func (x *Index) change(c *policy.CacheChange) {
	p, slot := x.slotFor(c)
	if slot == kvindex.NoSlot {
		return
	}
	if len(c.Removed) > 0 {
		p.Remove(slot, c.Removed)
	}
	if len(c.Stored) > 0 {
		p.Insert(slot, c.Stored)
	}
}

// slotFor returns where a change belongs; NoSlot if its replica is not in the fleet, or
// its blocks do not fit.
func (x *Index) slotFor(c *policy.CacheChange) (*part, kvindex.Slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[c.Replica]
	if m == nil || c.Tier >= policy.Tiers || c.Rank < 0 {
		return nil, kvindex.NoSlot
	}
	p := &x.blocks
	if c.BlockTokens == policy.SuperblockTokens {
		p = &x.supers
	}
	if !x.fits(m, c.BlockTokens) {
		x.refused.Add(1)
		return nil, kvindex.NoSlot
	}
	if p == &x.blocks {
		if m.block = c.BlockTokens; c.Cleared && len(c.Stored) == 0 {
			m.block = 0
		}
	}
	if !c.Predicted && m.reported.CompareAndSwap(false, true) {
		x.learnNames(m)
	}
	l := lane{member: m, rank: c.Rank, tier: c.Tier, part: p}
	slot, ok := m.lanes[l]
	if ok && !c.Cleared {
		return p, slot
	}
	if ok { // what it holds is forgotten with its slot
		p.Drop(slot)
		delete(m.lanes, l)
	}
	if slot = p.Add(); slot != kvindex.NoSlot {
		m.lanes[l] = slot
		p.SetLive(slot, !c.Predicted)
		p.set(slot, l)
	}
	return p, slot
}

// fits reports whether blocks of so many tokens can be looked up. Called with mu held.
func (x *Index) fits(m *Member, tokens int) bool {
	switch {
	case tokens == policy.SuperblockTokens:
		return rendezvous.PerSuperblock(x.o.Grain.Bytes, policy.BytesPerToken) > 0 ||
			rendezvous.PerSuperblock(x.Grain(orNone(m.models)[0]).Tokens, 1) > 0
	case x.o.Learn:
		return x.learnSize(m, tokens)
	default:
		return tokens == x.o.Grain.Tokens
	}
}
