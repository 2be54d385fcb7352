package kvindex

// Stats is the state of an [Index] at one moment.
type Stats struct {
	Replicas  int    // known now
	Blocks    int    // different blocks in memory, those that only removed or cleared replicas held included until they are swept
	Holders   int    // (block, replica) pairs that Match can see
	Bytes     int64  // memory held, counted from the arrays allocated
	MaxBytes  int64  // the budget, as it is now
	Evictions uint64 // (block, replica) pairs given up for a capacity or the byte budget, ever

	// LiveEvictions counts those of replicas marked by SetLive, and what they hold beyond the longest chain
	// that is taken in: the index tells less than their engines have. More than a few ask for a larger
	// budget.
	LiveEvictions uint64
}

// Stats returns the counts of the index, in constant time.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Stats{
		Replicas:      len(x.ids),
		Blocks:        x.blocks,
		Holders:       x.held - x.unswept,
		Bytes:         x.bytes(),
		MaxBytes:      x.maxBytes,
		Evictions:     x.evictions,
		LiveEvictions: x.untold,
	}
}

func (x *Index) setBudget(bytes int64) {
	x.maxBytes = bytes
	x.maxChain = int(bytes / chainBytes)
}

// changeCapacity sets what a slot is known to hold at most, and the budget if that follows.
func (x *Index) changeCapacity(s Slot, blocks uint32) {
	x.capacities += int64(blocks) - int64(x.slots[s].capacity)
	x.slots[s].capacity = blocks
	if x.follows {
		x.setBudget(min(max(x.maxBytes, x.capacities*bytesPerHolding), maxDefaultBytes))
	}
}

func (x *Index) bytes() int64 {
	return x.table.bytes + x.segments.bytes + x.nodes.bytes + x.pool.bytes + x.fixed
}

func (x *Index) fitBudget() {
	for x.bytes() > x.maxBytes && x.evict(segmentSize) {
	}
}

// stillOldest relies on a lane's oldest tick never going down: until was the runner-up's when the victim
// was chosen, at most the tick of that moment, and nobody else's can be less by now.
func (x *Index) stillOldest(l *lane) bool { return l.n > 0 && l.oldest <= x.until }

func (x *Index) chooseVictim() {
	x.victim, x.until = noLane, x.tick
	for i := range x.lanes {
		l := &x.lanes[i]
		switch {
		case l.generation == 0 || l.n == 0:
		case x.victim == noLane:
			x.victim = uint16(i)
		case l.oldest < x.lanes[x.victim].oldest:
			x.until = x.lanes[x.victim].oldest
			x.victim = uint16(i)
		default:
			x.until = min(x.until, l.oldest)
		}
	}
}
