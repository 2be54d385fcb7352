package kvevents

import "github.com/warmpath/warmpath/balancer/policy"

// blockBytes is about what a block costs: its place in the slice, in the map, and what both grow ahead.
const blockBytes = 80

// block is one of an engine's blocks. It is held on the tiers whose count is not zero, and a ghost where all are:
// engines go on storing children of blocks that they have just dropped.
type block struct {
	engine, chained uint64
	parent          uint64 // chained; only its use in joining chains needs it
	seed            uint64
	depth           uint32 // blocks before it
	prev, next      uint32 // in the list it is in, towards its newest and its oldest
	copies          [policy.Tiers]uint8
}

// fastest returns the fastest tier that holds the block, policy.Tiers where none does.
func (b *block) fastest() (t policy.Tier) {
	for t < policy.Tiers && b.copies[t] == 0 {
		t++
	}
	return t
}

// The places of the ends of the two lists: of the blocks held, and of the ghosts.
const (
	heldList = iota
	ghostList
)

// blocks is the blocks of one rank by the engine's hash, those held and the ghosts each in the order they were
// touched. It holds max of them.
type blocks struct {
	places map[uint64]uint32 // never that of a list's end
	all    []block           // the first ones are the lists' ends: rings
	held   int
	max    int
}

func newBlocks(maxBytes int) blocks {
	b := blocks{max: max(maxBytes/blockBytes, 1)}
	b.reset()
	return b
}

func (b *blocks) reset() {
	b.places, b.held = make(map[uint64]uint32), 0
	b.all = []block{heldList: {prev: heldList, next: heldList}, ghostList: {prev: ghostList, next: ghostList}}
}

// next is the place for a block that is not known: a new one, or that of the block to forget, which is the oldest
// ghost, else the oldest held.
func (b *blocks) next() uint32 {
	switch {
	case len(b.places) < b.max:
		i := uint32(len(b.all))
		b.all = append(b.all, block{prev: i, next: i})
		return i
	case b.all[ghostList].prev != ghostList:
		return b.all[ghostList].prev
	default:
		return b.all[heldList].prev
	}
}

// put puts a ghost in a place, instead of the block that was there.
func (b *blocks) put(i uint32, x block) {
	was := &b.all[i]
	if b.places[was.engine] == i {
		delete(b.places, was.engine)
	}
	b.unlink(i)
	*was, b.places[x.engine] = x, i
	b.link(i)
}

// touch makes the block the newest of the list that it belongs in.
func (b *blocks) touch(i uint32) {
	b.unlink(i)
	b.link(i)
}

func (b *blocks) link(i uint32) {
	x, end := &b.all[i], uint32(heldList)
	if x.fastest() == policy.Tiers {
		end = ghostList
	}
	x.prev, x.next = end, b.all[end].next
	b.all[x.next].prev, b.all[end].next = i, i
}

func (b *blocks) unlink(i uint32) {
	x := &b.all[i]
	b.all[x.prev].next, b.all[x.next].prev = x.next, x.prev
}
