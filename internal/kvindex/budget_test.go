package kvindex

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Seen in a peer: an add longer than the capacity left entries that nothing ever removed.
func TestChainLongerThanCapacityKeepsItsHead(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 8)
	x.SetCapacity(s, 4)
	x.Insert(s, blocks)
	assert.Equal(t, 4, depthOf(x, s, blocks))
	assert.Equal(t, 4, x.Stats().Blocks)
	x.Drop(s)
	x.Insert(x.Add(nil), prompt(2, 0, 0, 4))
	assert.Equal(t, 4, x.Stats().Blocks)
	verify(t, x)
}

func TestChainLongerThanBudgetKeepsItsHead(t *testing.T) {
	x := New(minBytes)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 60_000)
	x.Insert(s, blocks)
	assert.Equal(t, int(x.maxBytes/chainBytes), depthOf(x, s, blocks))
	assert.Zero(t, x.Stats().Evictions)
	verify(t, x)
}

// The whole budget is used, the least recently used of the fleet goes first, and prefixes stay whole.
func TestBudget(t *testing.T) {
	for _, fleet := range []int{1, 8, 200} {
		t.Run(fmt.Sprint("replicas=", fleet), func(t *testing.T) {
			x := New(minBytes)
			slots := replicas(x, fleet)
			pinned := prompt(1, 0, 0, 50)
			for i := range 6000 {
				if i%10 == 0 {
					x.Insert(slots[0], pinned)
				}
				blocks := append(prompt(2, 0, 0, i%7), random(uint64(i), 20-i%7)...)
				x.Insert(slots[i%fleet], blocks)
				require.Equal(t, 20, depthOf(x, slots[i%fleet], blocks))
				require.LessOrEqual(t, x.Stats().Bytes, int64(minBytes))
			}
			assert.Equal(t, 50, depthOf(x, slots[0], pinned))
			assert.NotZero(t, x.Stats().Evictions)
			assert.Greater(t, x.Stats().Bytes, int64(minBytes)*9/10)
			verify(t, x)
		})
	}
}

// A budget that filled up with many holders a block serves many blocks with one holder as well, and back.
func TestBudgetFollowsTheShapeOfTheLoad(t *testing.T) {
	x := New(minBytes)
	slots := replicas(x, 200)
	many := func() int {
		for i := range 300 {
			for _, s := range slots {
				x.Insert(s, prompt(i, 0, i, 5))
				require.LessOrEqual(t, x.Stats().Bytes, int64(minBytes))
			}
		}
		return x.Holders()
	}
	one := func() int {
		for i := range 3000 {
			x.Insert(slots[i%200], random(uint64(i), 30))
		}
		return x.Stats().Blocks
	}
	manyFirst, oneFirst := many(), one()
	for range 2 {
		// Up to how the blocks fall into the table, whose seed is drawn: 12 % once in 240 times.
		assert.InEpsilon(t, manyFirst, many(), 0.3)
		assert.InEpsilon(t, oneFirst, one(), 0.3)
	}
	verify(t, x)
}

// Evictions of blocks that an engine still holds are counted separately.
func TestLiveEvictions(t *testing.T) {
	x := New(minBytes)
	a, b := x.Add(nil), x.Add(nil)
	x.SetLive(a, true)
	x.SetLive(NoSlot, true)
	live := func() int { return int(x.Stats().LiveEvictions) }

	x.Insert(a, prompt(1, 0, 0, 10))
	x.Remove(a, prompt(1, 0, 0, 10)[5:])
	x.SetCapacity(b, 5)
	x.Insert(b, prompt(1, 0, 0, 5))
	x.Insert(b, prompt(2, 0, 0, 5))
	assert.Zero(t, live(), "removed by the engine, or predicted")
	assert.EqualValues(t, 5, x.Stats().Evictions)

	x.SetCapacity(a, 3)
	assert.Equal(t, 2, live())
	x.Insert(a, prompt(3, 0, 0, 7))
	assert.Equal(t, 2+3+4, live(), "evicted, and beyond the capacity")
	x.Drop(a)
	a = x.Add(nil)
	x.SetCapacity(a, 2)
	x.Insert(a, prompt(1, 0, 0, 3))
	assert.Equal(t, 9, live(), "a new replica")
	x.SetLive(a, true)
	x.SetLive(a, false)
	x.SetCapacity(a, 1)
	assert.Equal(t, 9, live())
	verify(t, x)
}

func TestTicksWrap(t *testing.T) {
	x := New(0)
	slots := replicas(x, 3)
	a, b, c := prompt(1, 0, 0, 8), prompt(2, 0, 0, 8), prompt(3, 0, 0, 8)
	x.tick = 1<<32 - 2
	x.Insert(slots[0], a)
	x.Insert(slots[1], b)
	x.Insert(slots[2], c)
	assert.Less(t, x.tick, uint32(10))
	verify(t, x)
	x.evict(8, none)
	assert.Equal(t, []int{0, 8, 8}, []int{depthOf(x, slots[0], a), depthOf(x, slots[1], b), depthOf(x, slots[2], c)})
}

// A capacity that shrinks below a step while an insert is under way ends the insert, not the program.
func TestCapacityShrinksDuringAnInsert(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 2*step)
	p, _ := x.planInsert(s, blocks)
	x.SetCapacity(s, 5)
	for len(p.blocks) > 0 && x.insertStep(&p) {
	}
	assert.LessOrEqual(t, x.Holders(), 5)
	verify(t, x)
}

// Where a chain's head is the oldest of all, it is touched before room is made for its tail.
func TestHeadIsNotEvictedForItsTail(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 80)
	x.SetCapacity(s, 100)
	x.Insert(s, blocks[:40])
	x.Insert(s, random(1, 60))
	x.Insert(s, blocks)
	assert.Equal(t, 80, depthOf(x, s, blocks))
	assert.EqualValues(t, 40, x.Stats().Evictions)
	verify(t, x)
}

// A tail that was touched after its head makes the chain old: after the next touch it is behind its head.
func TestHeadIsNeverBehindItsTail(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 8)
	x.Insert(s, blocks)
	age(x, s)
	x.Insert(s, blocks[4:])
	x.Insert(s, blocks)
	x.evict(4, none)
	assert.Equal(t, 4, depthOf(x, s, blocks))
	verify(t, x)
}

// Replicas with equal inserts in rotation lose equally many blocks to the budget.
func TestTheOldestOfTheFleetGoFirst(t *testing.T) {
	x := New(minBytes)
	slots := replicas(x, 4)
	for i := range 8000 {
		x.Insert(slots[i%4], random(uint64(i), 20))
		if i > 4000 {
			for _, s := range slots {
				require.InEpsilon(t, x.Holders()/4, x.lru.lanes[s].n, 0.02)
			}
		}
	}
	assert.NotZero(t, x.Stats().Evictions)
}
