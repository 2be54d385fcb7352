package kvindex

// lead is what an insert leaves with a holding, for Match to leap by: how many blocks of the chain before the segment's
// first position it touched together with this or later, plus a segment, since the chain may begin behind that
// position. The low three bits are the first position that this is not true of. 0 is nothing known.
//
// What was touched later is evicted later. So, until something as young is removed from the lane, that a block is
// held tells that these are held, too. This counts on chained hashes: the blocks before a block are always the same.
type lead uint16

const mostLead = 1<<13 - 1

// leadOf is the lead of a holding whose highest position is that of block i of an insert.
func (x *Index) leadOf(i, pos int) lead {
	if x.gaps {
		return 0
	}
	return lead(min(i-pos+segmentSize, mostLead)<<3 | (pos + 1))
}

// continues reports whether the lead is also true of positions before its own that have this other one.
func (l lead) continues(other lead) bool { return l>>3 == other>>3 && l>>3 < mostLead }

// blocks returns how many blocks are told of, up to the one at the position.
func (l lead) blocks(pos int) int {
	if pos >= int(l&7) {
		return 1
	}
	return max(int(l>>3)-segmentSize+pos+1, 1)
}

// led returns how many blocks, up to the one at a position of this node's holding, the lane surely holds.
func (x *Index) led(node uint32, pos int) int {
	n := x.nodes.at(node)
	if x.lanes[n.lane].writing > 0 || x.lostSince(n) {
		return 1
	}
	return n.lead.blocks(pos)
}

// lostSince reports whether the lane lost something that is at least as young as this node, but for what was evicted.
// What a lead tells of is.
func (x *Index) lostSince(n *node) bool { return n.tick <= x.lanes[n.lane].removed }

const (
	leapFrom  = 2 * segmentSize // most prompts that fork do so early
	leapLeast = 8 * segmentSize // below that, the search costs what going there does
)

// leap returns a depth, as great as it is quickly found, up to which all of the lanes in held, so many, surely hold
// the blocks if they do up to this depth, and where the last block before it stands.
func (x *Index) leap(blocks []uint64, held []uint64, lanes, depth int, last ref) (int, ref) {
	for at, beyond := len(blocks), len(blocks)+1; at > depth; at = depth + (beyond-depth)/2 {
		if r := x.find(blocks[at-1]); r != noRef && x.allLed(r, at-depth, held, lanes) {
			depth, last = at, r
		} else {
			beyond = at
		}
	}
	return depth, last
}

// allLed reports whether all of the lanes in held, so many, surely hold n blocks up to the one at r.
func (x *Index) allLed(r ref, n int, held []uint64, lanes int) bool {
	pos := r.pos()
	for _, h := range x.holdings(x.segments.at(r.segment())) {
		lane := h.lane()
		w := int(lane / 64)
		if w >= len(held) {
			break
		}
		if h.mask()>>pos&1 == 0 || held[w]>>(lane%64)&1 == 0 {
			continue
		}
		if x.led(h.node(), pos) < n {
			return false
		}
		lanes--
	}
	return lanes == 0
}
