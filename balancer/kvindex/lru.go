package kvindex

import "unsafe"

// node is one holding: this block is held by the replica of this lane. The nodes of a lane are linked from
// the most to the least recently used.
type node struct {
	hash uint64
	tick uint32 // when it was last touched
	lane uint16
	span uint16 // how many blocks, ending with this one, were touched together; capped
	prev uint32
	next uint32
}

const (
	nodesPerChunk = 1024
	nodeChunk     = nodesPerChunk*int64(unsafe.Sizeof(node{})) + 16
	noNode        = ^uint32(0)
	maxSpan       = 1<<16 - 1
)

// nodes is an array in chunks with at most a chunk's worth of holes, linked by prev and next and marked
// with noLane. When there are more, the last node moves into the hole, so that chunks can be given back
// when the shape of the load changes.
type nodes struct {
	chunks []*[nodesPerChunk]node
	n      uint32 // nodes and holes
	holes  uint32
	hole   uint32 // the first, if there are holes
	bytes  int64
}

func (a *nodes) at(i uint32) *node { return &a.chunks[i/nodesPerChunk][i%nodesPerChunk] }

// is reports whether i is the node of this holding. It may be any number.
func (a *nodes) is(i uint32, hash uint64, lane uint16) bool {
	if i >= a.n {
		return false
	}
	n := a.at(i)
	return n.hash == hash && n.lane == lane
}

func (a *nodes) count() int { return int(a.n - a.holes) }

func (a *nodes) need() int64 {
	if a.holes > 0 || int(a.n) < len(a.chunks)*nodesPerChunk {
		return 0
	}
	return nodeChunk
}

func (a *nodes) push() uint32 {
	if a.holes > 0 {
		i := a.hole
		a.fill(i)
		return i
	}
	if a.need() > 0 {
		a.chunks = append(a.chunks, new([nodesPerChunk]node))
		a.bytes += nodeChunk
	}
	a.n++
	return a.n - 1
}

// dig makes a node a hole.
func (a *nodes) dig(i uint32) {
	next := noNode
	if a.holes > 0 {
		next = a.hole
		a.at(next).prev = i
	}
	*a.at(i) = node{lane: noLane, prev: noNode, next: next}
	a.hole = i
	a.holes++
}

// fill takes a hole out of the list.
func (a *nodes) fill(i uint32) {
	h := a.at(i)
	if h.prev != noNode {
		a.at(h.prev).next = h.next
	} else {
		a.hole = h.next
	}
	if h.next != noNode {
		a.at(h.next).prev = h.prev
	}
	a.holes--
}

func (a *nodes) pop() {
	a.n--
	if last := len(a.chunks) - 1; int(a.n) <= (last-1)*nodesPerChunk {
		a.chunks[last] = nil
		a.chunks = a.chunks[:last]
		a.bytes -= nodeChunk
	}
}

func (x *Index) linkFirst(lane uint16, i uint32) {
	l, n := &x.lanes[lane], x.nodes.at(i)
	n.prev, n.next = noNode, l.first
	if l.first != noNode {
		x.nodes.at(l.first).prev = i
	} else {
		l.last, l.oldest = i, n.tick
	}
	l.first = i
}

func (x *Index) unlink(i uint32) {
	n := x.nodes.at(i)
	l := &x.lanes[n.lane]
	if n.prev != noNode {
		x.nodes.at(n.prev).next = n.next
	} else {
		l.first = n.next
	}
	if n.next != noNode {
		x.nodes.at(n.next).prev = n.prev
		return
	}
	if l.last = n.prev; l.last != noNode {
		l.oldest = x.nodes.at(l.last).tick
	}
}

// moveFirst moves a piece of a list, from first to last, to its front. Their ticks may have changed.
func (x *Index) moveFirst(lane uint16, first, last uint32) {
	l, head, tail := &x.lanes[lane], x.nodes.at(first), x.nodes.at(last)
	if l.first != first {
		x.nodes.at(head.prev).next = tail.next
		if tail.next != noNode {
			x.nodes.at(tail.next).prev = head.prev
		} else {
			l.last = head.prev
		}
		x.nodes.at(l.first).prev = last
		head.prev, tail.next = noNode, l.first
		l.first = first
	}
	l.oldest = x.nodes.at(l.last).tick
}

// dropLast forgets the lane's least recently used holding. The buckets of those that will follow are read
// ahead, some at a time.
func (x *Index) dropLast(lane uint16) {
	l := &x.lanes[lane]
	if l.ahead == 0 {
		for i := l.last; i != noNode && l.ahead < ahead; l.ahead++ {
			n := x.nodes.at(i)
			x.warmth += x.warmBlock(n.hash)
			i = n.prev
		}
	}
	l.ahead--
	x.drop(l.last)
}

// evictLast is dropLast of what may still be in the replica's cache.
func (x *Index) evictLast(lane uint16) {
	x.dropLast(lane)
	x.evictions++
	if x.lanes[lane].told {
		x.untold++
	}
}

// drop forgets a holding, the block with it if nobody else holds it.
func (x *Index) drop(i uint32) {
	n := x.nodes.at(i)
	hash, lane := n.hash, n.lane
	x.unlink(i)
	x.lanes[lane].n--

	x.leave(hash, lane, i)

	x.nodes.dig(i)
	if x.nodes.holes > nodesPerChunk {
		x.compact()
	}
}

// compact makes the array shorter by one hole.
func (x *Index) compact() {
	last := x.nodes.n - 1
	if x.nodes.at(last).lane == noLane {
		x.nodes.fill(last)
	} else {
		hole := x.nodes.hole
		x.nodes.fill(hole)
		x.moveNode(last, hole)
	}
	x.nodes.pop()
}

func (x *Index) moveNode(from, to uint32) {
	n := x.nodes.at(to)
	*n = *x.nodes.at(from)
	l := &x.lanes[n.lane]
	if n.prev != noNode {
		x.nodes.at(n.prev).next = to
	} else {
		l.first = to
	}
	if n.next != noNode {
		x.nodes.at(n.next).prev = to
	} else {
		l.last = to
	}
	x.moved(n, from, to)
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
