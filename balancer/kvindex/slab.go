package kvindex

import "unsafe"

// slab is an array in chunks with few holes, which are linked. When there are more, the last value moves into a
// hole, so that chunks can be given back when the shape of the load changes.
type slab[T any, P slotted[T]] struct {
	chunks []*[perChunk]T
	n      uint32 // values and holes
	holes  uint32
	hole   uint32 // the first, if there are holes
	bytes  int64
}

// slotted is a value that may be a hole instead, with the holes before and behind it, none at the ends.
type slotted[T any] interface {
	*T
	dig(prev, next uint32)
	links() (prev, next uint32)
	isHole() bool
}

const (
	perChunk = 256
	none     = ^uint32(0) // no value
)

func (a *slab[T, P]) at(i uint32) *T { return &a.chunks[i/perChunk][i%perChunk] }

func (a *slab[T, P]) count() int { return int(a.n - a.holes) }

func (a *slab[T, P]) chunkBytes() int64 {
	var t T
	return perChunk*int64(unsafe.Sizeof(t)) + 16
}

// need returns how many bytes so many more values cost.
func (a *slab[T, P]) need(more int) int64 {
	more -= len(a.chunks)*perChunk - a.count()
	if more <= 0 {
		return 0
	}
	return int64((more+perChunk-1)/perChunk) * a.chunkBytes()
}

// push returns the place of a new value, in which anything may stand.
func (a *slab[T, P]) push() uint32 {
	if a.holes > 0 {
		i := a.hole
		a.fill(i)
		return i
	}
	if int(a.n) == len(a.chunks)*perChunk {
		a.chunks = append(a.chunks, new([perChunk]T))
		a.bytes += a.chunkBytes()
	}
	a.n++
	return a.n - 1
}

// free makes a value a hole.
func (a *slab[T, P]) free(i uint32) {
	next := none
	if a.holes > 0 {
		next = a.hole
		_, behind := P(a.at(next)).links()
		P(a.at(next)).dig(i, behind)
	}
	P(a.at(i)).dig(none, next)
	a.hole = i
	a.holes++
}

// fill takes a hole out of the list.
func (a *slab[T, P]) fill(i uint32) {
	prev, next := P(a.at(i)).links()
	if prev != none {
		before, _ := P(a.at(prev)).links()
		P(a.at(prev)).dig(before, next)
	} else {
		a.hole = next
	}
	if next != none {
		_, behind := P(a.at(next)).links()
		P(a.at(next)).dig(prev, behind)
	}
	a.holes--
}

// hollow reports whether there are too many holes. A sixteenth is left for what comes and goes.
func (a *slab[T, P]) hollow() bool { return a.holes > perChunk+a.n/16 }

// shrink makes the array shorter by one hole, and tells which value had to move for it.
func (a *slab[T, P]) shrink() (from, to uint32, moved bool) {
	from = a.n - 1
	if moved = !P(a.at(from)).isHole(); moved {
		to = a.hole
		a.fill(to)
		*a.at(to) = *a.at(from)
	} else {
		a.fill(from)
	}
	a.n--
	if last := len(a.chunks) - 1; int(a.n) <= (last-1)*perChunk {
		a.chunks[last] = nil
		a.chunks = a.chunks[:last]
		a.bytes -= a.chunkBytes()
	}
	return from, to, moved
}
