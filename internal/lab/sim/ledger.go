package sim

import (
	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim"
)

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
func (l *ledger) against(twin *ledger, joined, members int) *drive.FleetChange {
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
	c := &drive.FleetChange{Tokens: before * l.block}
	if before == 0 {
		return c
	}
	c.Lost = 1 - float64(kept)/float64(before)
	left := float64(gone) / float64(before)
	c.Unavoidable = left + (1-left)*float64(joined)/float64(members)
	c.Ratio = ratio(c)
	return c
}

func ratio(c *drive.FleetChange) float64 {
	if c.Unavoidable > 0 {
		return c.Lost / c.Unavoidable
	}
	return 0
}
