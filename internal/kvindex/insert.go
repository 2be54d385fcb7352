package kvindex

import (
	"math/bits"
	"slices"
)

// Insert records that the replica holds these blocks, a chain in order: each block's hash is chained to the
// one before. The chain may begin anywhere; Match sees it once the blocks before are held too. Inserting
// makes the blocks the replica's most recently used, the head before the tail.
//
// To be cheap for what is routed again and again, Insert does nothing if all the blocks are held and were
// touched within about the last eighth of the replica's list. A block may therefore stand up to an eighth of the list
// nearer to its eviction than exact LRU would have it. While less than half of the byte budget, and of
// the replica's capacity, is used, nothing is near its eviction, and Insert does nothing for a chain that
// is held, however long ago it was touched.
//
// A chain longer than the replica's capacity, or than half of the byte budget surely holds, keeps its head.
// A slot that belongs to no replica is ignored. Insert returns how many leading blocks the replica held before.
func (x *Index) Insert(s Slot, blocks []uint64) (held int) {
	p, held := x.planInsert(s, blocks)
	for len(p.blocks) > 0 && x.insertStep(&p) {
	}
	return held
}

// insertion is where an Insert stands between two steps.
type insertion struct {
	lane       uint16
	generation uint64
	blocks     []uint64 // that are left
	beyond     int      // blocks that are more than the replica, or the index, can hold
	tick       uint32   // of this insert; 0 before the first step
	after      uint32   // the node that the next one goes behind; the lane's own for the front
	before     ref      // where the block before stands; noRef if that is not known
}

// step is how many blocks a writer handles before it lets readers in.
const step = 32

// planInsert leaves no blocks where nothing is to be done.
func (x *Index) planInsert(s Slot, blocks []uint64) (p insertion, held int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p = insertion{lane: uint16(s), after: ringOf(uint16(s)), before: noRef}
	l := x.lane(s)
	if l == nil || len(blocks) == 0 {
		return p, 0
	}
	p.generation = l.generation
	n := min(len(blocks), int(x.maxBytes/chainBytes))
	if l.capacity > 0 {
		n = min(n, int(l.capacity))
	}
	held, young := x.holds(p.lane, blocks[:n])
	if held < n || !young {
		p.blocks, p.beyond = blocks[:n], len(blocks)-n
	}
	return p, held
}

// holds returns how many leading blocks the lane holds, and whether it touched them lately or is far from evicting any.
func (x *Index) holds(lane uint16, blocks []uint64) (held int, young bool) {
	l := &x.lru.lanes[lane]
	roomy := x.bytes() < x.maxBytes/2 && (l.capacity == 0 || l.n < l.capacity/2)
	young = true
	for before := noRef; held < len(blocks); {
		g, r, n := x.blocks.run(before, blocks[held:])
		if n == 0 {
			break
		}
		h := x.cells.heldBy(g, lane)
		has := min(n, bits.TrailingZeros8(^(h.mask() >> r.pos())))
		if held += has; has < n {
			break
		}
		young = young && (roomy || since(l.older, x.lru.nodes.at(h.node()).tick) >= 0)
		before = r + ref(n-1)
	}
	return held, young
}

// insertStep inserts the next blocks; false where none of the rest can be.
func (x *Index) insertStep(p *insertion) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := &x.lru.lanes[p.lane]
	if l.generation != p.generation { // the replica was dropped meanwhile
		return false
	}
	nodes := &x.lru.nodes
	if !nodes.has(p.after) || nodes.at(p.after).lane != p.lane || nodes.at(p.after).tick != p.tick {
		x.tick++
		p.tick, p.after, p.before = x.tick, ringOf(p.lane), noRef
	}
	x.sweep(2 * step)
	for left := step; left > 0 && len(p.blocks) > 0; {
		n := x.insertRun(p)
		if n == 0 {
			if l.live {
				x.unreported += uint64(len(p.blocks) + p.beyond)
			}
			return false
		}
		p.blocks = p.blocks[n:]
		left -= n
		if l.touched += uint32(n); l.touched > l.n/16 {
			l.older, l.recent, l.touched = l.recent, p.tick, 0
		}
	}
	if len(p.blocks) == 0 && l.live {
		x.unreported += uint64(p.beyond)
	}
	x.fitBudget()
	return true
}

// insertRun makes the lane the holder of the next blocks that stand, or can stand, in one segment, and returns how many
// they are; 0 where the only room is what the chain itself takes.
func (x *Index) insertRun(p *insertion) int {
	l := &x.lru.lanes[p.lane]
	for {
		g, r, n := x.blocks.run(p.before, p.blocks)
		fresh := n == 0
		gained, need := n, x.lru.nodes.need()
		if fresh {
			r, n = x.place(p)
			gained = n
			if need += x.blocks.need(p.blocks[:n]); r == noRef {
				need += x.blocks.segments.need()
			}
		} else {
			h := x.cells.heldBy(g, p.lane)
			gained -= bits.OnesCount8(h.mask() >> r.pos() & (1<<n - 1))
			if h == 0 {
				need += cellGrowth(len(x.cells.of(g))) + listBytes
			}
		}
		over := 0
		if l.capacity > 0 {
			over = int(l.n) + gained - int(l.capacity)
		}
		switch {
		case over > 0 && l.ring.prev == p.after:
			return 0
		case over > 0:
			x.evictLast(p.lane, over)
		case gained > 0 && x.bytes()+need > x.maxBytes:
			if !x.evict(max(gained/2, segmentSize), p.after) {
				return 0
			}
		default:
			if fresh {
				r = x.blocks.put(r, p.blocks[:n])
				l.open = r.segment()
			}
			x.hold(p, r, n)
			return n
		}
	}
}

// place returns where the next new blocks can stand, noRef for a segment of their own, and how many of them:
// behind the block before them, or, where the engine reports its blocks one by one, behind those that the
// lane inserted last: there room matters more than the order of eviction.
func (x *Index) place(p *insertion) (r ref, n int) {
	r = noRef
	if p.before != noRef {
		at, pos := p.before.segment(), p.before.pos()+1
		if pos < segmentSize && x.blocks.segments.has(at) && x.blocks.segments.at(at).live()>>pos == 0 {
			r = refOf(at, pos)
		}
	}
	if l := &x.lru.lanes[p.lane]; r == noRef && l.live && l.open != none && x.blocks.segments.has(l.open) {
		at := l.open
		if pos := bits.Len8(x.blocks.segments.at(at).live()); pos < segmentSize {
			r = refOf(at, pos)
		}
	}
	most := segmentSize
	if r != noRef {
		most -= r.pos()
	}
	for n = 1; n < min(most, len(p.blocks)); n++ {
		if known, _, _ := x.blocks.find(p.blocks[n]); known != noRef || slices.Contains(p.blocks[:n], p.blocks[n]) {
			break
		}
	}
	return r, n
}

// hold makes the lane the holder of n blocks at a place, and these its most recently used behind those before them.
func (x *Index) hold(p *insertion, r ref, n int) {
	g := x.blocks.segments.at(r.segment())
	l := &x.lru.lanes[p.lane]
	mask := uint8(1<<n-1) << r.pos()
	all := x.cells.of(g)
	i, ok := ofLane(all, p.lane)
	var own uint32
	if ok {
		own = all[i].node()
		l.n += uint32(bits.OnesCount8(mask &^ all[i].mask()))
		all[i].setMask(all[i].mask() | mask)
		if g.inCell() {
			g.holders[0].setMask(g.live() | mask)
		}
		if x.lru.nodes.at(own).tick != p.tick { // else the chain has been here before
			x.lru.unlink(own)
		}
	} else {
		own = x.lru.nodes.push()
		*x.lru.nodes.at(own) = node{segment: r.segment(), lane: p.lane, tick: p.tick - 1}
		x.cells.add(g, newHolding(p.lane, mask, own))
		l.n += uint32(n)
	}
	if nd := x.lru.nodes.at(own); nd.tick != p.tick {
		nd.tick = p.tick
		x.lru.link(own, p.after)
		p.after = own
	}
	p.before = r + ref(n-1)
}
