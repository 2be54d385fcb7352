package kvindex

// Remove records that the replica no longer holds these blocks, in any order. Blocks and slots that are
// not known are ignored.
func (x *Index) Remove(s Slot, blocks []uint64) {
	for len(blocks) > 0 {
		n := min(step, len(blocks))
		x.mu.RLock()
		warmth := x.warmHoldings(blocks[:n], x.laneOf(s))
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
	removed := false
	for _, hash := range blocks {
		if i := x.holding(hash, lane); i != noNode {
			x.drop(i)
			removed = true
		}
	}
	if removed {
		x.advance()
		x.lanes[lane].allOld(x.tick)
	}
}
