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
}

// since returns how many ticks b is after a. Ticks are 32 bits and begin anew in the end: what was not touched for half of
// them may be taken for younger than it is.
func since(a, b uint32) int32 { return int32(b - a) }

// link puts a node behind another one of its lane, none for the front.
func (x *Index) link(i, behind uint32) {
	n := x.nodes.at(i)
	l := &x.lanes[n.lane]
	n.prev, n.next = behind, l.first
	if behind != none {
		b := x.nodes.at(behind)
		n.next, b.next = b.next, i
	} else {
		l.first = i
	}
	if n.next != none {
		x.nodes.at(n.next).prev = i
	} else {
		l.last = i
	}
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
	} else {
		l.last = n.prev
	}
}

// release makes the lane no holder of these positions any more, and returns how many of them it held. Blocks that no
// lane holds then go.
func (x *Index) release(lane uint16, at uint32, mask uint8) int {
	g := x.blocks.segments.at(at)
	all := x.cells.of(g)
	i, ok := ofLane(all, lane)
	if !ok {
		return 0
	}
	gone := all[i].mask() & mask
	lost := bits.OnesCount8(gone)
	x.lanes[lane].n -= uint32(lost)
	x.held -= lost
	live := g.live()
	if left := all[i].mask() &^ mask; left != 0 {
		all[i].setMask(left)
	} else {
		x.unlink(all[i].node())
		x.nodes.remove(all[i].node())
		x.cells.remove(g, i)
	}
	for _, h := range x.cells.of(g) {
		if gone &^= h.mask(); gone == 0 {
			break
		}
	}
	if g.holders[0].kind() == kindCell {
		g.holders[0].setMask(live &^ gone)
	}
	x.blocks.drop(at, gone, gone == live)
	return lost
}

// Remove records that the replica no longer holds these blocks, in any order. Blocks and slots that are
// not known are ignored.
func (x *Index) Remove(s Slot, blocks []uint64) {
	for len(blocks) > 0 {
		n := min(step, len(blocks))
		x.removeStep(s, blocks[:n])
		blocks = blocks[n:]
	}
}

func (x *Index) removeStep(s Slot, blocks []uint64) {
	defer x.write(blocks)()
	for before := noRef; x.lane(s) != nil && len(blocks) > 0; {
		_, r, n := x.blocks.run(before, blocks)
		if n > 0 {
			x.release(uint16(s), r.segment(), (1<<n-1)<<r.pos())
		}
		before = r
		if n > 1 {
			before += ref(n - 1)
		}
		blocks = blocks[max(n, 1):]
	}
}

// dropLast forgets the lane's least recently used block, and up to most that stand before it in its segment. It
// returns how many.
func (x *Index) dropLast(lane uint16, most int) int {
	at := x.nodes.at(x.lanes[lane].last).segment
	mask := x.cells.heldBy(x.blocks.segments.at(at), lane).mask()
	for bits.OnesCount8(mask) > most { // the lowest stay
		mask &= mask - 1
	}
	return x.release(lane, at, mask)
}

// evictLast is dropLast of what may still be in the replica's cache.
func (x *Index) evictLast(lane uint16, most int) int {
	n := x.dropLast(lane, most)
	x.evictions += uint64(n)
	if x.lanes[lane].live {
		x.untold += uint64(n)
	}
	return n
}

// evict drops about n of the least recently used holdings of all: of a retired lane if there is any, else the last
// of the lane whose last is the oldest, but for the node keep. It reports whether there was one.
func (x *Index) evict(n int, keep uint32) (any bool) {
	if x.unswept > 0 {
		x.sweep(n)
		return true
	}
	for n > 0 {
		if x.victim == noLane || !x.stillOldest(&x.lanes[x.victim]) {
			x.chooseVictim()
		}
		if x.victim == noLane || x.lanes[x.victim].last == keep {
			break
		}
		n -= x.evictLast(x.victim, n)
		any = true
	}
	return any
}

func (x *Index) fitBudget() {
	for x.bytes() > x.maxBytes && x.evict(segmentSize, none) {
	}
}

// stillOldest relies on a lane's last tick never going down: until was the runner-up's when the victim
// was chosen, at most the tick of that moment, and no other lane's can be less by now.
func (x *Index) stillOldest(l *lane) bool {
	return l.n > 0 && since(x.nodes.at(l.last).tick, x.until) >= 0
}

func (x *Index) chooseVictim() {
	x.victim, x.until = noLane, x.tick
	var oldest uint32
	for i := range x.lanes {
		l := &x.lanes[i]
		if l.n == 0 {
			continue
		}
		switch tick := x.nodes.at(l.last).tick; {
		case x.victim == noLane:
			x.victim, oldest = uint16(i), tick
		case since(tick, oldest) > 0:
			x.until, oldest = oldest, tick
			x.victim = uint16(i)
		case since(tick, x.until) > 0:
			x.until = tick
		}
	}
}
