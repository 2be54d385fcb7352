package kvevents

import "github.com/warmpath/warmpath/balancer/policy"

// blockBytes is about what a block costs: its place in the slice, in the map, and what both grow ahead.
const blockBytes = 80

const none = ^uint32(0)

// block is one of an engine's blocks. It is held on the tiers whose count is not zero, and a ghost where all are:
// engines go on storing children of blocks that they have just dropped.
type block struct {
	engine, chained uint64
	parent          uint64 // chained; only its use in joining chains needs it
	seed            uint64
	depth           uint32 // blocks before it
	prev, next      uint32 // in the list it is in, towards its ends
	copies          [policy.Tiers]uint8
	ghost           bool
}

func (b *block) held() bool { return b.copies != [policy.Tiers]uint8{} }

// upTo reports whether the block is held on this tier or a faster one.
func (b *block) upTo(t policy.Tier) bool {
	for _, n := range b.copies[:t+1] {
		if n > 0 {
			return true
		}
	}
	return false
}

// blocks is the blocks of one rank by the engine's hash, those held and the ghosts each in the order they were
// touched. It holds max of them.
type blocks struct {
	places map[uint64]uint32
	all    []block
	free   []uint32
	lists  [2]list // the held, the ghosts
	max    int
}

type list struct {
	newest, oldest uint32
	n              int
}

func newBlocks(maxBytes int) blocks {
	b := blocks{max: max(maxBytes/blockBytes, 1)}
	b.reset()
	return b
}

func (b *blocks) reset() {
	b.places = make(map[uint64]uint32)
	b.all, b.free = nil, nil
	b.lists = [2]list{{none, none, 0}, {none, none, 0}}
}

func (b *blocks) find(engine uint64) (uint32, bool) {
	i, ok := b.places[engine]
	return i, ok
}

// full reports whether one more block needs room first.
func (b *blocks) full() bool { return len(b.places) >= b.max }

// oldest is the block to forget: the oldest ghost, else the oldest held.
func (b *blocks) oldest() uint32 {
	if g := b.lists[1].oldest; g != none {
		return g
	}
	return b.lists[0].oldest
}

// add puts a ghost in a free place.
func (b *blocks) add(x block) uint32 {
	x.ghost = true
	var i uint32
	if n := len(b.free); n > 0 {
		i, b.free = b.free[n-1], b.free[:n-1]
		b.all[i] = x
	} else {
		i = uint32(len(b.all))
		b.all = append(b.all, x)
	}
	b.places[x.engine] = i
	b.link(i)
	return i
}

func (b *blocks) drop(i uint32) {
	b.unlink(i)
	delete(b.places, b.all[i].engine)
	b.free = append(b.free, i)
}

// touch makes the block the newest of the list that it belongs in.
func (b *blocks) touch(i uint32) {
	b.unlink(i)
	b.all[i].ghost = !b.all[i].held()
	b.link(i)
}

func (b *blocks) listOf(i uint32) *list {
	if b.all[i].ghost {
		return &b.lists[1]
	}
	return &b.lists[0]
}

func (b *blocks) link(i uint32) {
	l := b.listOf(i)
	b.all[i].prev, b.all[i].next = none, l.newest
	if l.newest != none {
		b.all[l.newest].prev = i
	} else {
		l.oldest = i
	}
	l.newest = i
	l.n++
}

func (b *blocks) unlink(i uint32) {
	l, x := b.listOf(i), &b.all[i]
	if x.prev != none {
		b.all[x.prev].next = x.next
	} else {
		l.newest = x.next
	}
	if x.next != none {
		b.all[x.next].prev = x.prev
	} else {
		l.oldest = x.prev
	}
	l.n--
}
