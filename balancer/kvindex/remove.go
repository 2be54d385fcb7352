package kvindex

// Remove records that the replica no longer holds these blocks, in any order. Blocks and slots that are
// not known are ignored.
func (x *Index) Remove(s Slot, blocks []uint64) {
	for len(blocks) > 0 {
		n := min(step, len(blocks))
		x.mu.RLock()
		warmth := x.warm(blocks[:n])
		x.mu.RUnlock()
		x.mu.Lock()
		x.warmth += warmth
		if lane := x.laneOf(s); lane != noLane {
			x.removeStep(lane, blocks[:n])
		}
		x.mu.Unlock()
		blocks = blocks[n:]
	}
}

func (x *Index) removeStep(lane uint16, blocks []uint64) {
	at, mask, near := none, uint8(0), noRef
	for _, hash := range blocks {
		r := x.findNear(near, hash)
		if near = r; r == noRef {
			continue
		}
		if r.segment() != at {
			if mask != 0 {
				x.lose(lane, at, mask)
			}
			at, mask = r.segment(), 0
		}
		mask |= 1 << r.pos()
	}
	if mask != 0 {
		x.lose(lane, at, mask)
	}
	x.tidy()
}

// lose is release of what an engine gave up in an order of its own.
func (x *Index) lose(lane uint16, at uint32, mask uint8) {
	l := &x.lanes[lane]
	all := x.holdings(x.segments.at(at))
	lo, hi := ofLane(all, lane)
	for _, h := range all[lo:hi] {
		if h.mask()&mask != 0 {
			l.removed = max(l.removed, x.nodes.at(h.node()).tick)
		}
	}
	x.release(lane, at, mask)
}
