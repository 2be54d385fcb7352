package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Match leaps over what it need not look at, and answers what one finds who looks at every block: also between the
// steps of an insert, above a capacity and the budget, and with chains that begin anywhere.
func TestLeapsAsFarAsItScans(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 11))
		x := New(Options{MaxBytes: minBytes})
		slots := replicas(x, 1+r.IntN(5))
		if seed%3 > 0 {
			for _, s := range slots {
				x.SetCapacity(s, 40+r.IntN(400))
			}
		}
		longest := 0
		check := func() {
			blocks := prompt(r.IntN(2), r.IntN(150), r.IntN(3), 1+r.IntN(200))
			var got Matches
			x.Match(blocks, &got)
			for _, s := range slots {
				require.Equal(t, scanned(x, s, blocks), got.Depth(s), "seed %d", seed)
			}
			longest = max(longest, got.Longest())
		}
		for range 300 {
			s := slots[r.IntN(len(slots))]
			blocks := prompt(r.IntN(2), r.IntN(150), r.IntN(3), 1+r.IntN(200))
			from := r.IntN(len(blocks))
			switch r.IntN(12) {
			case 0:
				x.Clear(s)
			case 1:
				x.Remove(s, blocks[from:])
			case 2:
				x.Remove(s, blocks[from:from+1])
			case 3, 4:
				x.Insert(s, blocks[from:])
			case 5:
				x.Insert(s, blocks[from:from+1])
			case 6:
				x.Insert(slots[0], random(seed<<32|uint64(r.Uint32()), 1+r.IntN(300)))
			case 7:
				insertInPieces(x, s, blocks, func() {
					check()
					if r.IntN(4) == 0 {
						x.Remove(s, blocks[from:from+1])
					}
				})
			default:
				x.Insert(s, blocks)
			}
			check()
		}
		assert.Greater(t, longest, leapFrom)
		verify(t, x)
	}
}

// insertInPieces is Insert that lets another one in between its steps.
func insertInPieces(x *Index, s Slot, blocks []uint64, between func()) {
	p := x.planInsert(s, blocks)
	p.rescuing = true
	x.insertSteps(&p, p.held)
	p.rescuing = false
	for end := len(p.blocks); end > 0; end -= step {
		x.insertStep(&p, max(0, end-step), end)
		between()
	}
}

// A chain that lacks blocks does not tell of them.
func TestGaps(t *testing.T) {
	x := New(Options{Gaps: true})
	s, blocks := x.AddReplica("a"), prompt(1, 0, 0, 200)
	x.Insert(s, append(append([]uint64{}, blocks[:50]...), blocks[51:]...))
	assert.Equal(t, 50, depthOf(x, s, blocks))
	x.Insert(s, blocks[50:51])
	assert.Equal(t, 200, depthOf(x, s, blocks))
}

// Routing the same prompt again looks at its last block only, however long it is.
func TestWhatIsYoungIsToldByItsLastBlock(t *testing.T) {
	x := New(Options{})
	s, blocks := x.AddReplica("a"), prompt(1, 0, 0, 500)
	x.Insert(s, prompt(2, 0, 0, 10))
	x.Insert(s, prompt(3, 0, 0, 10))
	x.Insert(s, blocks)
	_, led := x.touchedSince(blocks[499], x.laneOf(s), 0)
	assert.GreaterOrEqual(t, led, 500)
	x.Remove(s, prompt(2, 0, 0, 10))
	_, led = x.touchedSince(blocks[499], x.laneOf(s), 0)
	assert.GreaterOrEqual(t, led, 500, "what was removed is older")
	x.Remove(s, blocks[100:101])
	_, led = x.touchedSince(blocks[499], x.laneOf(s), 0)
	assert.Equal(t, 1, led)
	x.Insert(s, blocks)
	assert.Equal(t, 500, depthOf(x, s, blocks))
}

// A lead that a removal ended does not come back when ticks wrap, and both are as old as can be.
func TestLeadsEndWhenTicksWrap(t *testing.T) {
	x := New(Options{})
	s, blocks := x.AddReplica("a"), prompt(1, 0, 0, 200)
	x.Insert(s, blocks)
	x.Remove(s, blocks[100:101])
	x.tick = 1<<32 - 1
	x.Insert(s, random(1, 5))
	require.Less(t, x.tick, uint32(1<<31+10))
	assert.Equal(t, 100, depthOf(x, s, blocks))
	verify(t, x)
}
