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
	lists
)

// blocks is the blocks of one rank by the engine's hash, those held and the ghosts each in the order they were
// touched. It holds max of them.
type blocks struct {
	places map[uint64]uint32
	all    []block // the first ones are the lists' ends: rings
	free   []uint32
	held   int
	max    int
}

func newBlocks(maxBytes int) blocks {
	b := blocks{max: max(maxBytes/blockBytes, 1)}
	b.reset()
	return b
}

func (b *blocks) reset() {
	b.places, b.free, b.held = make(map[uint64]uint32), nil, 0
	b.all = []block{heldList: {prev: heldList, next: heldList}, ghostList: {prev: ghostList, next: ghostList}}
}

// find returns the block with an engine's hash, and its place; nil if it is not known.
func (b *blocks) find(engine uint64) (*block, uint32) {
	i, ok := b.places[engine]
	if !ok {
		return nil, 0
	}
	return &b.all[i], i
}

// full reports whether one more block needs room first.
func (b *blocks) full() bool { return len(b.places) >= b.max }

// oldest is the block to forget: the oldest ghost, else the oldest held.
func (b *blocks) oldest() *block {
	i := b.all[ghostList].prev
	if i == ghostList {
		i = b.all[heldList].prev
	}
	return &b.all[i]
}

// add puts a ghost in a free place, which it returns.
func (b *blocks) add(x block) uint32 {
	i := uint32(len(b.all))
	if n := len(b.free); n > 0 {
		i, b.free = b.free[n-1], b.free[:n-1]
		b.all[i] = x
	} else {
		b.all = append(b.all, x)
	}
	b.places[x.engine] = i
	b.link(i)
	return i
}

func (b *blocks) drop(x *block) {
	i := b.places[x.engine]
	b.unlink(i)
	delete(b.places, x.engine)
	b.free = append(b.free, i)
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
