package kvindex

import (
	"math/bits"
	"slices"
)

// Holder is a replica and how many leading blocks of a prompt it holds.
type Holder struct {
	Slot  Slot
	Depth int
}

// Matches is the answer of [Index.Match], to be used again for the next one. The zero value is ready. It
// belongs to one goroutine at a time.
type Matches struct {
	// Holders are the replicas that hold at least the first block, the deepest first. It is overwritten
	// by the next Match.
	Holders []Holder

	depths []int32  // by slot, of the Holders
	held   []uint64 // the lanes that held every block so far, as bits
	next   []uint64
}

// Longest returns how many leading blocks the deepest holder has; 0 if there is none.
func (m *Matches) Longest() int { return m.Shared(1) }

// Shared returns how many leading blocks are each held by at least minHolders replicas that hold all
// blocks before, too. Fewer than one counts as one.
func (m *Matches) Shared(minHolders int) int {
	if minHolders = max(minHolders, 1); minHolders > len(m.Holders) {
		return 0
	}
	return m.Holders[minHolders-1].Depth
}

// Depth returns how many leading blocks the replica with this slot holds, in constant time.
func (m *Matches) Depth(s Slot) int {
	if int(s) >= len(m.depths) {
		return 0
	}
	return int(m.depths[s])
}

// Match finds how many of the blocks each replica holds, contiguously from the first, and stores the
// answer in m, whatever was in it. It does not allocate once m has grown to the fleet. It goes from segment to segment, and
// stops at the first block that no replica holds after all those before.
func (x *Index) Match(blocks []uint64, m *Matches) {
	m.reset()
	if len(blocks) == 0 {
		return
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	r, n := x.run(noRef, blocks)
	if n == 0 {
		return
	}
	m.grow(len(x.live), len(x.slots))
	copy(m.held, x.live)
	words := x.keep(r, m.held, m.next)
	m.held, m.next = m.next, m.held
	left := 0
	for _, w := range m.held[:words] {
		left += bits.OnesCount64(w)
	}
	m.Holders = slices.Grow(m.Holders, left)[:left]
	depth := 0
	for n > 0 && left > 0 {
		words, left = x.narrow(m, r, n, words, depth, left)
		if depth += n; depth == len(blocks) {
			break
		}
		r, n = x.run(r+ref(n-1), blocks[depth:])
	}
	for w := words - 1; w >= 0 && left > 0; w-- {
		left = x.record(m, w, m.held[w], depth, left)
	}
}

// narrow takes the lanes that do not hold all of n blocks, which stand at r and are at this depth of the prompt,
// from those that held every block so far, and records them. It returns how many words and lanes are left.
func (x *Index) narrow(m *Matches, r ref, n, words, depth, left int) (int, int) {
	if x.allHold(r, n, m.held[:words], left) {
		return words, left
	}
	for i := 0; i < n && left > 0; i++ {
		kept := x.keep(r+ref(i), m.held[:words], m.next)
		for w := words - 1; w >= 0; w-- {
			if gone := m.held[w] &^ m.next[w]; gone != 0 {
				left = x.record(m, w, gone, depth+i, left)
			}
		}
		m.held, m.next = m.next, m.held
		words = max(kept, 1)
	}
	return words, left
}

// record stores the depth of these lanes of a word, from the end of what is left of the Holders, and
// returns what is left then.
func (x *Index) record(m *Matches, word int, lanes uint64, depth, left int) int {
	for lanes != 0 {
		bit := bits.Len64(lanes) - 1
		lanes &^= 1 << bit
		s := x.lanes[64*word+bit].owner
		left--
		m.Holders[left] = Holder{Slot: s, Depth: depth}
		m.depths[s] = int32(depth)
	}
	return left
}

// allHold reports whether surely all of the lanes in held, so many, hold the n blocks that stand at r.
func (x *Index) allHold(r ref, n int, held []uint64, lanes int) bool {
	want := uint8(1<<n-1) << r.pos()
	for _, h := range x.holdings(x.segments.at(r.segment())) {
		w := int(h.lane() / 64)
		if w >= len(held) {
			break
		}
		if h.mask()&want == want {
			lanes -= int(held[w] >> (h.lane() % 64) & 1)
		}
	}
	return lanes == 0
}

// keep stores the lanes of held that hold the block at r in next, and returns the number of words up to the last that
// is not 0.
func (x *Index) keep(r ref, held, next []uint64) int {
	next = next[:len(held)]
	clear(next)
	pos := r.pos()
	for _, h := range x.holdings(x.segments.at(r.segment())) {
		w := int(h.lane() / 64)
		if w >= len(next) {
			break
		}
		next[w] |= uint64(h.mask()>>pos&1) << (h.lane() % 64)
	}
	for w := range next {
		next[w] &= held[w]
	}
	words := len(next)
	for words > 0 && next[words-1] == 0 {
		words--
	}
	return words
}

func (m *Matches) reset() {
	for _, h := range m.Holders {
		m.depths[h.Slot] = 0
	}
	m.Holders = m.Holders[:0]
}

func (m *Matches) grow(words, slots int) {
	if cap(m.held) < words || cap(m.next) < words {
		m.held, m.next = make([]uint64, words), make([]uint64, words)
	}
	m.held, m.next = m.held[:words], m.next[:words]
	if len(m.depths) < slots {
		m.depths = make([]int32, slots)
	}
}
