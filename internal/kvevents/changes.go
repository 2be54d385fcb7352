package kvevents

import "github.com/warmpath/warmpath/balancer/policy"

// lane is the changes of one tier and grain, in their order. An index keeps these apart too, so only the order within
// one matters.
type lane struct {
	list []policy.CacheChange

	last uint64 // the hash stored last: what follows it joins its chain
	open bool   // nothing came in between
}

// clear: everything is gone; earlier changes do not matter any more.
func (l *lane) clear() { *l = lane{list: append(l.list[:0], policy.CacheChange{Cleared: true})} }

// remove: a block is gone.
func (l *lane) remove(hash uint64) {
	if n := len(l.list); n == 0 || len(l.list[n-1].Stored) > 0 {
		l.list = append(l.list, policy.CacheChange{})
	}
	c := &l.list[len(l.list)-1]
	c.Removed, l.open = append(c.Removed, hash), false
}

// store: a block is there, behind another one. It joins the chain stored last if its parent ends that one.
func (l *lane) store(hash, parent uint64) {
	if n := len(l.list); n == 0 || len(l.list[n-1].Stored) > 0 && (!l.open || l.last != parent) {
		l.list = append(l.list, policy.CacheChange{})
	}
	c := &l.list[len(l.list)-1]
	c.Stored = append(c.Stored, hash)
	l.last, l.open = hash, true
}

// grain is what a hash of a change covers: the engine's block, or a superblock.
type grain uint8

const (
	fine grain = iota
	coarse
	grains
)

// changes collects what a batch changed.
type changes [policy.Tiers][grains]lane

// take returns the changes of a replica's rank, with this many tokens in a block, and empties them.
func (c *changes) take(replica string, rank, blockTokens int) (out []policy.CacheChange) {
	for t := range c {
		for g, tokens := range [grains]int{blockTokens, policy.SuperblockTokens} {
			for _, x := range c[t][g].list {
				x.Replica, x.Rank, x.Tier, x.BlockTokens = replica, rank, policy.Tier(t), tokens
				out = append(out, x)
			}
		}
	}
	*c = changes{}
	return out
}

// cut ends the chains of superblocks: what comes next need not follow them.
func (c *changes) cut() {
	for t := range c {
		c[t][coarse].open = false
	}
}
