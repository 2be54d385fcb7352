package kvevents

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Bounds of what waits for its parent.
const (
	maxOrphans      = 128
	maxOrphanTokens = 1 << 18
	orphanAge       = 10 * time.Second
)

// orphans are stores whose parent is not known yet. Every operation costs what it adds or takes away.
type orphans struct {
	queue    []*orphan // the oldest first, those taken out among them
	byParent map[uint64][]*orphan
	copies   map[waitingCopy]waitingCount
	waiting  int
	weight   int
}

type orphan struct {
	Event
	tier  policy.Tier
	came  time.Time
	taken bool
}

// waitingCopy is a block on a tier that waits for its parent.
type waitingCopy struct {
	hash uint64
	tier policy.Tier
}

// waitingCount is how many copies wait, and how many of them were removed meanwhile.
type waitingCount struct{ stored, removed uint32 }

// weight is what an event counts against maxOrphanTokens. Blocks of few tokens count as those of 16.
func (e *Event) weight() int { return max(len(e.Tokens), 16*len(e.Hashes)) }

// keep holds an event for a while; the oldest make room.
func (o *orphans) keep(e *Event, tier policy.Tier, now time.Time, c *counts) {
	if e.weight() > maxOrphanTokens {
		c.orphaned++
		return
	}
	for o.waiting >= maxOrphans || o.weight+e.weight() > maxOrphanTokens {
		o.dropOldest(c)
	}
	if o.byParent == nil {
		o.byParent, o.copies = make(map[uint64][]*orphan), make(map[waitingCopy]waitingCount)
	}
	if len(o.queue) > 2*maxOrphans {
		o.queue = slices.DeleteFunc(o.queue, func(x *orphan) bool { return x.taken })
	}
	x := &orphan{Event: e.clone(), tier: tier, came: now}
	o.queue = append(o.queue, x)
	o.byParent[x.Parent] = append(o.byParent[x.Parent], x)
	for _, h := range x.Hashes {
		n := o.copies[waitingCopy{h, tier}]
		n.stored++
		o.copies[waitingCopy{h, tier}] = n
	}
	o.waiting++
	o.weight += x.weight()
}

// oldest returns the event that waits longest, nil if none does.
func (o *orphans) oldest() *orphan {
	for len(o.queue) > 0 && o.queue[0].taken {
		o.queue[0], o.queue = nil, o.queue[1:]
	}
	if len(o.queue) == 0 {
		return nil
	}
	return o.queue[0]
}

func (o *orphans) dropOldest(c *counts) {
	x := o.oldest()
	c.orphaned++
	same := o.byParent[x.Parent]
	if len(same) == 1 {
		delete(o.byParent, x.Parent)
	} else {
		o.byParent[x.Parent] = same[1:] // they are in the order of the queue
	}
	o.release(x)
	for _, h := range x.Hashes {
		o.settle(h, x.tier)
	}
}

func (o *orphans) release(x *orphan) {
	x.taken = true
	o.waiting--
	o.weight -= x.weight()
}

// expire gives up those that waited too long.
func (o *orphans) expire(now time.Time, c *counts) {
	for x := o.oldest(); x != nil && now.Sub(x.came) > orphanAge; x = o.oldest() {
		o.dropOldest(c)
	}
}

// adopt takes out the events whose parent is this block.
func (o *orphans) adopt(parent uint64) []*orphan {
	children := o.byParent[parent]
	delete(o.byParent, parent)
	for _, x := range children {
		o.release(x)
	}
	return children
}

// remove remembers that one copy of a block is gone before its parent was known.
func (o *orphans) remove(hash uint64, tier policy.Tier) {
	k := waitingCopy{hash, tier}
	if n := o.copies[k]; n.removed < n.stored {
		n.removed++
		o.copies[k] = n
	}
}

// settle takes a copy of a block out; gone reports whether it was removed while it waited.
func (o *orphans) settle(hash uint64, tier policy.Tier) (gone bool) {
	k := waitingCopy{hash, tier}
	n := o.copies[k]
	n.stored--
	if gone = n.removed > 0; gone {
		n.removed--
	}
	if n.stored == 0 {
		delete(o.copies, k)
	} else {
		o.copies[k] = n
	}
	return gone
}
