package kvindex

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// engine is a naive model of one rank and tier of an engine. To the index it is a replica.
type engine struct {
	id   string
	slot Slot
	held map[uint64]bool
}

func (e *engine) depth(blocks []uint64) int {
	for i, hash := range blocks {
		if !e.held[hash] {
			return i
		}
	}
	return len(blocks)
}

// event changes the engine at random and reports it to the index.
func (e *engine) event(x *Index, r *rand.Rand, blocks []uint64) {
	switch n := r.IntN(len(blocks)); r.IntN(20) {
	case 0:
		x.Drop(e.slot)
		e.join(x)
	case 1, 2, 3, 4: // a tail that was evicted
		e.remove(x, blocks[n:])
	case 5: // a block in the middle
		e.remove(x, blocks[n:n+1])
	default: // a run behind a parent that is held
		run := blocks[e.depth(blocks):]
		run = run[:min(n, len(run))]
		x.Insert(e.slot, run)
		for _, hash := range run {
			e.held[hash] = true
		}
	}
}

func (e *engine) join(x *Index) {
	e.slot, e.held = x.Add(nil), make(map[uint64]bool)
	x.SetLive(e.slot, true)
}

func (e *engine) remove(x *Index, blocks []uint64) {
	x.Remove(e.slot, blocks)
	for _, hash := range blocks {
		delete(e.held, hash)
	}
}

// Fed by the events of many engines at once, the index has exactly the blocks of each, and above its budget never
// more than those.
func TestEventsOfManyEngines(t *testing.T) {
	for name, budget := range map[string]int64{"exact": 0, "above-the-budget": minBytes} {
		t.Run(name, func(t *testing.T) {
			x := New(budget)
			var wg sync.WaitGroup
			for worker := range 4 {
				wg.Go(func() { feed(t, x, worker, budget == 0) })
			}
			wg.Wait()
			st := x.Stats()
			assert.Equal(t, st.Evictions, st.LiveEvictions)
			assert.Equal(t, budget == 0, st.LiveEvictions == 0)
			verify(t, x)
		})
	}
}

// feed gives the index the events of two engines with two ranks of three tiers each, and compares.
func feed(t *testing.T, x *Index, worker int, exact bool) {
	var engines []*engine
	for i := range 2 * 2 * 3 {
		e := &engine{id: fmt.Sprintf("engine-%d/rank-%d/tier-%d", 2*worker+i/6, i/3%2, i%3)}
		e.join(x)
		engines = append(engines, e)
	}
	length := 300
	if !exact {
		length = 2000
	}
	r := rand.New(rand.NewPCG(uint64(worker), 8))
	var m Matches
	for range 1000 {
		blocks := prompt(r.IntN(4), r.IntN(length/2), r.IntN(4), 1+r.IntN(length))
		engines[r.IntN(len(engines))].event(x, r, blocks)
		x.Match(blocks, &m)
		for _, e := range engines {
			got, want := m.Depth(e.slot), e.depth(blocks)
			if got > want || exact && got < want {
				t.Errorf("%s: %d of %d blocks", e.id, got, want)
				return
			}
		}
		if st := x.Stats(); st.Bytes > x.maxBytes {
			t.Errorf("%d bytes", st.Bytes)
		}
	}
}
