package kvindex

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"unsafe"
)

// table has the blocks, in segments, and an open-addressing hash table in shards that leads from hashes to their
// places. A shard is a row of buckets that grows by a sixth and shrinks when two thirds are empty, alone: the
// longest pause is the rehash of one shard, some thousand blocks, and the load stays near its bound.
type table struct {
	segments slab[segment]
	shards   []shard
	shift    uint
	seed     uint64
	n        int   // blocks
	bytes    int64 // of the shards
}

type shard struct {
	buckets []bucket
	n       int
}

// bucket is one line of the processor's cache. It has a tag byte for each of its refs, 0 for a free place. The
// upper half of the second word counts the refs that found this bucket full and went on to the next: where it
// is 0, a search ends.
type bucket struct {
	tags [2]uint64
	refs [bucketSize]ref
}

const (
	bucketSize  = 12
	bucketBytes = int64(unsafe.Sizeof(bucket{}))
	topBits     = 0x8080808080808080
	lastTags    = 0x00000000ffffffff
	overOne     = 1 << 32
	spare       = 5 // one place in so many is kept free
)

func newTable(shards int) table {
	t := table{shards: make([]shard, shards), shift: uint(64 - bits.Len(uint(shards-1))), seed: rand.Uint64()}
	t.bytes = int64(shards) * int64(unsafe.Sizeof(shard{}))
	return t
}

func (t *table) shard(mix uint64) *shard { return &t.shards[mix>>t.shift] }

// home scales the low half of mix to the number of buckets.
func home(mix uint64, buckets int) int { return int(uint64(uint32(mix)) * uint64(buckets) >> 32) }

// pattern repeats the tag of mix in eight bytes. A tag has its top bit set, so it is never 0.
func pattern(mix uint64) uint64 { return (mix>>32&0x7f | 0x80) * 0x0101010101010101 }

// candidates has the top bit set of each byte of tags equal to the pattern's; rarely also of a byte that
// is occupied and not equal, never of a free one.
func candidates(tags, pattern uint64) uint64 {
	x := tags ^ pattern
	return (x - 0x0101010101010101) &^ x & topBits
}

func (b *bucket) passed() uint64 { return b.tags[1] >> 32 }

// insert adds a block. The shard has room.
func (s *shard) insert(mix uint64, r ref) {
	tag := pattern(mix)
	for b := home(mix, len(s.buckets)); ; b++ {
		if b == len(s.buckets) {
			b = 0
		}
		k := &s.buckets[b]
		half, free := 0, ^k.tags[0]&topBits
		if free == 0 {
			half, free = 1, ^k.tags[1]&topBits&lastTags
		}
		if free == 0 {
			k.tags[1] += overOne
			continue
		}
		bit := bits.TrailingZeros64(free) &^ 7
		k.tags[half] |= tag & (0xff << bit)
		k.refs[half*8+bit/8] = r
		s.n++
		return
	}
}

// remove takes out the block whose bucket and position there place returned, and what it counted on the way.
func (s *shard) remove(mix uint64, at, i int) {
	for b := home(mix, len(s.buckets)); b != at; {
		s.buckets[b].tags[1] -= overOne
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	s.buckets[at].tags[i/8] &^= 0xff << (i % 8 * 8)
	s.n--
}

// each calls do with every block.
func (s *shard) each(do func(ref)) {
	for b := range s.buckets {
		k := &s.buckets[b]
		for i := range bucketSize {
			if k.tags[i/8]>>(i%8*8)&0x80 != 0 {
				do(k.refs[i])
			}
		}
	}
}

// full reports whether so many more blocks are too many. Squeezed, a shard that should not grow uses half of
// what it would keep free.
func (s *shard) full(more int, squeezed bool) bool {
	room := len(s.buckets) * bucketSize
	if squeezed {
		return s.n+more > room-room/(2*spare)
	}
	return s.n+more > room-room/spare
}

// grown is how many buckets the shard should have for so many more blocks.
func (s *shard) grown(more int) int {
	need := (s.n+more)*spare/((spare-1)*bucketSize) + 1
	return max(len(s.buckets)+len(s.buckets)/6+1, need)
}

// growth returns how many bytes that costs, with the most that the allocator may round up: an eighth of a small
// array or a page of a large one.
func (s *shard) growth(more int) int64 {
	size := int64(s.grown(more)) * bucketBytes
	if size <= 32<<10 {
		size += size / 8
	} else {
		size += 8<<10 - 1
	}
	return size - int64(len(s.buckets))*bucketBytes
}

// sparse reports whether the shard is worth shrinking, and to how many buckets.
func (s *shard) sparse() (buckets int, ok bool) {
	if room := len(s.buckets) * bucketSize; len(s.buckets) < 4 || s.n > room/3 {
		return 0, false
	}
	return s.n*4/(bucketSize*3) + 1, true
}

// resize gives the shard at least this many buckets.
func (t *table) resize(s *shard, buckets int) {
	next := shard{buckets: slices.Grow([]bucket(nil), buckets)}
	next.buckets = next.buckets[:cap(next.buckets)]
	s.each(func(r ref) { next.insert(t.mix(t.hash(r)), r) })
	t.bytes += int64(len(next.buckets)-len(s.buckets)) * bucketBytes
	*s = next
}

// mix spreads hashes over shards, buckets and tags. It is seeded at random: users choose the prompts, and must
// not choose where their blocks land.
func (t *table) mix(hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^t.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

func (t *table) hash(r ref) uint64 { return t.segments.at(r.segment()).hashes[r.pos()] }

// find returns the place of a block, noRef if no lane holds it.
func (t *table) find(hash uint64) ref {
	mix := t.mix(hash)
	s := t.shard(mix)
	b, i := t.place(s, mix, hash)
	if b < 0 {
		return noRef
	}
	return s.buckets[b].refs[i]
}

// place returns where a block stands in its shard: its bucket, negative for none, and the position there.
func (t *table) place(s *shard, mix, hash uint64) (b, i int) {
	tag := pattern(mix)
	b = home(mix, len(s.buckets))
	for range s.buckets {
		k := &s.buckets[b]
		for m := candidates(k.tags[0], tag); m != 0; m &= m - 1 {
			if i = bits.TrailingZeros64(m) / 8; t.hash(k.refs[i]) == hash {
				return b, i
			}
		}
		for m := candidates(k.tags[1], tag) & lastTags; m != 0; m &= m - 1 {
			if i = 8 + bits.TrailingZeros64(m)/8; t.hash(k.refs[i]) == hash {
				return b, i
			}
		}
		if k.passed() == 0 {
			break
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	return -1, 0
}

// put enters blocks at a place, noRef for a new segment, and returns it.
func (t *table) put(r ref, blocks []uint64) ref {
	if r == noRef {
		r = refOf(t.segments.push(), 0)
	}
	g := t.segments.at(r.segment())
	for i, hash := range blocks {
		g.hashes[r.pos()+i] = hash
		mix := t.mix(hash)
		t.shard(mix).insert(mix, r+ref(i))
	}
	t.n += len(blocks)
	return r
}

// drop takes some positions of a segment out, and the segment itself if these are all.
func (t *table) drop(at uint32, dead uint8, all bool) {
	g := t.segments.at(at)
	for ; dead != 0; dead &= dead - 1 {
		hash := g.hashes[bits.TrailingZeros8(dead)]
		mix := t.mix(hash)
		s := t.shard(mix)
		b, i := t.place(s, mix, hash)
		s.remove(mix, b, i)
		t.n--
		if buckets, ok := s.sparse(); ok {
			t.resize(s, buckets)
		}
	}
	if all {
		g.holders[0] = kindNone
		t.segments.remove(at)
	}
}

// run finds the first of some blocks, most often beside the one at near, if there is one, and returns its
// segment and how many of them stand there one behind the other; 0 if no lane holds the first. A chain that
// was inserted in one piece goes on at the next position, or in the next segment.
func (t *table) run(near ref, blocks []uint64) (g *segment, r ref, n int) {
	g, r = t.beside(near, blocks[0])
	if g == nil {
		if r = t.find(blocks[0]); r == noRef {
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

// warm reads the buckets of blocks, so that a writer does not wait for memory while it holds the lock: the processor
// fetches all of them at once. The sum means nothing; without it the compiler drops the reads.
func (t *table) warm(blocks []uint64) (sum uint64) {
	for _, hash := range blocks {
		mix := t.mix(hash)
		if buckets := t.shard(mix).buckets; len(buckets) > 0 {
			sum += buckets[home(mix, len(buckets))].tags[0]
		}
	}
	return sum
}
