package kvaware

import (
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/warmpath/warmpath/balancer/policy"
)

// recent keeps the last picks, so that requests that were prepared together, before any of
// them was picked, see where those before went: a burst is spread as if it came one by one.
// It finds whole prompts, and of prompts that begin alike some of the beginning: see marks.
//
// It numbers the picks, from 1, and keeps up to which all of them are in the index: requests are picked one after the
// other, but enter the index at the same time and in any order. A pick that is never routed holds this up until
// maxUnrouted others were picked.
//
// It belongs to Choose, and so to the Router's lock, but for the atomics.
type recent struct {
	picks  uint64
	before atomic.Uint64              // all picks up to this one are in the index
	open   [maxUnrouted]atomic.Uint64 // the number of a pick that is not, at its place
	table  [1 << recentBits]pick
}

const (
	recentBits  = 11
	maxUnrouted = 1024
)

// A pick is a replica that was given a prompt with a prefix.
type pick struct {
	hash    uint64
	replica *policy.Replica
	rank    int32
	number  atomic.Uint64 // of the pick, from 1; 0 = none
}

// A picked is a request's last pick.
type picked struct {
	replica *policy.Replica
	rank    int32
	number  uint64 // 0 = none
}

// marks yields how many blocks the marks of a prompt of n are, the most first: its end, and
// down to half of n the eighths of a power of two, so that prompts of about the same length
// share marks.
func marks(n int) iter.Seq[int] {
	return func(yield func(int) bool) {
		octave := 1 << bits.Len(uint(n)) / 2
		step := max(octave/8, 1)
		for m := n; m >= max(octave, 1) && yield(m); {
			m = (m - 1) / step * step
		}
	}
}

func (t *recent) at(hash uint64, r *policy.Replica, rank int32) *pick {
	return &t.table[(hash+uint64(r.Index())<<32+uint64(rank))*0x9e3779b97f4a7c15>>(64-recentBits)]
}

// add notes a pick, and forgets the request's last one.
func (t *recent) add(s *prepared, r *policy.Replica, rank int32) {
	t.routed(s.number)
	s.picked = picked{r, rank, t.pick()}
	for blocks := range marks(len(s.Hashes)) {
		hash := s.Hashes[blocks-1]
		p := t.at(hash, r, rank)
		p.hash, p.replica, p.rank = hash, r, rank
		p.number.Store(s.number)
	}
}

// remove takes back an add. It may be called from any goroutine.
func (t *recent) remove(s *prepared) {
	t.routed(s.number)
	if s.number == 0 {
		return
	}
	for blocks := range marks(len(s.Hashes)) {
		t.at(s.Hashes[blocks-1], s.replica, s.rank).number.CompareAndSwap(s.number, 0)
	}
}

// held returns how many leading tokens of the prompt a replica was given since the index
// was searched, or shortly before.
func (t *recent) held(s *prepared, r *policy.Replica, rank int32) int {
	for blocks := range marks(len(s.Hashes)) {
		hash := s.Hashes[blocks-1]
		p := t.at(hash, r, rank)
		if p.hash == hash && p.replica == r && p.rank == rank && p.number.Load() > s.since {
			return s.CoveredTokens(blocks)
		}
	}
	return 0
}

// pick returns the number of a new pick.
func (t *recent) pick() uint64 {
	t.picks++
	at := &t.open[t.picks%maxUnrouted]
	before := t.before.Load()
	if at.Load() != 0 { // the oldest was given up
		before = max(before, t.picks-maxUnrouted)
	}
	for before+1 < t.picks && t.open[(before+1)%maxUnrouted].Load() == 0 {
		before++
	}
	at.Store(t.picks)
	t.before.Store(before)
	return t.picks
}

// routed notes that a pick is in the index. 0 is no pick: the Router's own.
func (t *recent) routed(number uint64) {
	if number > 0 {
		t.open[number%maxUnrouted].CompareAndSwap(number, 0)
	}
}
