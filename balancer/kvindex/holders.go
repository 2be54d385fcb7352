package kvindex

import (
	"math/bits"
	"unsafe"
)

// entry is a block and the lanes that hold it: lanes 0 to 63 as bits in low, the others in ext. Most blocks
// have one holder; its node is in ext, and the block has no place in the table of holdings.
type entry struct {
	hash uint64
	low  uint64
	ext  ext
}

// ext is a set of lanes from 64 up. Up to three are in the word itself, at bits 16, 32 and 48, their
// number at bit 3. More are in a cell of the pool, as an unsorted list or, where that is no larger, as a
// bitset: the class of the cell at bit 3, the number of lanes at bit 16, the cell at bit 32. Of a block that
// was never held by two at once, the one holder's lane is at bit 16, be it above 63 or not, and its node at
// bit 32.
type ext uint64

const (
	extNone ext = iota
	extInline
	extList
	extBits
	extOne

	lowLanes  = 64
	maxInline = 3
)

func (e ext) kind() ext           { return e & 7 }
func (e ext) class() int          { return int(e >> 3 & 15) }
func (e ext) cell() uint32        { return uint32(e >> 32) }
func (e ext) laneAt(i int) uint16 { return uint16(e >> (16 + 16*i)) }

// one returns the only holder's lane and node of an extOne.
func (e ext) one() (lane uint16, node uint32) { return e.laneAt(0), e.cell() }

func oneExt(lane uint16, node uint32) ext { return extOne | ext(lane)<<16 | ext(node)<<32 }

// count is the number of lanes, but for extOne.
func (e ext) count() int {
	if e.kind() == extInline {
		return e.class()
	}
	return int(e >> 16 & 0xffff)
}

func cellExt(kind ext, class, count int, cell uint32) ext {
	return kind | ext(class)<<3 | ext(count)<<16 | ext(cell)<<32
}

// pool has the cells of one or more words, in classes that double. The first word of a cell is the hash
// of the block that owns it; cells of a class are dense like nodes.
type pool struct {
	classes [classes]cells
	width   int // one more than the highest lane in use
	scratch []uint16
	bytes   int64
}

type cells struct {
	chunks []*[wordsPerChunk]uint64
	n      uint32
}

const (
	classes       = 10
	wordsPerChunk = 1024
	cellChunk     = int64(unsafe.Sizeof([wordsPerChunk]uint64{})) + 16
)

// words is the number of words for lanes in a cell.
func words(class int) int { return 2<<class - 1 }

// shape chooses the smallest cell for n lanes.
func (p *pool) shape(n int) (kind ext, class int) {
	for class = range classes - 1 {
		if 64*words(class) >= p.width-lowLanes {
			return extBits, class
		}
		if 4*words(class) >= n {
			return extList, class
		}
	}
	return extBits, classes - 1
}

// words returns the lanes' words of a cell.
func (p *pool) words(class int, cell uint32) []uint64 {
	at := int(cell) << (class + 1)
	chunk := p.classes[class].chunks[at/wordsPerChunk]
	return chunk[at%wordsPerChunk+1 : at%wordsPerChunk+2<<class]
}

func (p *pool) owner(class int, cell uint32) *uint64 {
	at := int(cell) << (class + 1)
	return &p.classes[class].chunks[at/wordsPerChunk][at%wordsPerChunk]
}

// fits reports whether one more lane goes in without another cell.
func (p *pool) fits(e ext, lane uint16) bool {
	switch e.kind() {
	case extNone, extOne:
		return true
	case extInline:
		return e.count() < maxInline
	case extList:
		return e.count() < 4*words(e.class())
	default:
		return int(lane) < lowLanes+64*words(e.class())
	}
}

// need returns how many bytes one more lane costs the pool.
func (p *pool) need(e ext, lane uint16) int64 {
	if lane < lowLanes || p.fits(e, lane) {
		return 0
	}
	_, class := p.shape(e.count() + 1)
	return p.cellNeed(class)
}

func (p *pool) cellNeed(class int) int64 {
	c := &p.classes[class]
	if int(c.n)<<(class+1) < len(c.chunks)*wordsPerChunk {
		return 0
	}
	return cellChunk
}

// add adds a lane that the set does not have.
func (x *Index) addLane(e *entry, lane uint16) {
	if lane < lowLanes {
		e.low |= 1 << lane
		return
	}
	p := &x.pool
	if !p.fits(e.ext, lane) {
		lanes := append(p.members(e.ext), lane)
		x.reshape(e, lanes)
		return
	}
	n := e.ext.count()
	switch e.ext.kind() {
	case extNone, extInline:
		e.ext = e.ext&^(15<<3)&^7 | extInline | ext(n+1)<<3 | ext(lane)<<(16+16*n)
		return
	case extList:
		p.words(e.ext.class(), e.ext.cell())[n/4] |= uint64(lane) << (n % 4 * 16)
	default:
		p.words(e.ext.class(), e.ext.cell())[(lane-lowLanes)/64] |= 1 << (lane % 64)
	}
	e.ext += 1 << 16
}

// removeLane removes a lane that the set has.
func (x *Index) removeLane(e *entry, lane uint16) {
	if lane < lowLanes {
		e.low &^= 1 << lane
		return
	}
	p := &x.pool
	kind, class, n := e.ext.kind(), e.ext.class(), e.ext.count()-1
	if kind == extInline || n <= maxInline {
		x.reshape(e, without(p.members(e.ext), lane))
		return
	}
	w := p.words(class, e.ext.cell())
	if kind == extBits {
		w[(lane-lowLanes)/64] &^= 1 << (lane % 64)
	} else {
		last := uint16(w[n/4] >> (n % 4 * 16))
		w[n/4] &^= 0xffff << (n % 4 * 16)
		for i := range n {
			if shift := i % 4 * 16; uint16(w[i/4]>>shift) == lane {
				w[i/4] = w[i/4]&^(0xffff<<shift) | uint64(last)<<shift
				break
			}
		}
	}
	e.ext -= 1 << 16
	if _, smaller := p.shape(n + n/2); smaller < class && x.bytes()+p.cellNeed(smaller) <= x.maxBytes {
		x.reshape(e, p.members(e.ext))
	}
}

func without(lanes []uint16, lane uint16) []uint16 {
	for i, l := range lanes {
		if l == lane {
			lanes[i] = lanes[len(lanes)-1]
			return lanes[:len(lanes)-1]
		}
	}
	return lanes
}

// mayBeHeldBy reports whether the lane is a holder, as far as the entry itself tells.
func (e *entry) mayBeHeldBy(lane uint16) bool {
	if lane < lowLanes {
		return e.low>>lane&1 != 0
	}
	switch e.ext.kind() {
	case extOne:
		one, _ := e.ext.one()
		return one == lane
	case extNone:
		return false
	case extInline:
		for i := range e.ext.count() {
			if e.ext.laneAt(i) == lane {
				return true
			}
		}
		return false
	default:
		return true
	}
}

// eachOf calls do with the lanes of a set that is not a bitset.
func (p *pool) eachOf(e ext, do func(lane uint16)) {
	switch e.kind() {
	case extOne:
		if lane, _ := e.one(); lane >= lowLanes {
			do(lane)
		}
	case extInline:
		for i := range e.count() {
			do(e.laneAt(i))
		}
	case extList:
		w := p.words(e.class(), e.cell())
		for i := range e.count() {
			do(uint16(w[i/4] >> (i % 4 * 16)))
		}
	}
}

// members lists the set in the pool's scratch space.
func (p *pool) members(e ext) []uint16 {
	lanes := p.scratch[:0]
	if e.kind() == extBits {
		for i, w := range p.words(e.class(), e.cell()) {
			for ; w != 0; w &= w - 1 {
				lanes = append(lanes, uint16(lowLanes+64*i+bits.TrailingZeros64(w)))
			}
		}
	} else {
		p.eachOf(e, func(lane uint16) { lanes = append(lanes, lane) })
	}
	p.scratch = lanes[:0]
	return lanes
}

// reshape gives the set the cell that fits these lanes best.
func (x *Index) reshape(e *entry, lanes []uint16) {
	p := &x.pool
	if e.ext.kind() >= extList {
		x.freeCell(e.ext.class(), e.ext.cell())
	}
	e.ext = 0
	if len(lanes) <= maxInline {
		for _, lane := range lanes {
			x.addLane(e, lane)
		}
		return
	}
	kind, class := p.shape(len(lanes))
	c := &p.classes[class]
	if p.cellNeed(class) > 0 {
		c.chunks = append(c.chunks, new([wordsPerChunk]uint64))
		p.bytes += cellChunk
	}
	cell := c.n
	c.n++
	*p.owner(class, cell) = e.hash
	clear(p.words(class, cell))
	e.ext = cellExt(kind, class, 0, cell)
	for _, lane := range lanes {
		x.addLane(e, lane)
	}
}

// freeCell moves the last cell of the class into this one.
func (x *Index) freeCell(class int, cell uint32) {
	p := &x.pool
	c := &p.classes[class]
	if last := c.n - 1; last != cell {
		hash := *p.owner(class, last)
		*p.owner(class, cell) = hash
		copy(p.words(class, cell), p.words(class, last))
		moved := x.block(hash)
		moved.ext = cellExt(moved.ext.kind(), class, moved.ext.count(), cell)
	}
	c.n--
	if last := len(c.chunks) - 1; int(c.n)<<(class+1) <= (last-1)*wordsPerChunk {
		c.chunks[last] = nil
		c.chunks = c.chunks[:last]
		p.bytes -= cellChunk
	}
}
