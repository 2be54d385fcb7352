package kvindex

import (
	"cmp"
	"math/bits"
	"sync"
)

const (
	minBytes = 1 << 20
	maxBytes = 32 << 30

	defaultBytes = 64 << 20

	bytesPerShard = 32 << 10 // of the budget; a shard then holds a few thousand blocks
	// chainBytes bounds a chain to the blocks that surely fit in half of the budget.
	chainBytes = 256
)

// Index maps chained block hashes to the replicas that hold them. Every method may be called from any
// goroutine.
//
// One lock, mu, guards everything below it, and nothing outside is called while it is held. Readers hold it
// for one Match. Writers that go through blocks take it anew for every 32, so a reader waits for a few
// microseconds. Between two steps a slot may become another replica's, so each step checks the generation of
// its lane.
type Index struct {
	mu       sync.RWMutex
	maxBytes int64
	blocks   table
	cells    cells // the holders of segments that several lanes hold
	lru      recency

	free    []uint16 // in the order they became empty
	retired []uint16 // lanes to be swept, the oldest first
	unswept int      // their holdings
	fixed   int64    // bytes of what replicas cost without blocks

	generation uint64
	tick       uint32
	evictions  uint64
	unreported uint64 // evictions from replicas that are live, and what was never let in
}

// New returns an empty index. budget bounds all memory that it holds, in bytes; less than 1 MiB counts as 1 MiB, more
// than 32 GiB as 32 GiB. More keeps older prefixes; when it is used up, the least recently used blocks of the fleet go
// first. 0 means 64 MiB, which is about 2.8 million (block, replica) pairs.
func New(budget int64) *Index {
	x := &Index{
		lru:      recency{victim: noLane},
		maxBytes: min(max(cmp.Or(budget, defaultBytes), minBytes), maxBytes),
	}
	x.blocks = newTable(1 << bits.Len64(uint64(x.maxBytes/bytesPerShard-1)))
	return x
}

// Stats is the state of an [Index] at one moment.
type Stats struct {
	Blocks    int    // different blocks in memory, those that only dropped replicas held included until they are swept
	Bytes     int64  // memory held, counted from the arrays allocated
	Evictions uint64 // (block, replica) pairs given up for a capacity or the byte budget, ever

	// LiveEvictions counts those of replicas marked by SetLive, and what they hold beyond the longest chain
	// that is taken in: the index shows less than their engines have. More than a few ask for a larger
	// budget.
	LiveEvictions uint64
}

// Stats returns the counts of the index, in constant time.
func (x *Index) Stats() Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return Stats{
		Blocks:        x.blocks.n,
		Bytes:         x.bytes(),
		Evictions:     x.evictions,
		LiveEvictions: x.unreported,
	}
}

// Holders returns how many (block, replica) pairs Match can see. O(replicas).
func (x *Index) Holders() (n int) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := range x.lru.lanes {
		if l := &x.lru.lanes[i]; !l.retired {
			n += int(l.n)
		}
	}
	return n
}

func (x *Index) bytes() int64 {
	return x.blocks.bytes + x.blocks.segments.bytes + x.lru.nodes.bytes + x.cells.bytes + x.fixed
}
