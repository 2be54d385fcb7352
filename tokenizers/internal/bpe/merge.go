package bpe

import (
	"container/heap"
	"context"
	"unicode/utf8"
)

// check is how many bytes, symbols or merges are worked through between two looks
// at the context.
const check = 16 << 10

// scratch is the memory of merging, used for one piece after the other.
type scratch struct {
	ctx  context.Context
	done int // since the last look at ctx

	ids  []uint32
	list []symbol
	heap candidates
}

// symbol is a token of a piece, in the list of those that are left.
type symbol struct {
	id         uint32
	prev, next int32
	merge      uint64 // with the next one: rank<<32 | id, or noMerge
}

// step counts steps, and returns the context's error if it has ended.
func (s *scratch) step(steps int) error {
	if s.done += steps; s.done < check {
		return nil
	}
	s.done = 0
	return s.ctx.Err()
}

// append appends the tokens of a piece. It fails if the scratch's context ends.
func (m *Model) append(dst []uint32, piece string, s *scratch) ([]uint32, error) {
	if err := s.step(len(piece)); err != nil {
		return dst, err
	}
	if len(piece) <= m.longest {
		if id, ok := m.whole[piece]; ok {
			return append(dst, id), nil
		}
	}
	return m.merged(dst, piece, s)
}

// merged merges the two neighbours of the lowest rank, of equals the leftmost, until none are left: a heap over a
// linked list. Two pairs of equal rank are the same pair.
func (m *Model) merged(dst []uint32, piece string, s *scratch) ([]uint32, error) {
	s.ids, s.list, s.heap = m.symbols(s.ids[:0], piece), s.list[:0], s.heap[:0]
	n := int32(len(s.ids))
	for i, id := range s.ids {
		s.list = append(s.list, symbol{id: id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	renew := func(i int32) {
		x := &s.list[i]
		if x.merge = noMerge; x.next < n {
			x.merge = m.pair(x.id, s.list[x.next].id)
		}
		if x.merge != noMerge {
			heap.Push(&s.heap, candidate{x.merge, i})
		}
	}
	for i := range n {
		renew(i)
		if err := s.step(1); err != nil {
			return dst, err
		}
	}
	for len(s.heap) > 0 {
		if err := s.step(1); err != nil {
			return dst, err
		}
		c := heap.Pop(&s.heap).(candidate)
		x := &s.list[c.at]
		if x.merge != c.merge {
			continue // one of the two has merged meanwhile
		}
		gone := &s.list[x.next]
		x.id, x.next, gone.merge = uint32(c.merge), gone.next, noMerge
		if x.next < n {
			s.list[x.next].prev = c.at
		}
		renew(c.at)
		if x.prev >= 0 {
			renew(x.prev)
		}
	}
	for i := int32(0); i < n; i = s.list[i].next {
		dst = append(dst, s.list[i].id)
	}
	return dst, nil
}

// symbols appends what merging starts from.
func (m *Model) symbols(dst []uint32, piece string) []uint32 {
	if !m.char {
		for i := range len(piece) {
			dst = append(dst, m.bytes[piece[i]])
		}
		return dst
	}
	fusing := false
	for i, r := range piece {
		id, ok := m.runes[r]
		switch {
		case ok:
			dst = append(dst, id)
		case m.byByte:
			for _, b := range []byte(piece[i : i+utf8.RuneLen(r)]) {
				dst = append(dst, m.bytes[b])
			}
		case m.unknown != nil && !(m.fuse && fusing):
			dst = append(dst, *m.unknown)
		}
		fusing = !ok && !m.byByte
	}
	return dst
}

// candidate is a pair that may merge: what it became when it was found, and where.
type candidate struct {
	merge uint64
	at    int32
}

// candidates is a heap: the lowest rank first, of equals the leftmost.
type candidates []candidate

func (c candidates) Len() int      { return len(c) }
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c candidates) Less(i, j int) bool {
	return c[i].merge < c[j].merge || c[i].merge == c[j].merge && c[i].at < c[j].at
}

// Push implements [heap.Interface].
func (c *candidates) Push(x any) { *c = append(*c, x.(candidate)) }

// Pop implements [heap.Interface].
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}
