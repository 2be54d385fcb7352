package kvindex

import (
	"math/bits"
	"slices"
)

// recency has the lanes, and the holdings of each in the order of their last use.
type recency struct {
	nodes  slab[node]
	lanes  []lane // by slot
	victim uint16 // lane that had the oldest holding, up to tick until
	until  uint32
}

// node is the place of a holding among those of its lane. These are linked in a ring from the most to the least
// recently used, with the lane's own node between them. Within a holding, the highest position goes first.
type node struct {
	segment uint32
	tick    uint32 // when it was last touched
	prev    uint32
	next    uint32
	lane    uint16
}

// ringOf is the number of a lane's own node; nodes of holdings have lower ones.
func ringOf(lane uint16) uint32 { return none - 1 - uint32(lane) }

// node returns a node of either kind.
func (y *recency) node(i uint32) *node {
	if lane := none - 1 - i; lane < noLane {
		return &y.lanes[lane].ring
	}
	return y.nodes.at(i)
}

// since returns how many ticks b is after a. Ticks are 32 bits and wrap around: what was not touched for half
// of them may be taken for younger than it is.
func since(a, b uint32) int32 { return int32(b - a) }

// link puts a node behind another one of its lane.
func (y *recency) link(i, behind uint32) {
	n, b := y.nodes.at(i), y.node(behind)
	n.prev, n.next = behind, b.next
	y.node(b.next).prev, b.next = i, i
}

func (y *recency) unlink(i uint32) {
	n := y.nodes.at(i)
	y.node(n.prev).next, y.node(n.next).prev = n.next, n.prev
}

// oldest returns the lane with the least recently used holding of all, noLane if there is none. tick is the latest.
func (y *recency) oldest(tick uint32) uint16 {
	if y.victim == noLane || !y.stillOldest(&y.lanes[y.victim]) {
		y.choose(tick)
	}
	return y.victim
}

// stillOldest relies on a lane's last tick never going down: until was the runner-up's when the victim
// was chosen, at most the tick of that moment, and no other lane's can be less by now.
func (y *recency) stillOldest(l *lane) bool {
	return l.n > 0 && since(y.nodes.at(l.ring.prev).tick, y.until) >= 0
}

func (y *recency) choose(tick uint32) {
	y.victim, y.until = noLane, tick
	var oldest uint32
	for i := range y.lanes {
		l := &y.lanes[i]
		if l.n == 0 {
			continue
		}
		switch last := y.nodes.at(l.ring.prev).tick; {
		case y.victim == noLane:
			y.victim, oldest = uint16(i), last
		case since(last, oldest) > 0:
			y.until, oldest = oldest, last
			y.victim = uint16(i)
		case since(last, y.until) > 0:
			y.until = last
		}
	}
}

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
	if g.inCell() {
		g.holders[0].setMask(live &^ gone)
	}
	x.blocks.drop(at, gone, gone == live)
	return lost
}

// Remove records that the replica no longer holds these blocks, in any order. Blocks and slots that are
// not in the index are ignored.
func (x *Index) Remove(s Slot, blocks []uint64) {
	for some := range slices.Chunk(blocks, step) {
		x.removeStep(s, some)
	}
}

func (x *Index) removeStep(s Slot, blocks []uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for before := noRef; x.lane(s) != nil && len(blocks) > 0; {
		_, r, n := x.blocks.run(before, blocks)
		if n > 0 {
			x.release(uint16(s), r.segment(), (1<<n-1)<<r.pos())
		}
		n = max(n, 1)
		before, blocks = r+ref(n-1), blocks[n:]
	}
}

// dropLast forgets the lane's least recently used block, and up to most that stand before it in its segment. It
// returns how many.
func (x *Index) dropLast(lane uint16, most int) int {
	at := x.lru.nodes.at(x.lru.lanes[lane].ring.prev).segment
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
		if lane == noLane || x.lru.lanes[lane].ring.prev == keep {
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
