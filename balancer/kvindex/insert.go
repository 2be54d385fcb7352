package kvindex

import "sort"

// Insert records that the replica holds these blocks, a chain in order: each block's hash is chained to the
// one before, but for [Options].Gaps. The chain may begin anywhere; Match sees it once the blocks before are held too. Inserting
// makes the blocks the replica's most recently used, the head before the tail.
//
// To be cheap for what is routed again and again, Insert does nothing if all the blocks are held, none was touched
// after one before it, and the last was touched within about the last eighth of the replica's list. A block may
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
	warmth     uint64 // see warm
}

// step is how many blocks a writer handles before it lets readers in.
const step = 32

func (x *Index) planInsert(s Slot, blocks []uint64) insertion {
	p := insertion{lane: x.laneOf(s)}
	n := min(len(blocks), x.maxChain)
	if p.lane == noLane || n == 0 {
		return p
	}
	l := &x.lanes[p.lane]
	p.generation = l.generation
	if l.capacity > 0 {
		n = min(n, int(l.capacity))
	}
	recent := l.older
	if x.roomy(l) {
		recent = l.removed
	}
	if x.isYoung(blocks[:n], p.lane, recent) {
		return p
	}
	p.blocks, p.beyond = blocks[:n], len(blocks)-n
	if l.capacity > 0 && int(l.n)+n > int(l.capacity) || x.bytes() > x.maxBytes-x.maxBytes/16 {
		p.held = x.heldOf(p.blocks, p.lane)
	}
	return p
}

// Held returns how many leading blocks of a chain the replica holds.
func (x *Index) Held(s Slot, blocks []uint64) int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	lane := x.laneOf(s)
	if lane == noLane {
		return 0
	}
	return x.heldOf(blocks, lane)
}

// heldOf returns how many leading blocks the lane holds, if it holds none behind them.
func (x *Index) heldOf(blocks []uint64, lane uint16) int {
	return sort.Search(len(blocks), func(i int) bool {
		r := x.find(blocks[i])
		return r == noRef || x.heldBy(x.segments.at(r.segment()), lane)>>r.pos()&1 == 0
	})
}

// insertSteps walks the first n blocks from tail to head; false if the lane was cleared or removed meanwhile.
func (x *Index) insertSteps(p *insertion, n int) bool {
	for end := n; end > 0; end -= step {
		if !x.insertStep(p, max(0, end-step), end) {
			return false
		}
	}
	return true
}

// insertStep is insertSteps for the blocks from low to end.
func (x *Index) insertStep(p *insertion, low, end int) bool {
	x.mu.RLock()
	p.warmth += x.warmStep(p.blocks[low:end]) // so that the wait for memory is not under the write lock
	x.mu.RUnlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.lanes[p.lane].generation != p.generation {
		return false
	}
	x.advance()
	if p.began == 0 {
		p.began = x.tick
		x.lanes[p.lane].writing++
	}
	x.sweep(2 * step)
	x.touch(p, low, end)
	x.tidy()
	if low == 0 && !p.rescuing {
		x.inserted(p)
	}
	return true
}

// warmStep reads what a step will need: the segments of what is known, then what is before it in the table.
func (x *Index) warmStep(blocks []uint64) (sum uint64) {
	for before := noRef; len(blocks) > 0; {
		r, n := x.runBehind(before, blocks)
		if n == 0 {
			return sum + x.warm(blocks)
		}
		sum += uint64(r)
		before, blocks = r, blocks[n:]
	}
	return sum
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

// touch makes the blocks from low to end the most recently used of the lane.
func (x *Index) touch(p *insertion, low, end int) {
	blocks := p.blocks[low:end]
	var w window
	x.look(&w, p.lane, blocks)
	if p.rescuing {
		x.rescue(&w, p.lane)
		return
	}
	if !x.makeRoom(&w, p.lane, blocks) {
		l := &x.lanes[p.lane]
		l.allOld(x.tick) // deeper blocks of the chain have a gap before them
		if l.told {
			x.untold += uint64(w.gained)
		}
		return
	}
	for i := len(blocks) - 1; i >= 0; {
		if w.refs[i] == noRef {
			w.refs[i] = x.create(&w, p.lane, blocks[i])
		}
		at, mask := w.refs[i].segment(), uint8(1)<<w.refs[i].pos()
		ahead := x.leadOf(low+i, w.refs[i].pos())
		for i--; i >= 0; i-- { // what stands before it in the same segment goes with it
			if w.refs[i] == noRef && x.opened(p.lane) == at {
				w.refs[i] = x.create(&w, p.lane, blocks[i])
			}
			if w.refs[i] == noRef || w.refs[i].segment() != at || uint8(1)<<w.refs[i].pos() >= mask&-mask {
				break
			}
			mask |= 1 << w.refs[i].pos()
		}
		x.hold(p.lane, at, mask, ahead)
	}
}

// rescue touches what the lane holds, but for what would cost memory.
func (x *Index) rescue(w *window, lane uint16) {
	for i := w.n - 1; i >= 0; {
		at, mask := w.refs[i].segment(), uint8(0)
		for ; i >= 0 && w.refs[i] != noRef && w.refs[i].segment() == at; i-- {
			mask |= 1 << w.refs[i].pos()
		}
		if mask == 0 {
			i--
			continue
		}
		if mask &= x.heldBy(x.segments.at(at), lane); mask == 0 {
			continue
		}
		if x.bytes()+x.nodes.need(1)+x.pool.need(x.nextClass(at), 1) <= x.maxBytes {
			x.hold(lane, at, mask, 0)
			continue
		}
		all := x.holdings(x.segments.at(at))
		lo, hi := ofLane(all, lane)
		for _, h := range all[lo:hi] {
			if h.mask()&mask != 0 {
				x.renew(h.node())
				x.nodes.at(h.node()).lead = 0
			}
		}
	}
}

// nextClass is the class of the cell that a segment needs for one more holding.
func (x *Index) nextClass(at uint32) int {
	return classFor(len(x.holdings(x.segments.at(at))) + 1)
}

// opened returns the segment that gets the lane's next new block, none if that is not there yet.
func (x *Index) opened(lane uint16) uint32 {
	if l := &x.lanes[lane]; l.room > 0 {
		return l.open
	}
	return none
}

// create makes a place for a block that nobody holds: before the last one that the lane made, so that chains,
// which come tail first, stand in order. The lane is to hold it at once.
func (x *Index) create(w *window, lane uint16, hash uint64) ref {
	if w.again(hash) { // no chain does so, but events are not to be trusted
		if r := x.find(hash); r != noRef {
			return r
		}
	}
	l := &x.lanes[lane]
	if l.room == 0 {
		l.open, l.room = x.segments.push(), segmentSize
		*x.segments.at(l.open) = segment{holders: [1]holding{open}}
	}
	l.room--
	g := x.segments.at(l.open)
	g.hashes[l.room] = hash
	if l.room == 0 {
		g.holders[0] &^= open
	}
	r := refOf(l.open, int(l.room))
	mix := x.mix(hash)
	x.table.shard(mix).insert(mix, r)
	x.blocks++
	return r
}
