package kvindex

import (
	"math/bits"
	"slices"
	"unsafe"
)

// segment is up to seven blocks that were inserted next to each other, as a rule a piece of a chain in order,
// and the lanes that hold them: one line of the processor's cache. The holding of one lane is in the segment; those of
// several are in a cell.
type segment struct {
	hashes  [segmentSize]uint64
	holders [1]holding
}

const segmentSize = 7

// holding is what one lane holds of a segment. From the low bits: its node in 32, at bit 40 the positions held, at bit
// 48 the lane. In a segment whose holdings are in a cell, a bit is set, the cell takes the place of the node, and the
// positions are those that any lane holds.
type holding uint64

const (
	cellBit holding = 1 << 32

	positionsAt   = 40
	laneAt        = 48
	positionsMask = holding(1<<segmentSize-1) << positionsAt
)

func newHolding(lane uint16, mask uint8, node uint32) holding {
	return holding(lane)<<laneAt | holding(mask)<<positionsAt | holding(node)
}

func (h holding) node() uint32 { return uint32(h) }
func (h holding) mask() uint8  { return uint8(h >> positionsAt) }
func (h holding) lane() uint16 { return uint16(h >> laneAt) }

func (h *holding) setMask(mask uint8) { *h = *h&^positionsMask | holding(mask)<<positionsAt }

// live returns the positions that any lane holds.
func (g *segment) live() uint8 { return g.holders[0].mask() }

// inCell reports whether several lanes hold some of it.
func (g *segment) inCell() bool { return g.holders[0]&cellBit != 0 }

// run returns how many of the blocks stand in the segment from a position on, where the first does.
func (g *segment) run(pos int, blocks []uint64) int {
	most := min(bits.TrailingZeros8(^(g.live() >> pos)), len(blocks))
	n := 1
	for n < most && g.hashes[pos+n] == blocks[n] {
		n++
	}
	return n
}

// ref is the place of a block: its segment and, in the low three bits, the position there.
type ref uint32

const noRef = ^ref(0)

func refOf(segment uint32, pos int) ref { return ref(segment<<3) | ref(pos) }

func (r ref) segment() uint32 { return uint32(r >> 3) }
func (r ref) pos() int        { return int(r & 7) }

// cells are the holdings of segments that several lanes hold, by lane.
type cells struct {
	lists [][]holding
	free  []uint32
	bytes int64
}

// cellGrowth is what one more holding costs a list of n, at most.
func cellGrowth(n int) int64 { return int64(n/2+8) * int64(unsafe.Sizeof(holding(0))) }

const listBytes = 2*int64(unsafe.Sizeof([]holding{})) + 8

func (c *cells) push() uint32 {
	if n := len(c.free); n > 0 {
		i := c.free[n-1]
		c.free = c.free[:n-1]
		return i
	}
	c.lists = append(c.lists, nil)
	c.bytes += listBytes
	return uint32(len(c.lists) - 1)
}

// set replaces a list by one of another length, in an array that fits.
func (c *cells) set(i uint32, list []holding) {
	was := int64(cap(c.lists[i]))
	if 2*len(list)+8 < cap(list) {
		list = slices.Clone(list)
	}
	c.lists[i] = list
	c.bytes += (int64(cap(list)) - was) * int64(unsafe.Sizeof(holding(0)))
}

// of returns the holdings of a segment, by lane.
func (c *cells) of(g *segment) []holding {
	switch h := g.holders[0]; {
	case h&cellBit != 0:
		return c.lists[h.node()]
	case h == 0:
		return nil
	}
	return g.holders[:]
}

// ofLane returns the place of the lane's holding among those of a segment, or where it would stand.
func ofLane(all []holding, lane uint16) (i int, ok bool) {
	for n := len(all); i < n; {
		if mid := int(uint(i+n) / 2); all[mid].lane() < lane {
			i = mid + 1
		} else {
			n = mid
		}
	}
	return i, i < len(all) && all[i].lane() == lane
}

// heldBy returns the lane's holding of a segment; 0 for none.
func (c *cells) heldBy(g *segment, lane uint16) holding {
	all := c.of(g)
	if i, ok := ofLane(all, lane); ok {
		return all[i]
	}
	return 0
}

// add adds the holding of a lane that has none at the segment.
func (c *cells) add(g *segment, h holding) {
	word := g.holders[0]
	if word == 0 {
		g.holders[0] = h
		return
	}
	cell, all := word.node(), c.of(g)
	if !g.inCell() {
		cell, all = c.push(), []holding{word}
	}
	i, _ := ofLane(all, h.lane())
	if len(all) == cap(all) {
		all = append(make([]holding, 0, len(all)+len(all)/4+2), all...)
	}
	c.set(cell, slices.Insert(all, i, h))
	g.holders[0] = newHolding(0, word.mask()|h.mask(), cell) | cellBit
}

// remove takes out the i-th holding of a segment. The caller sets which positions are live then, if more than one is
// left.
func (c *cells) remove(g *segment, i int) {
	word := g.holders[0]
	if !g.inCell() {
		g.holders[0] = 0
		return
	}
	all := slices.Delete(c.of(g), i, i+1)
	if len(all) == 1 {
		g.holders[0] = all[0]
		c.set(word.node(), nil)
		c.free = append(c.free, word.node())
		return
	}
	c.set(word.node(), all)
}
