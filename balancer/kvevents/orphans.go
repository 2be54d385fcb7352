package kvevents

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/routing"
)

// Bounds of what waits for its parent.
const (
	maxOrphans      = 128
	maxOrphanTokens = 1 << 18
	orphanAge       = 10 * time.Second
)

// orphans are stores whose parent is not known yet, the oldest first.
type orphans struct {
	list   []orphan
	tokens int
}

type orphan struct {
	event
	tier routing.Tier
	came time.Time
	gone []uint64 // removed while it waited
}

func (o *orphans) n() int { return len(o.list) }

// keep holds an event for a while; the oldest make room.
func (o *orphans) keep(e *event, tier routing.Tier, now time.Time, c *counts) {
	if len(e.tokens) > maxOrphanTokens {
		c.orphaned++
		return
	}
	for len(o.list) >= maxOrphans || o.tokens+len(e.tokens) > maxOrphanTokens {
		o.drop(0)
		c.orphaned++
	}
	o.list = append(o.list, orphan{event: e.clone(), tier: tier, came: now})
	o.tokens += len(e.tokens)
}

func (o *orphans) drop(i int) {
	o.tokens -= len(o.list[i].tokens)
	o.list = slices.Delete(o.list, i, i+1)
}

// expire gives up those that waited too long.
func (o *orphans) expire(now time.Time, c *counts) {
	for len(o.list) > 0 && now.Sub(o.list[0].came) > orphanAge {
		o.drop(0)
		c.orphaned++
	}
}

// adopt takes out the first whose parent is known by now.
func (o *orphans) adopt(b *blocks) (orphan, bool) {
	for i, x := range o.list {
		if _, ok := b.find(x.parent); ok {
			o.drop(i)
			return x, true
		}
	}
	return orphan{}, false
}

// remove remembers that one copy of a block is gone before its parent was known.
func (o *orphans) remove(hash uint64, tier routing.Tier) {
	for i := range o.list {
		x := &o.list[i]
		if x.tier == tier && slices.Contains(x.hashes, hash) && !slices.Contains(x.gone, hash) {
			x.gone = append(x.gone, hash)
			return
		}
	}
}
