package kvindex

import "math/bits"

// hold makes the lane the holder of some positions of a segment, which stand there as they do in the chain, and
// these its most recently used. Ahead is the lead of these positions.
func (x *Index) hold(lane uint16, at uint32, mask uint8, ahead lead) {
	g := x.segments.at(at)
	all := x.holdings(g)
	i, hi := ofLane(all, lane)
	if i < hi && all[i].mask() == mask {
		x.renew(all[i].node())
		x.nodes.at(all[i].node()).lead = ahead
		return
	}
	gained := mask
	own := none // a node that has lost all its positions
	for n := hi - 1; n >= i; n-- {
		h := all[n]
		both := h.mask() & mask
		gained &^= both
		switch {
		case both == 0:
		case both != h.mask():
			all[n].setMask(h.mask() &^ both)
		default:
			if own != none {
				x.freeNode(own)
			}
			own = h.node()
			x.removeHolding(at, n)
			all = x.holdings(g)
		}
	}
	l := &x.lanes[lane]
	l.n += uint32(bits.OnesCount8(gained))
	x.held += bits.OnesCount8(gained)
	if x.joinFirst(g, lane, mask, own, ahead) {
		return
	}
	if own != none {
		x.renew(own)
	} else {
		own = x.nodes.push()
		*x.nodes.at(own) = node{segment: at, lane: lane, tick: x.tick}
		x.linkFirst(own)
	}
	x.nodes.at(own).lead = ahead
	x.addHolding(at, newHolding(lane, mask, own))
}

// joinFirst adds positions to the lane's most recently used holding if they are of the same segment and stand
// before it there: then the order of eviction is as if they had a node of their own. That one is freed.
func (x *Index) joinFirst(g *segment, lane uint16, mask uint8, own uint32, ahead lead) bool {
	first := x.lanes[lane].first
	if own == first && own != none {
		first = x.nodes.at(own).next
	}
	if first == none || x.segments.at(x.nodes.at(first).segment) != g {
		return false
	}
	all := x.holdings(g)
	i, hi := ofLane(all, lane)
	for ; i < hi; i++ {
		if h := all[i]; h.node() == first && h.mask()&-h.mask() > mask {
			all[i].setMask(h.mask() | mask)
			g.holders[0] |= holding(mask) << positionsAt
			if own != none {
				x.freeNode(own)
			}
			if n := x.nodes.at(first); x.lostSince(n) || !n.lead.continues(ahead) {
				n.lead = ahead
			}
			x.renew(first)
			return true
		}
	}
	return false
}
