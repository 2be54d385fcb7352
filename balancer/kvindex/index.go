package kvindex

import (
	"math/bits"
	"math/rand/v2"
	"sync"
)

// Options bounds an [Index]. The zero value is good.
type Options struct {
	// MaxBytes is the budget for all memory the index holds. 0 means 64 MiB, enough for about a million
	// (block, replica) pairs; less than 1 MiB counts as 1 MiB, more than 64 GiB as 64 GiB. More keeps
	// older prefixes; when it is used up, the least recently used blocks of the fleet go first.
	MaxBytes int64

	// MaxBlocksPerReplica is the capacity, in blocks, of replicas for which SetCapacity was not called.
	// 0 means that only MaxBytes bounds them.
	MaxBlocksPerReplica int
}

const (
	defaultBytes = 64 << 20
	minBytes     = 1 << 20
	maxBytes     = 64 << 30

	bytesPerShard = 256 << 10 // of the budget; a shard then holds a few thousand values
	// chainBytes bounds a chain to the blocks that surely fit in half of the budget.
	chainBytes = 256
	// step is how many blocks a writer handles before it lets readers in.
	step = 64
)

// Index maps chained block hashes to the replicas that hold them. Every method may be called from any
// goroutine.
//
// One lock, mu, guards everything below it, and nothing is called out to while it is held. Readers hold it
// for one Match or lookup. Writers that go through blocks take it anew for every 64, so a reader waits for
// some microseconds; between two steps, what a replica had may be replaced under the same slot, which is
// why each step checks the generation of the lane it began with.
type Index struct {
	maxBytes int64
	maxChain int
	capacity uint32 // for replicas without one of their own; 0 is none
	seed     uint64

	mu       sync.RWMutex
	blocks   table[entry]
	holdings table[ref] // (block, lane) -> node
	nodes    nodes
	pool     pool

	ids       map[string]Slot
	slots     []slot
	freeSlots []Slot // in the order they became empty
	lanes     []lane
	live      []uint64 // the lanes that belong to a replica, as bits
	retired   []uint16 // lanes to be swept, the oldest first
	unswept   int      // their holdings
	fixed     int64    // bytes of what replicas cost without blocks

	nblocks    int
	generation uint64
	tick       uint32
	victim     uint16 // lane that had the oldest holding, up to this tick
	until      uint32
	evictions  uint64
	warmth     uint64 // keeps warm from being compiled away
}

// New returns an empty index.
func New(o Options) *Index {
	x := &Index{
		maxBytes: o.MaxBytes,
		capacity: blocksCapacity(o.MaxBlocksPerReplica),
		seed:     rand.Uint64(),
		ids:      make(map[string]Slot),
		victim:   noLane,
	}
	if x.maxBytes == 0 {
		x.maxBytes = defaultBytes
	}
	x.maxBytes = min(max(x.maxBytes, minBytes), maxBytes)
	x.maxChain = int(x.maxBytes / chainBytes)
	shards := 1 << bits.Len64(uint64(x.maxBytes/bytesPerShard-1))
	x.blocks = newTable[entry](shards, 5)
	x.holdings = newTable[ref](shards, 8)
	return x
}

// Insert records that the replica holds these blocks, a chain in order: each block's hash is chained to the
// one before. The chain may begin anywhere; Match sees it once the blocks before are held too. Inserting
// makes the blocks the replica's most recently used, the head before the tail.
//
// To be cheap for what is routed again and again, Insert does nothing if the last block was touched,
// together with all the others given here, within about the last eighth of the replica's list. A block may
// therefore stand up to an eighth of the list, plus two chains, nearer to its eviction than exact LRU
// would have it. It is never behind its own descendants. While less than half of the byte budget, and of
// the replica's capacity, is used, nothing is near its eviction, and Insert does nothing for a chain that
// is held, however long ago it was touched.
//
// A chain longer than the replica's capacity, or than half of the byte budget surely holds, keeps its head.
// A slot that belongs to no replica is ignored.
func (x *Index) Insert(s Slot, blocks []uint64) {
	x.mu.RLock()
	p := x.planInsert(s, blocks)
	x.mu.RUnlock()
	if p.n == 0 {
		return
	}
	blocks = blocks[:p.n]
	if p.rescue && !x.insertSteps(&p, blocks, x.rescue) {
		return
	}
	if !x.insertSteps(&p, blocks, x.put) {
		return
	}
	x.mu.Lock()
	if x.lanes[p.lane].generation == p.generation {
		x.lanes[p.lane].writing--
		x.lanes[p.lane].age(p.n, min(p.began, x.tick))
	}
	x.mu.Unlock()
}

// insertion is what Insert found out before it takes the write lock.
type insertion struct {
	lane       uint16
	generation uint64
	n          int    // leading blocks to insert
	rescue     bool   // an old head is held and might be evicted by its own tail
	began      uint32 // the first tick of this insert; 0 before it
}

func (x *Index) planInsert(s Slot, blocks []uint64) insertion {
	p := insertion{lane: x.laneOf(s), n: min(len(blocks), x.maxChain)}
	if p.lane == noLane || p.n == 0 {
		return insertion{}
	}
	l := &x.lanes[p.lane]
	p.generation = l.generation
	if l.capacity > 0 {
		p.n = min(p.n, int(l.capacity))
	}
	if i := x.holding(blocks[p.n-1], p.lane); i != noNode {
		recent := l.older
		if x.roomy(l) {
			recent = l.removed
		}
		if n := x.nodes.at(i); n.tick >= recent && int(n.span) >= p.n {
			return insertion{}
		}
	}
	full := l.capacity > 0 && int(l.n)+p.n > int(l.capacity) || x.bytes() > x.maxBytes-x.maxBytes/16
	p.rescue = full && x.holding(blocks[0], p.lane) != noNode
	return p
}

// roomy reports whether the lane is far from evicting anything.
func (x *Index) roomy(l *lane) bool {
	return x.bytes() < x.maxBytes/2 && (l.capacity == 0 || l.n < l.capacity/2)
}

// insertSteps walks the chain from tail to head; false if the lane was cleared or removed meanwhile.
func (x *Index) insertSteps(p *insertion, blocks []uint64, do func(lane uint16, hash uint64, span int)) bool {
	for end := len(blocks); end > 0; end -= step {
		x.mu.Lock()
		if x.lanes[p.lane].generation != p.generation {
			x.mu.Unlock()
			return false
		}
		x.advance()
		if p.began == 0 {
			p.began = x.tick
			x.lanes[p.lane].writing++
		}
		x.sweep(2 * step)
		x.warm(p.lane, blocks[max(0, end-step):end])
		for i := end - 1; i >= max(0, end-step); i-- {
			do(p.lane, blocks[i], i+1)
		}
		x.mu.Unlock()
	}
	return true
}

// warm reads the buckets that a step is going to search. The processor waits for all of them at once,
// rather than for one after the other.
func (x *Index) warm(lane uint16, blocks []uint64) {
	for _, hash := range blocks {
		mix := x.mixHolding(hash, lane)
		if b := x.holdings.shard(mix).buckets; len(b) > 0 {
			x.warmth += b[home(mix, len(b))].tags[0]
		}
		mix = x.mix(hash)
		if b := x.blocks.shard(mix).buckets; len(b) > 0 {
			x.warmth += b[home(mix, len(b))].tags[0]
		}
	}
}

// rescue touches a block that is held, before room is made for those that are not.
func (x *Index) rescue(lane uint16, hash uint64, span int) {
	if i := x.holding(hash, lane); i != noNode {
		x.touch(i, 0)
	}
}

// put makes the block the most recently used of the lane.
func (x *Index) put(lane uint16, hash uint64, span int) {
	capped := uint16(min(span, maxSpan))
	if i := x.holding(hash, lane); i != noNode {
		x.touch(i, capped)
		return
	}
	for l := &x.lanes[lane]; l.capacity > 0 && l.n >= l.capacity; {
		x.drop(l.last)
		x.evictions++
	}
	squeezed, ok := x.makeRoom(hash, lane)
	if !ok {
		x.advance()
		x.lanes[lane].allOld(x.tick) // deeper blocks of the chain have a gap before them
		return
	}
	x.join(hash, lane, squeezed)

	i := x.nodes.push()
	*x.nodes.at(i) = node{hash: hash, tick: x.tick, lane: lane, span: capped}
	mix := x.mixHolding(hash, lane)
	if s := x.holdings.shard(mix); x.holdings.need(mix, squeezed) > 0 {
		x.holdings.resize(s, grown(len(s.buckets)), x.mixOfNode)
	}
	x.holdings.shard(mix).insert(mix, ref(i))
	x.linkFirst(lane, i)
	x.lanes[lane].n++
}

// Remove records that the replica no longer holds these blocks, in any order. Blocks and slots that are
// not known are ignored.
func (x *Index) Remove(s Slot, blocks []uint64) {
	for len(blocks) > 0 {
		n := min(step, len(blocks))
		x.mu.Lock()
		if lane := x.laneOf(s); lane != noLane {
			removed := false
			for _, hash := range blocks[:n] {
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
		x.mu.Unlock()
		blocks = blocks[n:]
	}
}
