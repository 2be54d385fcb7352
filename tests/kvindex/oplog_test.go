package kvindex_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/workload"
)

// op is one operation on a router's index, as in Dynamo's mooncake_bench: a request's look-up, or what an engine
// reports of its cache when a prompt is computed.
type op struct {
	at      time.Duration // of the trace; then, when it is due
	replica int           // the replica whose cache changed; -1 is a look-up
	removed []uint64
	blocks  []uint64 // looked up, or stored behind a parent that is held
}

// blockOps counts as Dynamo does: hashes looked up, stored and removed.
func (o *op) blockOps() int { return len(o.removed) + len(o.blocks) }

// opLog turns a trace into the operations of n engines: a look-up for every request when it arrives, and later its
// prefill on a random engine, with the blocks that its cache evicts and stores. Copies of the trace share no
// block. It also returns how many blocks the engines hold in the end.
func opLog(trace []workload.Request, copies, replicas, capacity int) (ops []op, held int) {
	const prefill = 12_000 // tokens a second
	r := rand.New(rand.NewPCG(42, 0))
	var requests []op
	for _, q := range trace {
		hashes, _ := q.Hashes(nil, openLoopBlock, kvindex.SeedFor("", "", ""))
		for c := range copies {
			requests = append(requests, op{
				at:      q.At + time.Duration(r.Int64N(int64(3*time.Second))), // the trace's times are rounded
				replica: -1,
				blocks:  copyOf(hashes, uint64(c)),
			})
		}
	}
	inOrder(requests)
	caches := make([]cache, replicas)
	for i := range caches {
		caches[i] = cache{used: make(map[uint64]int), capacity: capacity}
	}
	ops = slices.Clone(requests)
	for _, q := range requests {
		at := r.IntN(replicas)
		stored, removed := caches[at].prompt(q.blocks)
		if len(stored) > 0 {
			computed := time.Duration(len(stored)) * openLoopBlock * time.Second / prefill
			ops = append(ops, op{at: q.at + computed, replica: at, removed: removed, blocks: stored})
		}
	}
	// The reports of one engine stay in their order: a short prompt's blocks may not overtake those of an earlier
	// long one.
	last := make([]time.Duration, replicas)
	for i := range ops[len(requests):] {
		o := &ops[len(requests)+i]
		o.at = max(o.at, last[o.replica])
		last[o.replica] = o.at
	}
	inOrder(ops)
	for i := range caches {
		held += len(caches[i].used)
	}
	return ops, held
}

// inOrder sorts by time, look-ups before changes.
func inOrder(ops []op) {
	slices.SortStableFunc(ops, func(a, b op) int { return cmp.Compare(a.at, b.at) })
}

func copyOf(hashes []uint64, n uint64) []uint64 {
	out := make([]uint64, len(hashes))
	for i, h := range hashes {
		out[i] = h ^ n*0x9e3779b97f4a7c15
	}
	return out
}

// cache is an engine's: least recently used, tails before heads.
type cache struct {
	used     map[uint64]int // block -> when
	queue    []use
	now      int
	capacity int
}

type use struct {
	block uint64
	at    int
}

// prompt computes a prompt's blocks. It returns those that were not held, a tail of the prompt, and those evicted
// for them.
func (c *cache) prompt(blocks []uint64) (stored, removed []uint64) {
	blocks = blocks[:min(len(blocks), c.capacity)]
	n := 0
	for n < len(blocks) && c.used[blocks[n]] > 0 {
		n++
	}
	for _, block := range slices.Backward(blocks) {
		c.now++
		c.used[block] = c.now
		c.queue = append(c.queue, use{block, c.now})
	}
	for len(c.used) > c.capacity {
		if u := c.queue[0]; c.used[u.block] == u.at {
			delete(c.used, u.block)
			removed = append(removed, u.block)
		}
		c.queue = c.queue[1:]
	}
	return blocks[n:], removed
}
