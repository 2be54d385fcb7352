package kvindex

import (
	"math/bits"
	"slices"
	"unsafe"
)

// table is an open-addressing hash table in shards. A shard is a row of buckets that grows by a sixth
// and shrinks when two thirds are empty, alone: the longest pause is the rehash of one shard, a few
// thousand values, and the load stays near its bound. Values move; nothing may keep their place.
type table[T any] struct {
	shards []shard[T]
	shift  uint
	spare  int // one place in so many is kept free
	bytes  int64
}

type shard[T any] struct {
	buckets []bucket[T]
	n       int
}

// bucket has a tag byte for each of its values, 0 for a free place. The sixteenth byte counts the values
// that found this bucket full and went on to the next: where it is 0, a search ends.
type bucket[T any] struct {
	tags [2]uint64
	vals [bucketSize]T
}

const (
	bucketSize = 15
	topBits    = 0x8080808080808080
	lastTag    = 0x00ffffffffffffff
	overOne    = 1 << 56
	overMax    = 0xff
)

func newTable[T any](shards, spare int) table[T] {
	t := table[T]{shards: make([]shard[T], shards), shift: uint(64 - bits.Len(uint(shards-1))), spare: spare}
	t.bytes = int64(shards) * int64(unsafe.Sizeof(shard[T]{}))
	return t
}

func (t *table[T]) shard(mix uint64) *shard[T] { return &t.shards[mix>>t.shift] }

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

func (b *bucket[T]) passed() uint64 { return b.tags[1] >> 56 }

// A place is bucket·16 + position; none is what a search returns that found nothing.
const none = -1

func (s *shard[T]) at(place int) *T { return &s.buckets[place>>4].vals[place&15] }

// insert adds a value and returns its place. The shard has room.
func (s *shard[T]) insert(mix uint64, val T) int {
	tag := pattern(mix)
	for b := home(mix, len(s.buckets)); ; b++ {
		if b == len(s.buckets) {
			b = 0
		}
		k := &s.buckets[b]
		half := 0
		free := ^k.tags[0] & topBits
		if free == 0 {
			half = 1
			free = ^k.tags[1] & topBits & lastTag
		}
		if free == 0 {
			if k.passed() < overMax {
				k.tags[1] += overOne
			}
			continue
		}
		bit := bits.TrailingZeros64(free) &^ 7
		k.tags[half] |= tag & (0xff << bit)
		i := half*8 + bit/8
		k.vals[i] = val
		s.n++
		return b<<4 | i
	}
}

// remove frees a place and takes back what its value counted on the way there. A counter that reached
// its maximum stays until the next rehash.
func (s *shard[T]) remove(mix uint64, place int) {
	for b := home(mix, len(s.buckets)); b != place>>4; {
		if k := &s.buckets[b]; k.passed() < overMax {
			k.tags[1] -= overOne
		}
		if b++; b == len(s.buckets) {
			b = 0
		}
	}
	i := place & 15
	s.buckets[place>>4].tags[i/8] &^= 0xff << (i % 8 * 8)
	s.n--
}

// each calls do with every value.
func (s *shard[T]) each(do func(*T)) {
	for b := range s.buckets {
		k := &s.buckets[b]
		for half, tags := range k.tags {
			used := tags & topBits
			if half == 1 {
				used &= lastTag
			}
			for ; used != 0; used &= used - 1 {
				do(&k.vals[half*8+bits.TrailingZeros64(used)/8])
			}
		}
	}
}

// need returns how many bytes one or two more values of a shard cost: 0 where there is room, else the growth
// of the shard with the most that the allocator may round up, an eighth of a small array or a page of a large
// one. Squeezed, a shard that may not grow uses half of what it would keep free.
func (t *table[T]) need(mix uint64, more int, squeezed bool) int64 {
	s := t.shard(mix)
	room := len(s.buckets) * bucketSize
	if n := s.n + more; n <= room-room/t.spare || squeezed && n <= room-room/(2*t.spare) {
		return 0
	}
	size := int64(unsafe.Sizeof(bucket[T]{}))
	growth := int64(grown(len(s.buckets))) * size
	if growth <= 32<<10 {
		growth += growth / 8
	} else {
		growth += 8<<10 - 1
	}
	return growth - int64(len(s.buckets))*size
}

func grown(buckets int) int { return buckets + buckets/6 + 1 }

// resize gives the shard at least this many buckets; mixOf finds a value's mix again.
func (t *table[T]) resize(s *shard[T], buckets int, mixOf func(*T) uint64) {
	next := shard[T]{buckets: slices.Grow([]bucket[T](nil), buckets)}
	next.buckets = next.buckets[:cap(next.buckets)]
	s.each(func(v *T) { next.insert(mixOf(v), *v) })
	t.bytes += int64(len(next.buckets)-len(s.buckets)) * int64(unsafe.Sizeof(bucket[T]{}))
	*s = next
}

// sparse reports whether the shard is worth shrinking, and to how many buckets.
func (s *shard[T]) sparse() (buckets int, ok bool) {
	if room := len(s.buckets) * bucketSize; len(s.buckets) < 4 || s.n > room/3 {
		return 0, false
	}
	return s.n*4/(bucketSize*3) + 1, true
}
