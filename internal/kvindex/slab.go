package kvindex

import (
	"math/bits"
	"slices"
	"unsafe"
)

// slab is an array of values in chunks. A chunk without values is given back, but for one.
type slab[T any] struct {
	chunks []*chunk[T]
	some   []uint32 // chunks with room
	gone   []uint32 // places of chunks that were given back
	free   int      // values that fit in without a further chunk
	bytes  int64
}

type chunk[T any] struct {
	used   [perChunk / 64]uint64
	n      int
	values [perChunk]T
}

const (
	perChunk = 256
	none     = ^uint32(0) // no value
)

func (a *slab[T]) at(i uint32) *T { return &a.chunks[i/perChunk].values[i%perChunk] }

// has reports whether there is a value at a place that there was one at.
func (a *slab[T]) has(i uint32) bool {
	if int(i/perChunk) >= len(a.chunks) {
		return false
	}
	c := a.chunks[i/perChunk]
	return c != nil && c.used[i%perChunk/64]>>(i%64)&1 != 0
}

// need returns how many bytes one more value costs.
func (a *slab[T]) need() int64 {
	if a.free > 0 {
		return 0
	}
	return int64(unsafe.Sizeof(chunk[T]{})) + 16
}

// push returns the place of a new value, in which anything may stand.
func (a *slab[T]) push() uint32 {
	if a.free == 0 {
		a.grow()
	}
	at := a.some[len(a.some)-1]
	c := a.chunks[at]
	w := 0
	for c.used[w] == ^uint64(0) {
		w++
	}
	bit := bits.TrailingZeros64(^c.used[w])
	c.used[w] |= 1 << bit
	a.free--
	if c.n++; c.n == perChunk {
		a.some = a.some[:len(a.some)-1]
	}
	return at*perChunk + uint32(64*w+bit)
}

func (a *slab[T]) grow() {
	a.bytes += a.need()
	at := uint32(len(a.chunks))
	if n := len(a.gone); n > 0 {
		at, a.gone = a.gone[n-1], a.gone[:n-1]
		a.chunks[at] = new(chunk[T])
	} else {
		a.chunks = append(a.chunks, new(chunk[T]))
	}
	a.some = append(a.some, at)
	a.free += perChunk
}

// remove takes a value out.
func (a *slab[T]) remove(i uint32) {
	at := i / perChunk
	c := a.chunks[at]
	if c.n == perChunk {
		a.some = append(a.some, at)
	}
	c.used[i%perChunk/64] &^= 1 << (i % 64)
	c.n--
	if a.free++; c.n > 0 || a.free <= 2*perChunk {
		return
	}
	a.free -= perChunk
	a.chunks[at] = nil
	n := slices.Index(a.some, at)
	a.some = slices.Delete(a.some, n, n+1)
	a.gone = append(a.gone, at)
	a.bytes -= int64(unsafe.Sizeof(chunk[T]{})) + 16
}
