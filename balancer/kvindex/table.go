package kvindex

import (
	"math/bits"
	"slices"
	"unsafe"
)

// table is an open-addressing hash table that leads from hashes to places of blocks, in shards. A shard is a row
// of buckets that grows by a sixth and shrinks when two thirds are empty, alone: the longest pause is the
// rehash of one shard, some thousand blocks, and the load stays near its bound.
type table struct {
	shards []shard
	shift  uint
	bytes  int64
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
	t := table{shards: make([]shard, shards), shift: uint(64 - bits.Len(uint(shards-1)))}
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

// place returns where a block that is in the shard stands: its bucket, and the position there.
func (s *shard) place(mix uint64, r ref) (b, i int) {
	tag := pattern(mix)
	for b = home(mix, len(s.buckets)); ; b++ {
		if b == len(s.buckets) {
			b = 0
		}
		k := &s.buckets[b]
		for half, tags := range k.tags {
			m := candidates(tags, tag)
			if half == 1 {
				m &= lastTags
			}
			for ; m != 0; m &= m - 1 {
				if i = half*8 + bits.TrailingZeros64(m)/8; k.refs[i] == r {
					return b, i
				}
			}
		}
	}
}

// remove takes out a block that is there, and what it counted on the way.
func (s *shard) remove(mix uint64, r ref) {
	at, i := s.place(mix, r)
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
func (x *Index) resize(s *shard, buckets int) {
	next := shard{buckets: slices.Grow([]bucket(nil), buckets)}
	next.buckets = next.buckets[:cap(next.buckets)]
	s.each(func(r ref) { next.insert(x.mix(x.segments.at(r.segment()).hashes[r.pos()]), r) })
	x.table.bytes += int64(len(next.buckets)-len(s.buckets)) * bucketBytes
	*s = next
}

// mix spreads hashes over shards, buckets and tags. It is seeded at random: prompts are chosen by users,
// who should not choose where their blocks land.
func (x *Index) mix(hash uint64) uint64 {
	hi, lo := bits.Mul64(hash^x.seed, 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// find returns the place of a block, noRef if no lane holds it.
func (x *Index) find(hash uint64) ref {
	mix := x.mix(hash)
	s := x.table.shard(mix)
	tag := pattern(mix)
	for b, rest := home(mix, len(s.buckets)), len(s.buckets); rest > 0; rest-- {
		k := &s.buckets[b]
		for half, tags := range k.tags {
			m := candidates(tags, tag)
			if half == 1 {
				m &= lastTags
			}
			for ; m != 0; m &= m - 1 {
				if r := k.refs[half*8+bits.TrailingZeros64(m)/8]; x.segments.at(r.segment()).hashes[r.pos()] == hash {
					return r
				}
			}
		}
		if k.passed() == 0 {
			break
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	return noRef
}

// run finds the first of some blocks, which probably stand beside the one at near if that is known, and returns how many of
// them stand there one behind the other; 0 if no lane holds the first. A chain that was inserted in one piece goes on
// at the next position, or in the next segment.
func (x *Index) run(near ref, blocks []uint64) (r ref, n int) {
	if r = x.beside(near, blocks[0]); r == noRef {
		if r = x.find(blocks[0]); r == noRef {
			return noRef, 0
		}
	}
	return r, x.segments.at(r.segment()).run(r.pos(), blocks)
}

// beside returns the place of a block if it stands before or behind another one, else noRef.
func (x *Index) beside(near ref, hash uint64) ref {
	if near == noRef {
		return noRef
	}
	next, previous := near+1, near-1
	if near.pos() == segmentSize-1 {
		next = refOf(near.segment()+1, 0)
	}
	if near.pos() == 0 {
		previous = refOf(near.segment()-1, segmentSize-1)
	}
	for _, r := range [2]ref{next, previous} {
		if x.segments.has(r.segment()) {
			if g := x.segments.at(r.segment()); g.hashes[r.pos()] == hash && g.live()>>r.pos()&1 != 0 {
				return r
			}
		}
	}
	return noRef
}

// warm reads the buckets of blocks, so that a writer does not wait for memory while it holds the lock: the processor
// fetches all of them at once. The sum means nothing; without it the compiler drops the reads.
func (x *Index) warm(blocks []uint64) (sum uint64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, hash := range blocks {
		mix := x.mix(hash)
		if buckets := x.table.shard(mix).buckets; len(buckets) > 0 {
			sum += buckets[home(mix, len(buckets))].tags[0]
		}
	}
	return sum
}
