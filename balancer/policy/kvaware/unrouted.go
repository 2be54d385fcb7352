package kvaware

import "sync/atomic"

// unrouted numbers the picks, from 1, and keeps up to which all of them are in the index:
// requests are picked one after the other, but enter the index at the same time and in any
// order. A pick that is never routed holds this up until maxUnrouted others were picked.
//
// pick and picks belong to Choose, and so to the Router's lock; the rest is atomic.
type unrouted struct {
	picks  uint64
	before atomic.Uint64              // all picks up to this one are in the index
	open   [maxUnrouted]atomic.Uint64 // the number of a pick that is not, at its place
}

const maxUnrouted = 1024

// pick returns the number of a new pick.
func (u *unrouted) pick() uint64 {
	u.picks++
	at := &u.open[u.picks%maxUnrouted]
	before := u.before.Load()
	if at.Load() != 0 { // the oldest was given up
		before = max(before, u.picks-maxUnrouted)
	}
	for before+1 < u.picks && u.open[(before+1)%maxUnrouted].Load() == 0 {
		before++
	}
	at.Store(u.picks)
	u.before.Store(before)
	return u.picks
}

// routed notes that a pick is in the index. 0 is no pick: the Router's own.
func (u *unrouted) routed(number uint64) {
	if number > 0 {
		u.open[number%maxUnrouted].CompareAndSwap(number, 0)
	}
}
