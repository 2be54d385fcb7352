package kvaware

import (
	"math/bits"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// recent keeps the last picks until they are in the index. So requests that were
// prepared together, before any of them was picked, see where those before went:
// a burst is spread as if it came one by one. It finds whole prompts, and of prompts
// that begin alike some of the beginning: see mark.
//
// It belongs to Choose, and so to the Router's lock, but for remove.
type recent struct{ picks [1 << recentBits]pick }

const (
	recentBits = 11
	marks      = 8 // of a prompt, and its end
)

// A pick is a replica that was given a prompt with a prefix.
type pick struct {
	hash    uint64
	replica *policy.Replica
	rank    int32
	number  atomic.Uint64 // of the pick, from 1; 0 = none
}

func (t *recent) at(hash uint64, r *policy.Replica, rank int32) *pick {
	return &t.picks[(hash+uint64(r.Index())<<32+uint64(rank))*0x9e3779b97f4a7c15>>(64-recentBits)]
}

// mark returns how many blocks of n, at least one, the i-th mark is: from half of n on,
// in eighths of a power of two, so that prompts of about the same length share marks. It
// is beyond n if there are not so many.
func mark(n, i int) int {
	octave := 1 << (bits.Len(uint(n)) - 1)
	return octave + max(i*octave/marks, i)
}

func (t *recent) add(s *prepared, r *policy.Replica, rank int32, number uint64) {
	for blocks := range s.marks {
		hash := s.Hashes[blocks-1]
		p := t.at(hash, r, rank)
		p.hash, p.replica, p.rank = hash, r, rank
		p.number.Store(number)
	}
}

// remove takes back an add. It may be called from any goroutine.
func (t *recent) remove(s *prepared, r *policy.Replica, rank int32, number uint64) {
	if number == 0 {
		return
	}
	for blocks := range s.marks {
		t.at(s.Hashes[blocks-1], r, rank).number.CompareAndSwap(number, 0)
	}
}

// marks yields how many blocks the marks of the prompt are, its end first.
func (s *prepared) marks(yield func(blocks int) bool) {
	n := len(s.Hashes)
	if n == 0 || !yield(n) {
		return
	}
	for i := 0; i < marks && mark(n, i) < n; i++ {
		if !yield(mark(n, i)) {
			return
		}
	}
}

// held returns how many leading tokens of the prompt a replica was given since the
// index was searched, or shortly before.
func (t *recent) held(s *prepared, r *policy.Replica, rank int32) int {
	n := len(s.Hashes)
	if n == 0 {
		return 0
	}
	if t.has(s, n, r, rank) {
		return s.CoveredTokens(n)
	}
	for i := marks - 1; i >= 0; i-- {
		if m := mark(n, i); m < n && t.has(s, m, r, rank) {
			return s.CoveredTokens(m)
		}
	}
	return 0
}

func (t *recent) has(s *prepared, blocks int, r *policy.Replica, rank int32) bool {
	hash := s.Hashes[blocks-1]
	p := t.at(hash, r, rank)
	return p.hash == hash && p.replica == r && p.rank == rank && p.number.Load() > s.since
}
