package cacheview

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
)

const (
	coarseShare = 16 // the budget's share for superblocks is 1 in so many
	minCoarse   = 1 << 20
)

// CacheChanged is [policy.CacheObserver]'s, for the policy to pass on.
func (x *Index) CacheChanged(changes []policy.CacheChange) {
	for i := range changes {
		x.change(&changes[i])
	}
}

func (x *Index) change(c *policy.CacheChange) {
	index, slot := x.slotFor(c)
	if slot == kvindex.NoSlot {
		return
	}
	if len(c.Removed) > 0 {
		index.Remove(slot, c.Removed)
	}
	if len(c.Stored) > 0 {
		index.Insert(slot, c.Stored)
	}
}

// slotFor returns where a change belongs; NoSlot if its replica is not in the fleet, or
// its blocks do not fit.
func (x *Index) slotFor(c *policy.CacheChange) (*kvindex.Index, kvindex.Slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	m := x.members[c.Replica]
	if m == nil || c.Tier >= policy.Tiers || c.Rank < 0 {
		return nil, kvindex.NoSlot
	}
	l := lane{member: m, rank: c.Rank, tier: c.Tier, coarse: c.BlockTokens == policy.SuperblockTokens}
	if !x.fits(m, c.BlockTokens, l.coarse) {
		x.refused.Add(1)
		return nil, kvindex.NoSlot
	}
	if !l.coarse {
		if m.block = c.BlockTokens; c.Cleared && len(c.Stored) == 0 {
			m.block = 0
		}
	}
	if !c.Predicted && m.reported.CompareAndSwap(false, true) {
		x.learnNames(m)
	}
	index, table := x.blocks, &x.fine
	if l.coarse {
		index, table = x.coarseIndex(), &x.super
	}
	slot, ok := m.lanes[l]
	if ok && !c.Cleared {
		return index, slot
	}
	if ok { // what it holds is forgotten with its slot
		index.Drop(slot)
		delete(m.lanes, l)
	}
	if slot = index.Add(); slot == kvindex.NoSlot {
		return nil, slot
	}
	if m.lanes == nil {
		m.lanes = make(map[lane]kvindex.Slot)
	}
	m.lanes[l] = slot
	index.SetLive(slot, !c.Predicted)
	table.set(slot, l)
	return index, slot
}

// fits reports whether blocks of so many tokens can be looked up. Called with mu held.
func (x *Index) fits(m *Member, tokens int, coarse bool) bool {
	switch {
	case coarse:
		return rendezvous.PerSuperblock(x.o.Grain.Bytes, policy.BytesPerToken) > 0 ||
			rendezvous.PerSuperblock(x.Grain(orNone(m.models)[0]).Tokens, 1) > 0
	case x.o.Learn:
		return x.learnSize(m, tokens)
	default:
		return tokens == x.o.Grain.Tokens
	}
}

// coarseIndex returns the index of superblocks. Called with mu held.
func (x *Index) coarseIndex() *kvindex.Index {
	c := x.coarse.Load()
	if c == nil {
		c = kvindex.New(kvindex.Options{MaxBytes: max(x.o.MaxBytes/coarseShare, minCoarse)})
		x.coarse.Store(c)
	}
	return c
}
