package kvindex

import "math/bits"

// maxPieces is how many inserts a chain may have come in before scan is as good as proving it.
const maxPieces = 8

// bisect stores the depths of lanes that all hold blocks[held] and not blocks[missing], the deepest first.
// It reports false, with nothing of use stored, where a lane cannot prove that it holds all the blocks up
// to where it seems to end.
func (x *Index) bisect(blocks []uint64, m *Matches, lanes uint64, held, missing int) bool {
	if missing-held == 1 {
		return x.recordProven(blocks[:missing], m, lanes)
	}
	at := missing - 1 // the end first: most of what is asked again is held whole
	if missing < len(blocks) {
		at = (held + missing) / 2
	}
	var deeper uint64
	if e := x.block(blocks[at]); e != nil {
		deeper = lanes & e.low
	}
	if deeper != 0 && !x.bisect(blocks, m, deeper, at, missing) {
		return false
	}
	rest := lanes &^ deeper
	return rest == 0 || x.bisect(blocks, m, rest, held, at)
}

func (x *Index) recordProven(blocks []uint64, m *Matches, lanes uint64) bool {
	last := x.block(blocks[len(blocks)-1])
	for ; lanes != 0; lanes &= lanes - 1 {
		lane := uint16(bits.TrailingZeros64(lanes))
		if !x.holdsAll(blocks, last, lane) {
			m.reset()
			return false
		}
		s := x.lanes[lane].owner
		m.Holders = append(m.Holders, Holder{Slot: s, Depth: len(blocks)})
		m.depths[s] = int32(len(blocks))
	}
	return true
}

// holdsAll reports whether the lane surely holds these blocks, from the first to the last, whose entry this
// is: every node says how many blocks before it were touched together with it.
func (x *Index) holdsAll(blocks []uint64, last *entry, lane uint16) bool {
	l := &x.lanes[lane]
	if l.writing > 0 {
		return false
	}
	i := x.holdingOf(last, lane)
	for range maxPieces {
		if i == noNode {
			return false
		}
		n := x.nodes.at(i)
		if n.tick < l.removed || n.span == 0 {
			return false
		}
		if int(n.span) >= len(blocks) {
			return true
		}
		blocks = blocks[:len(blocks)-int(n.span)]
		i = x.holding(blocks[len(blocks)-1], lane)
	}
	return false
}
