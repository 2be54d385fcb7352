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
	vals []uint64 // of the pair that begins here: rank<<32 | id, or noMerge
	next []int32
	prev []int32
	heap candidates
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

func (m *Model) merged(dst []uint32, piece string, s *scratch) ([]uint32, error) {
	s.ids, s.vals = m.symbols(s.ids[:0], piece), s.vals[:0]
	if len(s.ids) < 2 {
		return append(dst, s.ids...), nil
	}
	for i := range len(s.ids) - 1 {
		s.vals = append(s.vals, m.pair(s.ids[i], s.ids[i+1]))
		if err := s.step(1); err != nil {
			return dst, err
		}
	}
	return m.merge(dst, s)
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

// candidate is a pair that may merge: val as it was when it was found, and where.
type candidate struct {
	val uint64
	at  int32
}

// candidates is a heap: the lowest rank first, of equals the leftmost.
type candidates []candidate

func (c candidates) Len() int      { return len(c) }
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c candidates) Less(i, j int) bool {
	return c[i].val < c[j].val || c[i].val == c[j].val && c[i].at < c[j].at
}

// Push implements [heap.Interface].
func (c *candidates) Push(x any) { *c = append(*c, x.(candidate)) }

// Pop implements [heap.Interface].
func (c *candidates) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// merge merges the two neighbours of the lowest rank, of equals the leftmost, until none are left: a heap over a linked
// list. Two pairs of equal rank are the same pair.
func (m *Model) merge(dst []uint32, s *scratch) ([]uint32, error) {
	n := len(s.ids)
	s.next, s.prev, s.heap = s.next[:0], s.prev[:0], s.heap[:0]
	s.vals = append(s.vals, noMerge)
	for i := range n {
		s.next, s.prev = append(s.next, int32(i+1)), append(s.prev, int32(i-1))
		if s.vals[i] != noMerge {
			s.heap = append(s.heap, candidate{s.vals[i], int32(i)})
		}
	}
	heap.Init(&s.heap)
	renew := func(i int32) {
		s.vals[i] = noMerge
		if j := s.next[i]; int(j) < n {
			if s.vals[i] = m.pair(s.ids[i], s.ids[j]); s.vals[i] != noMerge {
				heap.Push(&s.heap, candidate{s.vals[i], i})
			}
		}
	}
	for len(s.heap) > 0 {
		if err := s.step(1); err != nil {
			return dst, err
		}
		c := heap.Pop(&s.heap).(candidate)
		if s.vals[c.at] != c.val {
			continue // one of the two has merged meanwhile
		}
		i, j := c.at, s.next[c.at]
		s.ids[i] = uint32(c.val)
		s.vals[j] = noMerge
		s.next[i] = s.next[j]
		if k := s.next[j]; int(k) < n {
			s.prev[k] = i
		}
		renew(i)
		if s.prev[i] >= 0 {
			renew(s.prev[i])
		}
	}
	for i := int32(0); int(i) < n; i = s.next[i] {
		dst = append(dst, s.ids[i])
	}
	return dst, nil
}
