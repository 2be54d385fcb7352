package kvindex

import "math/bits"

// node is the place of a holding among those of its lane, which are linked from the most to the least recently
// used. Within a holding, the highest position goes first.
type node struct {
	segment uint32
	tick    uint32 // when it was last touched
	prev    uint32
	next    uint32
	lane    uint16
	lead    lead
}

func (n *node) dig(prev, next uint32)      { *n = node{lane: noLane, prev: prev, next: next} }
func (n *node) links() (prev, next uint32) { return n.prev, n.next }
func (n *node) isHole() bool               { return n.lane == noLane }

func (x *Index) linkFirst(i uint32) {
	n := x.nodes.at(i)
	l := &x.lanes[n.lane]
	n.prev, n.next = none, l.first
	if l.first != none {
		x.nodes.at(l.first).prev = i
	} else {
		l.last, l.oldest = i, n.tick
	}
	l.first = i
}

func (x *Index) unlink(i uint32) {
	n := x.nodes.at(i)
	l := &x.lanes[n.lane]
	if n.prev != none {
		x.nodes.at(n.prev).next = n.next
	} else {
		l.first = n.next
	}
	if n.next != none {
		x.nodes.at(n.next).prev = n.prev
		return
	}
	if l.last = n.prev; l.last != none {
		l.oldest = x.nodes.at(l.last).tick
	}
}

// renew moves a node to the front of its list.
func (x *Index) renew(i uint32) {
	n := x.nodes.at(i)
	n.tick = x.tick
	l := &x.lanes[n.lane]
	if l.first != i {
		x.unlink(i)
		x.linkFirst(i)
	} else if l.last == i {
		l.oldest = n.tick
	}
}

func (x *Index) freeNode(i uint32) {
	x.unlink(i)
	x.nodes.free(i)
}

// dropLast forgets the lane's least recently used block, and up to most that were touched together with it. It
// returns how many.
func (x *Index) dropLast(lane uint16, most int) int {
	last := x.lanes[lane].last
	at := x.nodes.at(last).segment
	all := x.holdings(x.segments.at(at))
	i, _ := ofLane(all, lane)
	for all[i].node() != last {
		i++
	}
	mask := topOf(all[i].mask(), most)
	x.release(lane, at, mask)
	x.tidy()
	return bits.OnesCount8(mask)
}

// evictLast is dropLast of what may still be in the replica's cache.
func (x *Index) evictLast(lane uint16, most int) int {
	n := x.dropLast(lane, most)
	x.evictions += uint64(n)
	if x.lanes[lane].told {
		x.untold += uint64(n)
	}
	return n
}

// moveNode makes what led to a node lead to its new place.
func (x *Index) moveNode(from, to uint32) {
	n := x.nodes.at(to)
	l := &x.lanes[n.lane]
	if n.prev != none {
		x.nodes.at(n.prev).next = to
	} else {
		l.first = to
	}
	if n.next != none {
		x.nodes.at(n.next).prev = to
	} else {
		l.last = to
	}
	all := x.holdings(x.segments.at(n.segment))
	i, _ := ofLane(all, n.lane)
	for all[i].node() != from {
		i++
	}
	all[i].setNode(to)
}

// advance starts the next tick. Ticks are 32 bits; once in two billion chunks of inserts the older half of
// the numbers is folded into one and the others move down, one pass over all nodes.
func (x *Index) advance() {
	if x.tick++; x.tick != 0 {
		return
	}
	const half = 1 << 31
	fold := func(tick *uint32) { *tick = max(*tick, half) - half }
	for i := range x.nodes.n {
		fold(&x.nodes.at(i).tick)
	}
	for i := range x.lanes {
		l := &x.lanes[i]
		fold(&l.oldest)
		fold(&l.older)
		fold(&l.recent)
		fold(&l.removed)
	}
	x.tick = half
	x.victim = noLane
}
