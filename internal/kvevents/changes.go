package kvevents

import "github.com/warmpath/warmpath/balancer/policy"

// What a hash of a change covers.
const (
	fine   = iota // the engine's block
	coarse        // a superblock
	grains
)

// lane is the changes of one tier and grain, in their order. An index keeps these apart too, so only the order within
// one matters.
type lane []policy.CacheChange

// chain returns the last change if it has stored blocks, else nil.
func (l lane) chain() *policy.CacheChange {
	if n := len(l); n > 0 && len(l[n-1].Stored) > 0 {
		return &l[n-1]
	}
	return nil
}

// next returns the change for what does not follow what was stored last.
func (l *lane) next() *policy.CacheChange {
	if len(*l) == 0 || l.chain() != nil {
		*l = append(*l, policy.CacheChange{})
	}
	return &(*l)[len(*l)-1]
}

// clear: everything is gone; earlier changes do not matter any more.
func (l *lane) clear() { *l = append((*l)[:0], policy.CacheChange{Cleared: true}) }

// remove: a block is gone.
func (l *lane) remove(hash uint64) {
	c := l.next()
	c.Removed = append(c.Removed, hash)
}

// store: a block is there. It joins the chain stored last if its parent ends that one.
func (l *lane) store(hash, parent uint64) {
	c := l.chain()
	if c == nil || c.Stored[len(c.Stored)-1] != parent {
		c = l.next()
	}
	c.Stored = append(c.Stored, hash)
}

// changes collects what a batch changed.
type changes [policy.Tiers][grains]lane

// take returns the changes of a replica's rank, with this many tokens in a block, and empties them.
func (c *changes) take(replica string, rank, blockTokens int) (out []policy.CacheChange) {
	for t := range c {
		for g, tokens := range [grains]int{blockTokens, policy.SuperblockTokens} {
			for _, x := range c[t][g] {
				if !x.Cleared && len(x.Removed)+len(x.Stored) == 0 {
					continue
				}
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
		if l := &c[t][coarse]; l.chain() != nil {
			l.next()
		}
	}
}
