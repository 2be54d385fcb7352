package kvindex

// Stats is the state of an [Index] at one moment.
type Stats struct {
	Replicas  int    // known now
	Blocks    int    // different blocks in memory, those that only removed or cleared replicas held included until they are swept
	Holders   int    // (block, replica) pairs that Match can see
	Bytes     int64  // memory held, counted from the arrays allocated
	Evictions uint64 // (block, replica) pairs given up for a capacity or the byte budget, ever
}

// Stats returns the counts of the index, in constant time.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Stats{
		Replicas:  len(x.ids),
		Blocks:    x.nblocks,
		Holders:   x.nodes.count() - x.unswept,
		Bytes:     x.bytes(),
		Evictions: x.evictions,
	}
}

func (x *Index) bytes() int64 {
	return x.blocks.bytes + x.holdings.bytes + x.nodes.bytes + x.pool.bytes + x.fixed
}

// makeRoom evicts until the lane can hold one more block within the budget. Once it had to evict, the
// index is squeezed: the shards concerned fill up rather than grow, or each growth would wait until the
// whole index has shrunk by as much.
func (x *Index) makeRoom(hash uint64, lane uint16) (squeezed, ok bool) {
	blockMix, holdingMix := x.mix(hash), x.mixHolding(hash, lane)
	for {
		need := x.nodes.need() + x.holdings.need(holdingMix, squeezed)
		if e := x.block(hash); e != nil {
			need += x.pool.need(e.ext, lane)
		} else {
			need += x.blocks.need(blockMix, squeezed)
		}
		if x.bytes()+need <= x.maxBytes {
			return squeezed, true
		}
		if !x.evict() {
			return false, false
		}
		squeezed = true
	}
}

func (x *Index) fitBudget() {
	for x.bytes() > x.maxBytes && x.evict() {
	}
}

// evict drops the least recently used holding of all: one of a retired lane if there is any, else the last
// of the lane whose last is the oldest. It reports whether there was one.
func (x *Index) evict() bool {
	if x.unswept > 0 {
		x.sweep(1)
		return true
	}
	if x.victim == noLane || !x.stillOldest(&x.lanes[x.victim]) {
		x.chooseVictim()
	}
	if x.victim == noLane {
		return false
	}
	x.drop(x.lanes[x.victim].last)
	x.evictions++
	return true
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
