package kvindex

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMatch(t *testing.T) {
	for _, fleet := range []int{3, 64, 65, 130, 1000} {
		t.Run(fmt.Sprint("replicas=", fleet), func(t *testing.T) {
			x := New(0)
			s := replicas(x, fleet)
			a, b := prompt(1, 6, 0, 10), prompt(1, 6, 1, 10)
			x.Insert(s[0], a)
			x.Insert(s[fleet/2], b)
			x.Insert(s[fleet-1], a[:2])

			var m Matches
			x.Match(a, &m)
			require.Equal(t, []Holder{{s[0], nil, 10}, {s[fleet/2], nil, 6}, {s[fleet-1], nil, 2}}, m.Holders)
			require.Equal(t, 10, shared(&m, 1))
			require.Equal(t, []int{10, 10, 6, 2, 0}, []int{shared(&m, 0), shared(&m, 1), shared(&m, 2), shared(&m, 3), shared(&m, 4)})
			require.Equal(t, 6, m.Depth(s[fleet/2]))
			require.Zero(t, m.Depth(NoSlot))

			x.Match(prompt(2, 0, 0, 10), &m)
			require.Empty(t, m.Holders)
			require.Zero(t, m.Depth(s[0]))
			x.Match(nil, &m)
			require.Zero(t, shared(&m, 1))
			verify(t, x)
		})
	}
}

// A block that was removed hides those behind it. Another insert of the chain restores it even though its last
// block is recent.
func TestOnlyContiguousBlocksCount(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 8)
	x.Insert(s, blocks)
	x.Remove(s, blocks[3:4])
	assert.Equal(t, 3, depthOf(x, s, blocks))
	x.Insert(s, blocks)
	assert.Equal(t, 8, depthOf(x, s, blocks))
}

// A KV event brings the tail of a chain; the next insert of the whole chain does not take it for complete.
func TestTailBeforeHead(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 8)
	x.Insert(s, blocks[5:])
	assert.Zero(t, depthOf(x, s, blocks))
	x.Insert(s, blocks)
	assert.Equal(t, 8, depthOf(x, s, blocks))
	verify(t, x)
}

// Seen in a peer: blocks inserted head first are evicted head first.
func TestTailIsEvictedBeforeHead(t *testing.T) {
	x := New(0)
	s := x.Add(nil)
	x.SetCapacity(s, 6)
	old, fresh := prompt(1, 0, 0, 4), prompt(2, 0, 0, 4)
	x.Insert(s, old)
	x.Insert(s, fresh)
	assert.Equal(t, 2, depthOf(x, s, old))
	assert.Equal(t, 4, depthOf(x, s, fresh))
	assert.EqualValues(t, 2, x.Stats().Evictions)
}

// Seen in a peer: a lookup went through every key of a cold prompt.
func TestMatchStopsAtTheFirstMiss(t *testing.T) {
	x := New(0)
	s := x.Add(nil)
	blocks := prompt(1, 0, 0, 100)
	x.Insert(s, blocks)
	x.Remove(s, blocks[:1])
	assert.Zero(t, depthOf(x, s, blocks))
}

// A recent block is not touched again. An older one is, and then outlives the blocks in between.
func TestLRUWithItsSlack(t *testing.T) {
	x := New(0)
	s := x.Add(nil)
	x.SetCapacity(s, 1000)
	hot := prompt(0, 0, 0, 10)
	for i := range 500 {
		x.Insert(s, prompt(1, 0, i, 10))
		if i%20 == 0 {
			x.Insert(s, hot)
		}
		if i > 0 {
			require.Equal(t, 10, depthOf(x, s, hot))
		}
	}
	before := x.tick
	x.Insert(s, prompt(1, 0, 499, 10))
	assert.Equal(t, before, x.tick)
}

// Seen in a peer: a lookup that built a debug string of every key, with logging off.
func TestMatchDoesNotAllocate(t *testing.T) {
	for _, fleet := range []int{8, 1000} {
		x := New(0)
		blocks := prompt(1, 0, 0, 512)
		for i, s := range replicas(x, fleet) {
			x.Insert(s, blocks[:512-i%100])
		}
		var m Matches
		assert.Zero(t, testing.AllocsPerRun(10, func() { x.Match(blocks, &m) }))
		assert.Len(t, m.Holders, fleet)
		assert.Zero(t, testing.AllocsPerRun(10, func() { x.Insert(0, blocks) }))
	}
}

// A chain does not repeat a block, but an engine may report anything.
func TestBlockTwiceInAnInsert(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 9)
	for range 3 {
		twice := append(append([]uint64{blocks[4], blocks[4]}, blocks...), blocks[2], blocks[8])
		x.Insert(s, twice)
		assert.Equal(t, 9, x.Holders())
		assert.Equal(t, 9, depthOf(x, s, blocks))
		verify(t, x)
		x.Remove(s, twice)
		assert.Zero(t, x.Holders())
	}
}
