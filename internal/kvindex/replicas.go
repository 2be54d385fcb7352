package kvindex

import (
	"math"
	"unsafe"
)

// Slot is the small number of a replica in an [Index], for slices and bitsets: numbers are dense from 0.
// The slot of a replica that was dropped is given to another one only after the last of its blocks is swept, the slot
// longest free first; do not use a slot after Drop.
type Slot uint16

// NoSlot is the slot of no replica. Insert, Remove, Drop, SetCapacity and SetLive ignore it.
const NoSlot Slot = math.MaxUint16

// lane is what a replica holds: a list of nodes, and a bit in the holders of blocks. Its number is the slot. A retired
// lane belongs to no replica, and its nodes are swept by later inserts.
type lane struct {
	ring     node   // between the most and the least recently used node
	n        uint32 // blocks
	capacity uint32 // 0 is none

	// Nodes touched at tick older or later are young: since then, about an eighth of the list was
	// touched. recent becomes older after every sixteenth.
	older, recent, touched uint32

	open       uint32 // the segment that gets the next new block, if it has room
	retired    bool
	live       bool   // see SetLive
	generation uint64 // unique to this use of the lane; 0 while it is free
	owner      any    // of the replica, for its Holders
}

const noLane = math.MaxUint16

// Add adds a replica and returns its slot, NoSlot where there are 65,535. Matches have the owner beside the slot.
func (x *Index) Add(owner any) Slot {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.free) == 0 && len(x.lru.lanes) == noLane {
		x.sweep(math.MaxInt)
	}
	var i uint16
	switch {
	case len(x.free) > 0:
		i, x.free = x.free[0], x.free[1:]
	case len(x.lru.lanes) == noLane:
		return NoSlot
	default:
		i = uint16(len(x.lru.lanes))
		x.lru.lanes = append(x.lru.lanes, lane{})
		x.fixed += laneBytes
	}
	x.generation++
	x.lru.lanes[i] = lane{
		ring: node{prev: ringOf(i), next: ringOf(i)}, open: none, older: x.tick, recent: x.tick,
		generation: x.generation, owner: owner,
	}
	x.fitBudget()
	return Slot(i)
}

// Drop forgets a replica and all it holds, at once for every later Match.
func (x *Index) Drop(s Slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.lane(s)
	if l == nil {
		return
	}
	x.generation++
	l.generation, l.retired, l.owner = x.generation, true, nil
	x.unswept += int(l.n)
	x.retired = append(x.retired, uint16(s))
	x.sweep(0)
}

// lane returns the lane of a replica, nil for a slot without one.
func (x *Index) lane(s Slot) *lane {
	if int(s) >= len(x.lru.lanes) || x.lru.lanes[s].generation == 0 || x.lru.lanes[s].retired {
		return nil
	}
	return &x.lru.lanes[s]
}

// SetCapacity sets how many blocks the replica's KV cache holds, and evicts what is more. 0 or less means
// that only the byte budget bounds it.
func (x *Index) SetCapacity(s Slot, blocks int) {
	for more := true; more; {
		more = x.setCapacity(s, uint32(min(max(blocks, 0), math.MaxUint32)))
	}
}

// setCapacity reports whether more is to be evicted.
func (x *Index) setCapacity(s Slot, blocks uint32) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	l := x.lane(s)
	if l == nil {
		return false
	}
	l.capacity = blocks
	for n := 0; n < step; {
		if blocks == 0 || l.n <= blocks {
			return false
		}
		n += x.evictLast(uint16(s), int(l.n-blocks))
	}
	return true
}

// SetLive marks the replica as one whose contents the engine itself reports to the index, or no longer. What
// the index then gives up of it, for a capacity or the byte budget, is counted in [Stats].LiveEvictions: the
// engine still has it.
func (x *Index) SetLive(s Slot, live bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if l := x.lane(s); l != nil {
		l.live = live
	}
}

// sweep drops about n holdings of retired lanes, and frees the lanes that are empty.
func (x *Index) sweep(n int) {
	for len(x.retired) > 0 {
		i := x.retired[0]
		l := &x.lru.lanes[i]
		for n > 0 && l.n > 0 {
			dropped := x.dropLast(i, n)
			n, x.unswept = n-dropped, x.unswept-dropped
		}
		if l.n > 0 {
			return
		}
		*l = lane{}
		x.free, x.retired = append(x.free, i), x.retired[1:]
	}
}

// laneBytes is what a lane costs: itself, a share of the slice's growth, its place in the lists of the free
// and the retired.
const laneBytes = 2*int64(unsafe.Sizeof(lane{})) + 8
