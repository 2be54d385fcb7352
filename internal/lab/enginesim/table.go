package enginesim

// table is an open-addressing hash table from block hash to block, at most three quarters full. Hashes are
// well mixed already, so the low bits are the slot. It is made small rather than self-contained, since what takes
// long is to wait for memory: half of a hash is in the slot, all of it in the block.
type table struct {
	slots []slot
	mask  uint64
}

type slot struct {
	low uint32 // half of the hash
	id  int32  // block + 1; 0 is an empty slot
}

// newTable has room for n blocks, of which there are at most 2³¹ in an engine.
func newTable(n int) table {
	size := 8
	for size*3 < n*4 {
		size *= 2
	}
	return table{make([]slot, size), uint64(size - 1)}
}

func (t *table) find(blocks []block, hash uint64) (int32, bool) {
	for i := hash & t.mask; t.slots[i].id != 0; i = (i + 1) & t.mask {
		if s := t.slots[i]; s.low == uint32(hash) && blocks[s.id-1].hash == hash {
			return s.id - 1, true
		}
	}
	return 0, false
}

// add is false, and adds nothing, if a block of this hash is there.
func (t *table) add(blocks []block, hash uint64, id int32) bool {
	i := hash & t.mask
	for ; t.slots[i].id != 0; i = (i + 1) & t.mask {
		if s := t.slots[i]; s.low == uint32(hash) && blocks[s.id-1].hash == hash {
			return false
		}
	}
	t.slots[i] = slot{uint32(hash), id + 1}
	return true
}

// remove deletes a block that is in the table and moves back what it had pushed on.
func (t *table) remove(hash uint64, id int32) {
	i := hash & t.mask
	for t.slots[i].id != id+1 {
		i = (i + 1) & t.mask
	}
	for j := i; ; {
		j = (j + 1) & t.mask
		if t.slots[j].id == 0 {
			break
		}
		// What lies between its own slot and here can fill the hole only if the hole is not before its own.
		if (j-uint64(t.slots[j].low))&t.mask >= (j-i)&t.mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
}
