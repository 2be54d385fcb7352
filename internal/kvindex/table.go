package kvindex

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"unsafe"
)

// table has the blocks, in segments, and leads from hashes to their places, with an entry a block in shards. A shard
// grows by a ninth and shrinks when half of it is empty, alone: the longest pause is the copy of one shard.
type table struct {
	segments slab[segment]
	shards   []shard
	shift    uint
	seed     uint64
	n        int   // blocks
	bytes    int64 // of the shards
}

// shard is a hash table with linear probing: entries in the order of their keys, with gaps. An entry stands at the home
// that its key gives, or behind it without a gap between.
type shard struct {
	entries []entry // the last one is a gap
	n       int
}

// entry is a block: its key in the upper half, and its ref. 0 is a gap.
type entry uint64

const (
	entryBytes = int64(unsafe.Sizeof(entry(0)))
	overflow   = 8 // entries behind the last home
	spare      = 5 // one home in so many is kept free
)

var emptyShard = shard{entries: make([]entry, 1)}

func (e entry) key() uint32 { return uint32(e >> 32) }

func newTable(shards int) table {
	t := table{
		shards: slices.Repeat([]shard{emptyShard}, shards),
		shift:  uint(64 - bits.Len(uint(shards-1))), seed: rand.Uint64(),
	}
	t.bytes = int64(shards) * (int64(unsafe.Sizeof(shard{})) + entryBytes)
	return t
}

// shard returns the shard and the key of a hash. It is seeded at random: users choose the prompts, and must not choose
// where their blocks land.
func (t *table) shard(hash uint64) (s *shard, key uint32) {
	hi, lo := bits.Mul64(hash^t.seed, 0x9e3779b97f4a7c15)
	mix := hi ^ lo
	return &t.shards[mix>>t.shift], uint32(mix) | 1
}

func (s *shard) homes() int { return max(len(s.entries)-overflow, 1) }

// home scales a key to the number of homes.
func (s *shard) home(key uint32) int { return int(uint64(key) * uint64(s.homes()) >> 32) }

// insert puts an entry in at a place, before those that stand there without a gap; false where that needs a longer
// shard.
func (s *shard) insert(i int, e entry) bool {
	gap := i
	for s.entries[gap] != 0 {
		gap++
	}
	if gap == len(s.entries)-1 {
		return false
	}
	copy(s.entries[i+1:], s.entries[i:gap])
	s.entries[i] = e
	s.n++
	return true
}

// remove takes an entry out, and moves those behind it nearer to their homes.
func (s *shard) remove(i int) {
	end := i + 1
	for s.entries[end] != 0 && s.home(s.entries[end].key()) < end {
		end++
	}
	copy(s.entries[i:], s.entries[i+1:end])
	s.entries[end-1] = 0
	s.n--
}

// full reports whether so many more blocks are too many.
func (s *shard) full(more int) bool { return s.n+more > s.homes()*(spare-1)/spare }

// grown is how many entries the shard has after its next growth.
func (s *shard) grown() int { return len(s.entries) + len(s.entries)/9 + 2 }

// resize gives the shard at least this many entries, and more if they do not suffice.
func (t *table) resize(s *shard, entries int) {
	next := shard{entries: slices.Grow([]entry(nil), entries)}
	next.entries = next.entries[:cap(next.entries)]
	at := 0
	for _, e := range s.entries {
		if e == 0 {
			continue
		}
		if at = max(at, next.home(e.key())); !next.insert(at, e) {
			t.resize(s, entries+overflow)
			return
		}
		at++
	}
	t.bytes += int64(len(next.entries)-len(s.entries)) * entryBytes
	*s = next
}

// need returns the most bytes that room for some new blocks costs. The allocator rounds up by an eighth.
func (t *table) need(blocks []uint64) (bytes int64) {
	for _, hash := range blocks {
		if s, _ := t.shard(hash); s.full(len(blocks)) {
			bytes = max(bytes, entryBytes*int64(s.grown()*9/8-len(s.entries)))
		}
	}
	return bytes
}

// find returns the place of a block, noRef if no lane holds it, and where its entry stands in its shard, or is to be
// inserted.
func (t *table) find(hash uint64) (r ref, s *shard, i int) {
	s, key := t.shard(hash)
	for i = s.home(key); ; i++ {
		switch e := s.entries[i]; {
		case e == 0 || e.key() > key:
			return noRef, s, i
		case e.key() == key && t.hash(ref(e)) == hash:
			return ref(e), s, i
		}
	}
}

func (t *table) hash(r ref) uint64 { return t.segments.at(r.segment()).hashes[r.pos()] }

// put enters blocks at a place, noRef for a new segment, and returns it.
func (t *table) put(r ref, blocks []uint64) ref {
	if r == noRef {
		r = refOf(t.segments.push(), 0)
	}
	g := t.segments.at(r.segment())
	for i, hash := range blocks {
		g.hashes[r.pos()+i] = hash
		s, key := t.shard(hash)
		if s.full(1) {
			t.resize(s, s.grown())
		}
		for _, _, at := t.find(hash); !s.insert(at, entry(key)<<32|entry(r)+entry(i)); _, _, at = t.find(hash) {
			t.resize(s, s.grown())
		}
	}
	t.n += len(blocks)
	return r
}

// drop takes some positions of a segment out, and the segment itself if these are all.
func (t *table) drop(at uint32, dead uint8, all bool) {
	g := t.segments.at(at)
	for ; dead != 0; dead &= dead - 1 {
		hash := g.hashes[bits.TrailingZeros8(dead)]
		_, s, i := t.find(hash)
		s.remove(i)
		t.n--
		if 2*(s.n+overflow) < len(s.entries) {
			t.resize(s, s.n*spare/(spare-1)+overflow)
		}
	}
	if all {
		g.holders[0] = 0
		t.segments.remove(at)
	}
}

// run finds the first of some blocks, most often beside the one at near, if there is one, and returns its
// segment and how many of them stand there one behind the other; 0 if no lane holds the first. A chain that
// was inserted in one piece goes on at the next position, or in the next segment.
func (t *table) run(near ref, blocks []uint64) (g *segment, r ref, n int) {
	g, r = t.beside(near, blocks[0])
	if g == nil {
		if r, _, _ = t.find(blocks[0]); r == noRef {
			return nil, noRef, 0
		}
		g = t.segments.at(r.segment())
	}
	return g, r, g.run(r.pos(), blocks)
}

// beside returns the segment and the place of a block if it stands before or behind another one, else nil.
func (t *table) beside(near ref, hash uint64) (*segment, ref) {
	if near == noRef {
		return nil, noRef
	}
	next, previous := near+1, near-1
	if near.pos() == segmentSize-1 {
		next = refOf(near.segment()+1, 0)
	}
	if near.pos() == 0 {
		previous = refOf(near.segment()-1, segmentSize-1)
	}
	for _, r := range [2]ref{next, previous} {
		at := r.segment()
		if int(at/perChunk) >= len(t.segments.chunks) || t.segments.chunks[at/perChunk] == nil {
			continue
		}
		if g := t.segments.at(at); g.hashes[r.pos()] == hash && g.live()>>r.pos()&1 != 0 {
			return g, r
		}
	}
	return nil, noRef
}
