package enginesim

import "slices"

// block is one block of KV cache. It is pinned while refs > 0, else in the LRU list. A cached block can be
// found by its hash. Two sequences that compute the same block at the same time hold two blocks, of which
// only the first is cached.
type block struct {
	hash       uint64
	prev, next int32
	refs       int32
	pass       uint32 // pool.pass when it was stored
	cached     bool
}

// pool holds all blocks of an engine.
type pool struct {
	blocks []block          // the last is the sentinel of the LRU ring: next is the oldest, prev the newest
	free   int              // length of the LRU list
	cached map[uint64]int32 // the cached blocks, by hash

	// pass numbers the passes, and evicted are the blocks from before it that the one under way has evicted.
	pass    uint32
	evicted []uint64
}

func newPool(n int) *pool {
	p := &pool{blocks: make([]block, n+1), free: n, cached: make(map[uint64]int32, n), pass: 1}
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
		delete(p.cached, b.hash)
		b.cached = false
		if b.pass != p.pass {
			p.evicted = append(p.evicted, b.hash)
		}
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
	if _, ok := p.cached[hash]; ok {
		return false
	}
	p.cached[hash] = id
	b := &p.blocks[id]
	b.hash, b.cached, b.pass = hash, true, p.pass
	return true
}

// nextPass begins a pass.
func (p *pool) nextPass() {
	p.pass++
	p.evicted = p.evicted[:0]
}

// sent reports whether a block was published when the pass under way began.
func (p *pool) sent(hash uint64) bool {
	if id, ok := p.cached[hash]; ok && p.blocks[id].pass != p.pass {
		return true
	}
	return slices.Contains(p.evicted, hash)
}
