package sim

import "github.com/warmpath/warmpath/internal/lab/enginesim"

// FleetChange is what a change of the fleet cost in cached tokens, beside the same run without it.
//
// Of the blocks that the fleet had cached when it changed first, those count that some request asks for afterwards,
// each at the first request that does: up to the change both runs are the same, and the requests are the same
// throughout. Kept are those that the request found at its engine.
type FleetChange struct {
	// Tokens are those kept without the change.
	Tokens int `json:"tokens"`
	// Lost is the share of them that is no longer kept: 1 − kept with the change ÷ kept without.
	Lost float64 `json:"lost"`
	// Unavoidable is the share that no routing could find: when they were asked for, no engine of the fleet had
	// them, because theirs had left, or because fewer engines keep fewer blocks. Of the rest, engines that join are
	// due their share, one (N+1)th for one that comes to N: less would leave them idle.
	Unavoidable float64 `json:"unavoidable"`
	// Ratio is Lost over Unavoidable.
	Ratio float64 `json:"ratio"`
}

// ledger follows the blocks that the fleet had cached at one moment.
type ledger struct {
	block int // tokens
	marks map[uint64]mark
}

// mark is what became of one block.
type mark struct {
	asked bool
	gone  bool // when it was asked for, no engine of the fleet had it
	found bool
}

// newLedger begins with what is cached now.
func newLedger(machines []*machine) *ledger {
	l := &ledger{block: machines[0].engine.Config().BlockSize, marks: make(map[uint64]mark)}
	for _, m := range machines {
		for h := range m.engine.Cached() {
			l.marks[h] = mark{}
		}
	}
	return l
}

// ask returns the places in a prompt of the blocks that no request has had before. Held reports whether any engine
// of the fleet has a block now.
func (l *ledger) ask(hashes []uint64, held func(uint64) bool) (places []int32) {
	for i, h := range hashes {
		if k, ok := l.marks[h]; ok && !k.asked {
			l.marks[h] = mark{asked: true, gone: !held(h)}
			places = append(places, int32(i))
		}
	}
	return places
}

// answer takes how much of the prompt the engine found.
func (l *ledger) answer(places []int32, seq *enginesim.Sequence) {
	hashes, cached := seq.Request().Hashes, seq.Result().CachedTokens/l.block
	for _, i := range places {
		if int(i) < cached {
			k := l.marks[hashes[i]]
			k.found = true
			l.marks[hashes[i]] = k
		}
	}
}

// against compares with the ledger of the run without the change. Joined are engines that were not there before,
// of so many at the end.
func (l *ledger) against(twin *ledger, joined, members int) *FleetChange {
	kept, before, gone := 0, 0, 0
	for h, k := range l.marks {
		if k.found {
			kept++
		}
		if twin.marks[h].found {
			before++
			if k.gone {
				gone++
			}
		}
	}
	c := &FleetChange{Tokens: before * l.block}
	if before == 0 {
		return c
	}
	c.Lost = 1 - float64(kept)/float64(before)
	left := float64(gone) / float64(before)
	c.Unavoidable = left + (1-left)*float64(joined)/float64(members)
	c.ratio()
	return c
}

func (c *FleetChange) ratio() {
	if c.Unavoidable > 0 {
		c.Ratio = c.Lost / c.Unavoidable
	}
}
