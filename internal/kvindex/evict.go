package kvindex

import "math/bits"

// release takes these positions from the lane, and returns how many of them it held. Blocks that no lane holds then go.
func (x *Index) release(lane uint16, at uint32, mask uint8) int {
	g := x.blocks.segments.at(at)
	all := x.cells.of(g)
	i, ok := ofLane(all, lane)
	if !ok {
		return 0
	}
	gone := all[i].mask() & mask
	lost := bits.OnesCount8(gone)
	x.lru.lanes[lane].n -= uint32(lost)
	x.held -= lost
	live := g.live()
	if left := all[i].mask() &^ mask; left != 0 {
		all[i].setMask(left)
	} else {
		x.lru.unlink(all[i].node())
		x.lru.nodes.remove(all[i].node())
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
// not in the index are ignored.
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
	at := x.lru.nodes.at(x.lru.lanes[lane].last).segment
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
	if x.lru.lanes[lane].live {
		x.unreported += uint64(n)
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
		lane := x.lru.oldest(x.tick)
		if lane == noLane || x.lru.lanes[lane].last == keep {
			break
		}
		n -= x.evictLast(lane, n)
		any = true
	}
	return any
}

func (x *Index) fitBudget() {
	for x.bytes() > x.maxBytes && x.evict(segmentSize, none) {
	}
}
