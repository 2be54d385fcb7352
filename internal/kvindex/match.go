package kvindex

import (
	"math/bits"
	"slices"
)

// Holder is a replica and how many leading blocks of a prompt it holds.
type Holder struct {
	Slot  Slot
	Owner any // what Add was given
	Depth int
}

// Matches is the answer of [Index.Match], to be used again for the next one. The zero value is ready. It
// belongs to one goroutine at a time.
type Matches struct {
	// Holders are the replicas that hold at least the first block, the deepest first. It is overwritten
	// by the next Match.
	Holders []Holder

	lanes []uint16 // that held every block so far
	short []Holder // that hold some of a run: their lanes, and how many
}

// Depth returns how many leading blocks the replica with this slot holds. O(holders).
func (m *Matches) Depth(s Slot) int {
	for _, h := range m.Holders {
		if h.Slot == s {
			return h.Depth
		}
	}
	return 0
}

// Match finds how many of the blocks each replica holds, contiguously from the first, and stores the
// answer in m, whatever was in it. It does not allocate once m has grown to the fleet. It goes from segment to
// segment, and stops at the first block that no replica holds after all those before.
func (x *Index) Match(blocks []uint64, m *Matches) {
	m.Holders = m.Holders[:0]
	if len(blocks) == 0 {
		return
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	g, r, n := x.blocks.run(noRef, blocks)
	if n == 0 {
		return
	}
	m.lanes = m.lanes[:0]
	for _, h := range x.cells.of(g) {
		if h.mask()>>r.pos()&1 != 0 && !x.lru.lanes[h.lane()].retired {
			m.lanes = append(m.lanes, h.lane())
		}
	}
	m.Holders = slices.Grow(m.Holders, len(m.lanes))[:len(m.lanes)]
	depth, left := 0, len(m.lanes)
	record := func(lane uint16, depth int) {
		left--
		m.Holders[left] = Holder{Slot(lane), x.lru.lanes[lane].owner, depth}
	}
	for n > 0 && left > 0 {
		m.narrow(x.cells.of(g), r.pos(), n)
		for d := 0; d < n && len(m.short) > 0; d++ {
			for _, h := range slices.Backward(m.short) {
				if h.Depth == d {
					record(uint16(h.Slot), depth+d)
				}
			}
		}
		if depth += n; depth == len(blocks) {
			break
		}
		g, r, n = x.blocks.run(r+ref(n-1), blocks[depth:])
	}
	for _, lane := range slices.Backward(m.lanes) {
		record(lane, depth)
	}
}

// narrow moves to short the lanes that do not hold all of n blocks from a position of a segment on. Lanes and holdings
// are in the same order.
func (m *Matches) narrow(all []holding, pos, n int) {
	m.short = m.short[:0]
	if i := 0; len(all) >= len(m.lanes) { // as a rule the same lanes hold all of it
		for want := uint8(1<<n-1) << pos; i < len(m.lanes) && all[i].lane() == m.lanes[i] && all[i].mask()&want == want; {
			i++
		}
		if i == len(m.lanes) {
			return
		}
	}
	kept := m.lanes[:0]
	i := 0
	for _, lane := range m.lanes {
		for i < len(all) && all[i].lane() < lane {
			i++
		}
		held := 0
		if i < len(all) && all[i].lane() == lane {
			held = bits.TrailingZeros8(^(all[i].mask() >> pos))
		}
		if held >= n {
			kept = append(kept, lane)
		} else {
			m.short = append(m.short, Holder{Slot: Slot(lane), Depth: held})
		}
	}
	m.lanes = kept
}
