package kvindex

import "math/bits"

// window is what a step found out about its blocks.
type window struct {
	n      int
	refs   [step]ref
	fresh  int          // blocks that nobody holds
	gained int          // blocks that the lane does not hold
	pieces int          // of segments
	cells  [classes]int // how many more of each class the pieces may need
	made   uint64       // see again
}

// again reports whether a block was possibly made already: one of 64 kinds was.
func (w *window) again(hash uint64) bool {
	kind := uint64(1) << (hash >> 58)
	before := w.made&kind != 0
	w.made |= kind
	return before
}

// look finds the blocks of a step.
func (x *Index) look(w *window, lane uint16, blocks []uint64) {
	*w = window{n: len(blocks)}
	before, at, holders := noRef, none, 0
	var held uint8
	for i := 0; i < len(blocks); {
		r := x.findNear(before, blocks[i])
		if r == noRef {
			w.refs[i] = noRef
			w.fresh++
			w.gained++
			before, at = noRef, none
			i++
			continue
		}
		g := x.segments.at(r.segment())
		if r.segment() != at {
			at = r.segment()
			held, holders = x.heldBy(g, lane), len(x.holdings(g))
		}
		if before.segment() != at || r < before { // it will be touched by itself
			holders++
			w.cells[classFor(holders)]++
			w.pieces++
		}
		n := g.run(r.pos(), blocks[i:])
		for range n {
			w.refs[i], before = r, r
			w.gained += int(^held >> r.pos() & 1)
			i, r = i+1, r+1
		}
	}
	if w.fresh > 0 {
		w.pieces += w.segments() + 1
		if at := x.opened(lane); at != none {
			w.cells[x.nextClass(at)]++
		}
	}
}

// segments is how many new ones the blocks may need.
func (w *window) segments() int { return (w.fresh + segmentSize - 1) / segmentSize }

// makeRoom evicts until the lane can hold the blocks of a step within its capacity and the budget, and grows the
// table for them. Once it had to evict, the index is squeezed: the shards concerned fill up rather than
// grow, or each growth would wait until the whole index has shrunk by as much. It reports false if nothing is
// left to evict.
func (x *Index) makeRoom(w *window, lane uint16, blocks []uint64) bool {
	for squeezed := false; ; squeezed = true {
		l := &x.lanes[lane]
		over := 0
		if l.capacity > 0 {
			over = int(l.n) + w.gained - int(l.capacity)
		}
		if over <= 0 && x.fit(w, blocks, squeezed) {
			return true
		}
		switch {
		case over > 0 && l.n == 0: // the capacity became less than a step meanwhile
			return false
		case over > 0:
			for over > 0 && l.n > 0 {
				over -= x.evictLast(lane, over)
			}
		case !x.evict(max(w.gained/2, segmentSize)):
			return false
		}
		x.look(w, lane, blocks) // what is gone may have been of these
	}
}

// fit grows the table for the blocks of a step if that and all else that they need is within the budget.
func (x *Index) fit(w *window, blocks []uint64, squeezed bool) bool {
	need := x.nodes.need(w.pieces) + x.segments.need(w.segments())
	for class, n := range w.cells {
		if n > 0 {
			need += x.pool.need(class, n)
		}
	}
	var full [step]*shard
	growing := full[:0]
	for i, hash := range blocks {
		if w.refs[i] != noRef {
			continue
		}
		s := x.table.shard(x.mix(hash))
		if !s.full(w.fresh, squeezed) || contains(growing, s) {
			continue
		}
		if n := x.freshIn(s, w, blocks); s.full(n, squeezed) {
			need += s.growth(n)
			growing = append(growing, s)
		}
	}
	if x.bytes()+need > x.maxBytes {
		return false
	}
	for _, s := range growing {
		x.resize(s, s.grown(x.freshIn(s, w, blocks)))
	}
	return true
}

// freshIn counts the blocks of a step that the shard will get.
func (x *Index) freshIn(s *shard, w *window, blocks []uint64) (n int) {
	for i, hash := range blocks {
		if w.refs[i] == noRef && x.table.shard(x.mix(hash)) == s {
			n++
		}
	}
	return n
}

func contains(shards []*shard, s *shard) bool {
	for _, other := range shards {
		if other == s {
			return true
		}
	}
	return false
}

// evict drops about n of the least recently used holdings of all: of a retired lane if there is any, else the last
// of the lane whose last is the oldest. It reports whether there was one.
func (x *Index) evict(n int) bool {
	if x.unswept > 0 {
		x.sweep(n)
		return true
	}
	any := false
	for n > 0 {
		if x.victim == noLane || !x.stillOldest(&x.lanes[x.victim]) {
			x.chooseVictim()
		}
		if x.victim == noLane {
			break
		}
		n -= x.evictLast(x.victim, n)
		any = true
	}
	return any
}

// release makes the lane no holder of these positions any more. Blocks that nobody holds then go.
func (x *Index) release(lane uint16, at uint32, mask uint8) {
	g := x.segments.at(at)
	all := x.holdings(g)
	i, hi := ofLane(all, lane)
	gone := uint8(0)
	for n := hi - 1; n >= i; n-- {
		h := all[n]
		both := h.mask() & mask
		gone |= both
		switch {
		case both == 0:
		case both != h.mask():
			all[n].setMask(h.mask() &^ both)
		default:
			x.freeNode(h.node())
			x.removeHolding(at, n)
			all = x.holdings(g)
		}
	}
	lost := bits.OnesCount8(gone)
	x.lanes[lane].n -= uint32(lost)
	x.held -= lost
	for i := 0; gone != 0 && i < len(all); i++ {
		gone &^= all[i].mask()
	}
	if gone == 0 {
		return
	}
	if len(all) > 1 {
		g.holders[0] &^= holding(gone) << positionsAt
	}
	x.forget(g, at, gone)
}

// forget takes blocks that nobody holds any more from the table.
func (x *Index) forget(g *segment, at uint32, dead uint8) {
	for rest := dead; rest != 0; rest &= rest - 1 {
		pos := bits.TrailingZeros8(rest)
		mix := x.mix(g.hashes[pos])
		s := x.table.shard(mix)
		s.remove(mix, refOf(at, pos))
		x.blocks--
		if buckets, ok := s.sparse(); ok {
			x.resize(s, buckets)
		}
	}
	if g.live() == 0 && !g.isOpen() {
		x.segments.free(at)
	}
}

// tidy gives back what became free.
func (x *Index) tidy() {
	for x.nodes.hollow() {
		if from, to, moved := x.nodes.shrink(); moved {
			x.moveNode(from, to)
		}
	}
	for x.segments.hollow() {
		if from, to, moved := x.segments.shrink(); moved {
			x.moveSegment(from, to)
		}
	}
}

// moveSegment makes what led to a segment lead to its new place.
func (x *Index) moveSegment(from, to uint32) {
	g := x.segments.at(to)
	for rest := g.live(); rest != 0; rest &= rest - 1 {
		pos := bits.TrailingZeros8(rest)
		mix := x.mix(g.hashes[pos])
		x.table.shard(mix).replace(mix, refOf(from, pos), refOf(to, pos))
	}
	for _, h := range x.holdings(g) {
		x.nodes.at(h.node()).segment = to
	}
	if h := g.holders[0]; h.kind() == kindCell {
		x.pool.setOwner(h.class(), h.cell(), to)
	}
	if !g.isOpen() {
		return
	}
	for i := range x.lanes {
		if l := &x.lanes[i]; l.room > 0 && l.open == from {
			l.open = to
		}
	}
}
