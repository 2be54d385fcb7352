package kvindex

import "math/bits"

// segment is up to seven blocks that were inserted next to each other, as a rule a piece of a chain in order,
// and who holds which of them: one line of the processor's cache. Where one lane holds blocks of it, and touched
// them together, its holding is in the segment; else the holdings are in a cell of the pool.
type segment struct {
	hashes  [segmentSize]uint64
	holders [1]holding
}

const segmentSize = 7

// holding is what one lane holds of a segment and touched at one time. From the low bits: its node in 32, in a
// segment four bits of kind and state, at bit 40 the positions held, at bit 48 the lane. A lane may have several
// in one segment, of different positions. In a segment whose holdings are in a cell, the cell takes the place of
// the node, its class is at bit 48, and the positions are those that anybody holds.
type holding uint64

const (
	kindNone holding = iota << 32
	kindOne
	kindCell
	kindHole
	kindMask = kindHole

	open holding = 1 << 34 // a lane still fills the segment

	positions     = 1<<segmentSize - 1
	positionsAt   = 40
	laneAt        = 48
	positionsMask = holding(positions) << positionsAt
)

func newHolding(lane uint16, mask uint8, node uint32) holding {
	return holding(lane)<<laneAt | holding(mask)<<positionsAt | holding(node)
}

func (h holding) kind() holding { return h & kindMask }
func (h holding) node() uint32  { return uint32(h) }
func (h holding) mask() uint8   { return uint8(h >> positionsAt) }
func (h holding) lane() uint16  { return uint16(h >> laneAt) }
func (h holding) cell() uint32  { return uint32(h) }
func (h holding) class() int    { return int(h >> laneAt) }

func (h *holding) setMask(mask uint8) { *h = *h&^positionsMask | holding(mask)<<positionsAt }
func (h *holding) setNode(node uint32) {
	*h = *h&^holding(none) | holding(node)
}

// live returns the positions that anybody holds.
func (g *segment) live() uint8 { return g.holders[0].mask() }

func (g *segment) isOpen() bool { return g.holders[0]&open != 0 }
func (g *segment) isHole() bool { return g.holders[0].kind() == kindHole }

func (g *segment) dig(prev, next uint32) {
	g.holders[0] = kindHole
	g.hashes[0] = uint64(prev)<<32 | uint64(next)
}

func (g *segment) links() (prev, next uint32) {
	return uint32(g.hashes[0] >> 32), uint32(g.hashes[0])
}

// ref is the place of a block: its segment and, in the low three bits, the position there.
type ref uint32

const noRef = ^ref(0)

func refOf(segment uint32, pos int) ref { return ref(segment<<3) | ref(pos) }

func (r ref) segment() uint32 { return uint32(r >> 3) }
func (r ref) pos() int        { return int(r & 7) }

// holdings returns who holds blocks of a segment, in the order of the lanes. It is valid until one comes or goes.
func (x *Index) holdings(g *segment) []holding {
	switch h := g.holders[0]; h.kind() {
	case kindOne:
		return g.holders[:]
	case kindCell:
		return x.pool.holdings(h.class(), h.cell())
	default:
		return nil
	}
}

// ofLane returns which of the holdings are the lane's: from lo to hi.
func ofLane(all []holding, lane uint16) (lo, hi int) {
	for n := len(all); lo < n; {
		if mid := int(uint(lo+n) / 2); all[mid].lane() < lane {
			lo = mid + 1
		} else {
			n = mid
		}
	}
	for hi = lo; hi < len(all) && all[hi].lane() == lane; hi++ {
	}
	return lo, hi
}

// heldBy returns the positions of a segment that the lane holds.
func (x *Index) heldBy(g *segment, lane uint16) (mask uint8) {
	all := x.holdings(g)
	lo, hi := ofLane(all, lane)
	for _, h := range all[lo:hi] {
		mask |= h.mask()
	}
	return mask
}

// addHolding adds a holding of positions that the lane does not hold yet.
func (x *Index) addHolding(at uint32, h holding) {
	g := x.segments.at(at)
	state := g.holders[0] & open
	switch live := g.live() | h.mask(); g.holders[0].kind() {
	case kindNone:
		g.holders[0] = h | kindOne | state
	case kindOne:
		first := g.holders[0] &^ (kindMask | open)
		class := classFor(2)
		cell := x.newCell(class, at, 2)
		all := x.pool.holdings(class, cell)
		if all[0], all[1] = first, h; h.lane() < first.lane() {
			all[0], all[1] = h, first
		}
		g.holders[0] = cellHolder(class, live, cell) | state
	case kindCell:
		class, cell := g.holders[0].class(), g.holders[0].cell()
		n := x.pool.count(class, cell)
		if n == capacityOf(class) {
			class, cell = x.resizeCell(class, cell, classFor(n+1))
		}
		x.pool.setCount(class, cell, n+1)
		all := x.pool.holdings(class, cell)
		_, i := ofLane(all[:n], h.lane())
		copy(all[i+1:], all[i:n])
		all[i] = h
		g.holders[0] = cellHolder(class, live, cell) | state
	}
}

func cellHolder(class int, live uint8, cell uint32) holding {
	return kindCell | newHolding(uint16(class), live, cell)
}

// removeHolding takes out the i-th holding of a segment. Which positions are live then is the caller's to say,
// if more than one is left.
func (x *Index) removeHolding(at uint32, i int) {
	g := x.segments.at(at)
	state := g.holders[0] & open
	if g.holders[0].kind() == kindOne {
		g.holders[0] = kindNone | state
		return
	}
	class, cell, live := g.holders[0].class(), g.holders[0].cell(), g.live()
	all := x.pool.holdings(class, cell)
	copy(all[i:], all[i+1:])
	n := len(all) - 1
	if n == 1 {
		last := all[0]
		x.freeCell(class, cell)
		g.holders[0] = last | kindOne | state
		return
	}
	x.pool.setCount(class, cell, n)
	if fits := classFor(n + n/2); fits < class && x.bytes()+x.pool.need(fits, 1) <= x.maxBytes {
		class, cell = x.resizeCell(class, cell, fits)
		g.holders[0] = cellHolder(class, live, cell) | state
	}
}

// topOf returns the n highest of the positions, or all.
func topOf(mask uint8, n int) uint8 {
	top := uint8(0)
	for ; n > 0 && mask != 0; n-- {
		bit := uint8(1) << (bits.Len8(mask) - 1)
		top |= bit
		mask &^= bit
	}
	return top
}
