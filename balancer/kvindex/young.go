package kvindex

import "math/bits"

// roomy reports whether the lane is far from evicting anything.
func (x *Index) roomy(l *lane) bool {
	return x.bytes() < x.maxBytes/2 && (l.capacity == 0 || l.n < l.capacity/2)
}

// isYoung reports whether the lane holds all of the blocks, no tail touched after its head, and the last not
// before the tick recent.
func (x *Index) isYoung(blocks []uint64, lane uint16, recent uint32) bool {
	if young, led := x.touchedSince(blocks[len(blocks)-1], lane, recent); !young || led >= len(blocks) {
		return young
	}
	latest := none
	for len(blocks) > 0 {
		r, n := x.run(blocks)
		if n == 0 {
			return false
		}
		blocks = blocks[n:]
		all := x.holdings(x.segments.at(r.segment()))
		lo, hi := ofLane(all, lane)
		for pos := r.pos(); n > 0; {
			i := lo
			for i < hi && all[i].mask()>>pos&1 == 0 {
				i++
			}
			if i == hi {
				return false
			}
			tick := x.nodes.at(all[i].node()).tick
			if tick > latest {
				return false
			}
			latest = tick
			together := min(bits.TrailingZeros8(^(all[i].mask() >> pos)), n)
			pos, n = pos+together, n-together
		}
	}
	return true
}

// touchedSince reports whether the lane holds the block and touched it not before the tick recent. If so, it also
// returns how many blocks, up to this one, were surely touched then or later.
func (x *Index) touchedSince(hash uint64, lane uint16, recent uint32) (young bool, led int) {
	r := x.find(hash)
	if r == noRef {
		return false, 0
	}
	all := x.holdings(x.segments.at(r.segment()))
	lo, hi := ofLane(all, lane)
	for _, h := range all[lo:hi] {
		if h.mask()>>r.pos()&1 != 0 {
			return x.nodes.at(h.node()).tick >= recent, x.led(h.node(), r.pos())
		}
	}
	return false, 0
}
