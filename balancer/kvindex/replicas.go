package kvindex

import (
	"math"
	"unsafe"
)

// Slot is the small number of a replica in an [Index], for slices and bitsets: numbers are dense from 0.
// A removed replica's slot is given to another one only after the last of its blocks is swept, and the slot
// longest free first; still, a user that removes a replica lets go of its slot.
type Slot uint16

// NoSlot is the slot of no replica. Insert, Remove, Clear, SetCapacity and SetLive ignore it.
const NoSlot Slot = math.MaxUint16

// slot leads from a replica to its lane. Clear gives a replica a new lane, so that the slot stays.
type slot struct {
	lane     uint16
	capacity uint32
	live     bool
}

// lane is what a replica holds: a list of nodes and a bit in the holders of blocks. A retired lane belongs
// to no replica; its bit counts for none, and its nodes are swept by later inserts.
type lane struct {
	first, last uint32
	n           uint32
	capacity    uint32 // 0 is none

	// Nodes touched at tick older or later are young: since then, about an eighth of the list was
	// touched. recent becomes older after every sixteenth.
	older, recent uint32
	touched       int

	open uint32 // the segment that gets the next new block, if it has room

	generation uint64 // unique to this use of the lane; 0 while it is free
	owner      Slot
	retired    bool
	frees      bool // the slot is free once the lane is swept
	told       bool // by the engine's own events: an eviction is one that the engine did not make
}

const noLane = math.MaxUint16

// AddReplica makes a replica known and returns its slot; the same one every time, until RemoveReplica. It
// returns NoSlot if 65,535 replicas are known.
func (x *Index) AddReplica(id string) Slot {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s, ok := x.ids[id]; ok {
		return s
	}
	lane := x.newLane()
	if lane == noLane {
		return NoSlot
	}
	var s Slot
	if len(x.freeSlots) > 0 {
		s = x.freeSlots[0]
		x.freeSlots = x.freeSlots[1:]
	} else {
		s = Slot(len(x.slots))
		x.slots = append(x.slots, slot{})
	}
	x.ids[id] = s
	x.fixed += idBytes(id)
	x.slots[s] = slot{lane: lane}
	x.changeCapacity(s, x.capacity)
	x.assign(lane, s)
	x.fitBudget()
	return s
}

// RemoveReplica forgets a replica and all it holds, at once for every later Match.
func (x *Index) RemoveReplica(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s, ok := x.ids[id]
	if !ok {
		return
	}
	delete(x.ids, id)
	x.fixed -= idBytes(id)
	lane := x.slots[s].lane
	x.slots[s].lane = noLane
	x.changeCapacity(s, 0)
	x.lanes[lane].frees = true
	x.retire(lane)
}

// SetCapacity sets how many blocks the replica's KV cache holds, and evicts what is more. 0 or less means
// that only the byte budget bounds it.
func (x *Index) SetCapacity(s Slot, blocks int) {
	for more := true; more; {
		more = x.setCapacity(s, blocksCapacity(blocks))
	}
}

// setCapacity reports whether more is to be evicted.
func (x *Index) setCapacity(s Slot, blocks uint32) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	lane := x.laneOf(s)
	if lane == noLane {
		return false
	}
	l := &x.lanes[lane]
	l.capacity = blocks
	x.changeCapacity(s, blocks)
	for n := 0; n < step; {
		if blocks == 0 || l.n <= blocks {
			return false
		}
		n += x.evictLast(lane, int(l.n-blocks))
	}
	return true
}

// changeCapacity sets what a slot is known to hold at most, and the budget if that follows.
func (x *Index) changeCapacity(s Slot, blocks uint32) {
	x.capacities += int64(blocks) - int64(x.slots[s].capacity)
	x.slots[s].capacity = blocks
	if x.follows {
		x.maxBytes = min(max(x.maxBytes, x.capacities*bytesPerHolding), maxDefaultBytes)
	}
}

func blocksCapacity(blocks int) uint32 { return uint32(min(max(blocks, 0), math.MaxUint32)) }

// SetLive marks the replica as one whose contents the engine itself reports to the index, or no longer. What
// the index then gives up of it, for a capacity or the byte budget, is counted in [Stats].LiveEvictions: the
// engine still has it. RemoveReplica ends it, Clear does not.
func (x *Index) SetLive(s Slot, live bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if lane := x.laneOf(s); lane != noLane {
		x.slots[s].live, x.lanes[lane].told = live, live
	}
}

// Clear records that the replica holds nothing any more, at once for every later Match.
func (x *Index) Clear(s Slot) {
	x.mu.Lock()
	defer x.mu.Unlock()
	lane := x.laneOf(s)
	if lane == noLane || x.lanes[lane].n == 0 {
		return
	}
	fresh := x.newLane()
	if fresh == noLane { // no other is left: this one is emptied
		for x.lanes[lane].n > 0 {
			x.dropLast(lane, segmentSize)
		}
		x.assign(lane, s)
		return
	}
	x.retire(lane)
	x.slots[s].lane = fresh
	x.assign(fresh, s)
	x.fitBudget()
}

func (x *Index) laneOf(s Slot) uint16 {
	if int(s) >= len(x.slots) {
		return noLane
	}
	return x.slots[s].lane
}

// newLane returns a lane, noLane if there are too many.
func (x *Index) newLane() uint16 {
	if len(x.freeLanes) == 0 && len(x.lanes) == noLane {
		x.sweep(math.MaxInt)
	}
	if n := len(x.freeLanes); n > 0 {
		lane := x.freeLanes[n-1]
		x.freeLanes = x.freeLanes[:n-1]
		return lane
	}
	if len(x.lanes) == noLane {
		return noLane
	}
	x.lanes = append(x.lanes, lane{})
	x.fixed += replicaBytes
	return uint16(len(x.lanes) - 1)
}

func (x *Index) assign(i uint16, s Slot) {
	x.generation++
	x.lanes[i] = lane{
		first:      none,
		last:       none,
		open:       none,
		older:      x.tick,
		recent:     x.tick,
		capacity:   x.slots[s].capacity,
		generation: x.generation,
		owner:      s,
		told:       x.slots[s].live,
	}
}

// retire takes a lane from its replica, to be swept.
func (x *Index) retire(i uint16) {
	l := &x.lanes[i]
	x.generation++
	l.generation, l.retired = x.generation, true
	x.unswept += int(l.n)
	x.retired = append(x.retired, i)
	x.sweep(0)
}

// sweep drops about n holdings of retired lanes, and frees the lanes that are empty.
func (x *Index) sweep(n int) {
	for len(x.retired) > 0 {
		i := x.retired[0]
		l := &x.lanes[i]
		for n > 0 && l.n > 0 {
			dropped := x.dropLast(i, n)
			n, x.unswept = n-dropped, x.unswept-dropped
		}
		if l.n > 0 {
			return
		}
		if l.frees {
			x.freeSlots = append(x.freeSlots, l.owner)
		}
		*l = lane{}
		x.freeLanes = append(x.freeLanes, i)
		x.retired = x.retired[1:]
	}
}

// replicaBytes is what a lane and its slot cost: themselves, a share of the slices' growth, the
// place in the lists of the free and the retired.
const replicaBytes = 2*int64(unsafe.Sizeof(lane{})+unsafe.Sizeof(slot{})) + 16

// idBytes is what an id costs: its bytes and its place in the map, at half load.
func idBytes(id string) int64 { return int64(len(id)) + 2*24 }
