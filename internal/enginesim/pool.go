package enginesim

// block is one block of KV cache. It is pinned while refs > 0, else in the LRU list. A cached block can be
// found by its hash. Two sequences that compute the same block at the same time hold two blocks, of which
// only the first is cached.
type block struct {
	hash       uint64
	prev, next int32
	refs       int32
	cached     bool
}

// pool holds all blocks of an engine. Blocks of one hash: the table finds at most one.
type pool struct {
	blocks []block // the last is the sentinel of the LRU ring: next is the oldest, prev the newest
	free   int     // length of the LRU list
	table  table
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), free: n, table: newTable(n)}
	for i := range p.blocks {
		p.blocks[i].prev, p.blocks[i].next = int32(i-1), int32(i+1)
	}
	p.blocks[0].prev, p.blocks[n].next = int32(n), 0
	return p
}

// size is the number of blocks.
func (p *pool) size() int { return len(p.blocks) - 1 }

func (p *pool) unlink(b *block) {
	p.blocks[b.prev].next, p.blocks[b.next].prev = b.next, b.prev
	p.free--
}

// take pins the oldest free block. If that was cached, it is forgotten and its hash returned. The caller has
// checked that free > 0.
func (p *pool) take() (id int32, hash uint64, evicted bool) {
	id = p.blocks[p.size()].next
	b := &p.blocks[id]
	p.unlink(b)
	b.refs = 1
	if b.cached {
		p.table.remove(b.hash)
		b.cached = false
		return id, b.hash, true
	}
	return id, 0, false
}

// pin adds a reference to a cached block.
func (p *pool) pin(id int32) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.unlink(b)
	}
	b.refs++
}

// release drops a reference; the last puts the block at the newest end of the LRU list.
func (p *pool) release(id int32) {
	b := &p.blocks[id]
	if b.refs--; b.refs > 0 {
		return
	}
	end := int32(p.size())
	b.prev, b.next = p.blocks[end].prev, end
	p.blocks[b.prev].next, p.blocks[end].prev = id, id
	p.free++
}

// store makes a pinned block findable, unless another has its hash already.
func (p *pool) store(id int32, hash uint64) bool {
	if !p.table.add(hash, id) {
		return false
	}
	p.blocks[id].hash, p.blocks[id].cached = hash, true
	return true
}

// find is the block with this hash.
func (p *pool) find(hash uint64) (int32, bool) { return p.table.find(hash) }

// table is an open-addressing hash table from block hash to block, at most three quarters full. Hashes are
// well mixed already, so the low bits are the slot.
type table struct {
	slots []slot
	mask  uint64
}

type slot struct {
	hash uint64
	id   int32 // block + 1; 0 is an empty slot
}

func newTable(n int) table {
	size := 8
	for size*3 < n*4 {
		size *= 2
	}
	return table{make([]slot, size), uint64(size - 1)}
}

func (t *table) find(hash uint64) (int32, bool) {
	for i := hash & t.mask; t.slots[i].id != 0; i = (i + 1) & t.mask {
		if t.slots[i].hash == hash {
			return t.slots[i].id - 1, true
		}
	}
	return 0, false
}

func (t *table) add(hash uint64, id int32) bool {
	i := hash & t.mask
	for ; t.slots[i].id != 0; i = (i + 1) & t.mask {
		if t.slots[i].hash == hash {
			return false
		}
	}
	t.slots[i] = slot{hash, id + 1}
	return true
}

// remove deletes a hash that is in the table and moves back what it had pushed on.
func (t *table) remove(hash uint64) {
	i := hash & t.mask
	for t.slots[i].hash != hash || t.slots[i].id == 0 {
		i = (i + 1) & t.mask
	}
	for j := i; ; {
		j = (j + 1) & t.mask
		if t.slots[j].id == 0 {
			break
		}
		// What lies between its own slot and here can fill the hole only if the hole is not before its own.
		if (j-t.slots[j].hash)&t.mask >= (j-i)&t.mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot{}
}
