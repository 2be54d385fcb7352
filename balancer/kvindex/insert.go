package kvindex

import "sort"

// Insert records that the replica holds these blocks, a chain in order: each block's hash is chained to the
// one before. The chain may begin anywhere; Match sees it once the blocks before are held too. Inserting
// makes the blocks the replica's most recently used, the head before the tail.
//
// To be cheap for what is routed again and again, Insert does nothing if the last block was touched,
// together with all the others given here, within about the last eighth of the replica's list. A block may
// therefore stand up to an eighth of the list, plus two chains, nearer to its eviction than exact LRU
// would have it. It is never behind its own descendants. While less than half of the byte budget, and of
// the replica's capacity, is used, nothing is near its eviction, and Insert does nothing for a chain that
// is held, however long ago it was touched.
//
// A chain longer than the replica's capacity, or than half of the byte budget surely holds, keeps its head.
// A slot that belongs to no replica is ignored.
func (x *Index) Insert(s Slot, blocks []uint64) {
	x.mu.RLock()
	p := x.planInsert(s, blocks)
	x.mu.RUnlock()
	if len(p.blocks) == 0 {
		return
	}
	if p.rescuing = true; x.insertSteps(&p, p.held) {
		p.rescuing = false
		x.insertSteps(&p, len(p.blocks))
	}
}

// insertion is what Insert found out before it takes the write lock, and where it stands.
type insertion struct {
	lane       uint16
	generation uint64
	blocks     []uint64
	beyond     int    // blocks that are more than the replica, or the index, can hold
	held       int    // leading blocks that are held and might be evicted by those behind them
	rescuing   bool   // touch these, before room is made for others
	began      uint32 // the first tick of this insert; 0 before it

	before uint32 // the node that stood before the last one touched: as a rule that of the block before
	warmth uint64 // see warm
}

// step is how many blocks a writer handles before it lets readers in.
const step = 32

func (x *Index) planInsert(s Slot, blocks []uint64) insertion {
	p := insertion{lane: x.laneOf(s), before: noNode}
	n := min(len(blocks), x.maxChain)
	if p.lane == noLane || n == 0 {
		return p
	}
	l := &x.lanes[p.lane]
	p.generation = l.generation
	if l.capacity > 0 {
		n = min(n, int(l.capacity))
	}
	if i := x.holding(blocks[n-1], p.lane); i != noNode {
		p.before = i
		recent := l.older
		if x.roomy(l) {
			recent = l.removed
		}
		if node := x.nodes.at(i); node.tick >= recent && int(node.span) >= n {
			return p
		}
	}
	p.blocks, p.beyond = blocks[:n], len(blocks)-n
	if l.capacity > 0 && int(l.n)+n > int(l.capacity) || x.bytes() > x.maxBytes-x.maxBytes/16 {
		p.held = x.heldOf(p.blocks, p.lane)
	}
	return p
}

// roomy reports whether the lane is far from evicting anything.
func (x *Index) roomy(l *lane) bool {
	return x.bytes() < x.maxBytes/2 && (l.capacity == 0 || l.n < l.capacity/2)
}

// heldOf returns how many leading blocks the lane holds, if it holds none behind them.
func (x *Index) heldOf(blocks []uint64, lane uint16) int {
	return sort.Search(len(blocks), func(i int) bool { return x.holding(blocks[i], lane) == noNode })
}

// insertSteps walks the first n blocks from tail to head; false if the lane was cleared or removed meanwhile.
func (x *Index) insertSteps(p *insertion, n int) bool {
	for end := n; end > 0; end -= step {
		low := max(0, end-step)
		x.warmStep(p, low, end)
		x.mu.Lock()
		if x.lanes[p.lane].generation != p.generation {
			x.mu.Unlock()
			return false
		}
		x.advance()
		if p.began == 0 {
			p.began = x.tick
			x.lanes[p.lane].writing++
		}
		x.sweep(2 * step)
		x.insertStep(p, low, end)
		if low == 0 && !p.rescuing {
			x.inserted(p)
		}
		x.mu.Unlock()
	}
	return true
}

// warmStep does what takes long in a step, waiting for memory, while readers and other writers may do so too.
func (x *Index) warmStep(p *insertion, low, end int) {
	x.mu.RLock()
	if !x.nodes.is(p.before, p.blocks[end-1], p.lane) { // else it is held, and found without a search
		p.warmth += x.warm(p.blocks[low:end])
	}
	x.mu.RUnlock()
}

// inserted ends an insert.
func (x *Index) inserted(p *insertion) {
	l := &x.lanes[p.lane]
	l.writing--
	l.age(len(p.blocks), min(p.began, x.tick))
	if l.told {
		x.untold += uint64(p.beyond)
	}
	x.warmth += p.warmth
}

// insertStep makes the blocks from low to end the most recently used of the lane.
func (x *Index) insertStep(p *insertion, low, end int) {
	for i := end - 1; i >= low; i-- {
		switch at, known := x.find(p, i); {
		case at != noNode:
			i = x.touch(p, at, low, i)
		case !p.rescuing:
			x.add(p, i, known)
		}
	}
}

// find returns the node of the block, or noNode, and whether anybody holds it. What was inserted as a chain
// stands in the lane's list as a chain, so where the block behind was found, the list leads to this one without
// a search.
func (x *Index) find(p *insertion, i int) (at uint32, known bool) {
	before, hash := p.before, p.blocks[i]
	p.before = noNode
	if x.nodes.is(before, hash, p.lane) {
		return before, true
	}
	if e := x.block(hash); e != nil {
		return x.holdingOf(e, p.lane), true
	}
	return noNode, false
}

// touch moves the holding of block i to the front of its list, and in one piece with it those of the blocks
// before, down to low, that stand there as they do in the chain. It returns the first of these blocks.
func (x *Index) touch(p *insertion, last uint32, low, i int) int {
	first := last
	n := x.nodes.at(first)
	n.tick, n.span = x.tick, p.span(i)
	for i > low && x.nodes.is(n.prev, p.blocks[i-1], p.lane) {
		i--
		first = n.prev
		n = x.nodes.at(first)
		n.tick, n.span = x.tick, p.span(i)
	}
	p.before = n.prev
	x.moveFirst(p.lane, first, last)
	return i
}

// span is what a node says of the blocks before block i: all touched with it, or nothing while heads are
// still to come.
func (p *insertion) span(i int) uint16 {
	if p.rescuing {
		return 0
	}
	return uint16(min(i+1, maxSpan))
}

// add makes the lane a holder of block i. If that is not known, nobody holds it, and it is not searched again.
func (x *Index) add(p *insertion, i int, known bool) {
	lane, hash := p.lane, p.blocks[i]
	for l := &x.lanes[lane]; l.capacity > 0 && l.n >= l.capacity; {
		x.evictLast(lane)
	}
	squeezed, ok := x.makeRoom(hash, lane, known)
	if !ok {
		x.advance()
		x.lanes[lane].allOld(x.tick) // deeper blocks of the chain have a gap before them
		if x.lanes[lane].told {
			x.untold++
		}
		return
	}
	at := x.nodes.push()
	*x.nodes.at(at) = node{hash: hash, tick: x.tick, lane: lane, span: p.span(i)}
	x.join(hash, lane, at, squeezed, known)
	x.linkFirst(lane, at)
	x.lanes[lane].n++
}
