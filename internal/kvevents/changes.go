package kvevents

import "github.com/warmpath/warmpath/balancer/policy"

// grain is what a hash of a change covers: the engine's block, or a superblock.
type grain uint8

const (
	fine grain = iota
	coarse
	grains
)

// changes collects what a batch changed, for each tier and grain apart: an index keeps them apart too, so only the
// order within one matters. Its slices are used again.
type changes struct {
	lanes [policy.Tiers][grains]lane
	n     int // steps since the last reset
	out   []policy.CacheChange
}

// lane is the changes of one tier and grain, in their order.
type lane struct {
	list   []span
	hashes []uint64

	// last is the hash stored last, at this depth: the next one joins its chain if it follows.
	last  uint64
	depth uint32
	open  bool
}

// span is a change whose hashes are in the lane's, the removed before the stored.
type span struct {
	cleared           bool
	from, stored, end int
}

func (c *changes) reset() {
	for t := range c.lanes {
		for g := range c.lanes[t] {
			l := &c.lanes[t][g]
			*l = lane{list: l.list[:0], hashes: l.hashes[:0]}
		}
	}
	clear(c.out)
	c.out, c.n = c.out[:0], 0
}

// clear: everything is gone; earlier changes do not matter any more.
func (l *lane) clear() {
	l.list = append(l.list[:0], span{cleared: true})
	l.hashes, l.open = l.hashes[:0], false
}

func (l *lane) push() *span {
	n := len(l.hashes)
	l.list = append(l.list, span{from: n, stored: n, end: n})
	return &l.list[len(l.list)-1]
}

// remove: a block is gone.
func (l *lane) remove(hash uint64) {
	l.open = false
	s := l.latest()
	if s == nil || s.end > s.stored {
		s = l.push()
	}
	l.hashes = append(l.hashes, hash)
	s.stored, s.end = s.stored+1, s.end+1
}

// store: a block is there. It joins the chain stored last if its parent ends that one.
func (l *lane) store(hash uint64, depth uint32, parent uint64, step uint32) {
	s := l.latest()
	follows := l.open && l.last == parent && l.depth+step == depth
	if s == nil || s.end > s.stored && !follows {
		s = l.push()
	}
	l.hashes = append(l.hashes, hash)
	s.end++
	l.last, l.depth, l.open = hash, depth, true
}

func (l *lane) latest() *span {
	if len(l.list) == 0 {
		return nil
	}
	return &l.list[len(l.list)-1]
}

// finish returns the changes of a replica's rank, with this many tokens in a block.
func (c *changes) finish(replica string, rank, blockTokens int) []policy.CacheChange {
	for t := range c.lanes {
		for g := range c.lanes[t] {
			l := &c.lanes[t][g]
			tokens := blockTokens
			if grain(g) == coarse {
				tokens = policy.SuperblockTokens
			}
			for _, s := range l.list {
				c.out = append(c.out, policy.CacheChange{
					Replica: replica, Rank: rank, Tier: policy.Tier(t), BlockTokens: tokens, Cleared: s.cleared,
					Removed: l.hashes[s.from:s.stored:s.stored], Stored: l.hashes[s.stored:s.end:s.end],
				})
			}
		}
	}
	return c.out
}

// cut ends the chains of superblocks: what comes next need not follow them.
func (c *changes) cut() {
	for t := range c.lanes {
		c.lanes[t][coarse].open = false
	}
}
