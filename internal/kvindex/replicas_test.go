package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestUnknownReplicasAreIgnored(t *testing.T) {
	x := New(0)
	for _, s := range []Slot{0, 7, NoSlot} {
		x.Insert(s, prompt(1, 0, 0, 4))
		x.Remove(s, prompt(1, 0, 0, 4))
		x.Drop(s)
		x.SetCapacity(s, 1)
	}
	assert.Zero(t, x.Stats().Blocks)
}

// Seen in a peer: with ten slots a block, an eleventh replica evicted another one.
func TestNoReplicaLosesItsSlotToAnother(t *testing.T) {
	x := New(0)
	blocks := prompt(1, 0, 0, 4)
	slots := replicas(x, 1000)
	for n, s := range slots {
		x.Insert(s, blocks)
		if n == 10 || n == 100 || n == 999 {
			var m Matches
			x.Match(blocks, &m)
			require.Len(t, m.Holders, n+1)
			require.Equal(t, 4, shared(&m, n+1))
		}
	}
	verify(t, x)
	rand.Shuffle(len(slots), func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
	for n, s := range slots {
		x.Remove(s, blocks[2:])
		var m Matches
		x.Match(blocks, &m)
		require.Equal(t, min(999-n, 1)*2+2, shared(&m, 1))
		require.Equal(t, 2, m.Depth(s))
	}
	verify(t, x)
	assert.Equal(t, 2, x.Stats().Blocks)
}

// Seen in a peer: removed replicas stayed in the index until a timer, or for ever.
func TestRemovedReplicasAreClearedAtOnce(t *testing.T) {
	x := New(0)
	blocks := prompt(1, 0, 0, 2000)
	a, b := x.Add(nil), x.Add(nil)
	x.Insert(a, blocks)
	x.Insert(b, blocks[:3])
	x.Drop(a)
	assert.Zero(t, depthOf(x, a, blocks))
	assert.Equal(t, 3, depthOf(x, b, blocks))
	assert.Equal(t, 3, x.Holders())

	c := x.Add(nil)
	assert.NotEqual(t, a, c, "the slot is not empty yet")
	assert.Zero(t, depthOf(x, c, blocks))
	for i := range 32 {
		x.Insert(b, prompt(2, 0, i, 10))
	}
	assert.Equal(t, 323, x.Stats().Blocks)
	assert.Equal(t, a, x.Add(nil))
	verify(t, x)
}

func TestClearedAtOnce(t *testing.T) {
	x := New(0)
	a, b, blocks := x.Add(nil), x.Add(nil), prompt(1, 0, 0, 500)
	x.SetCapacity(a, 400)
	x.Insert(b, blocks)
	for range 100 {
		x.Insert(a, blocks)
		require.Equal(t, 400, depthOf(x, a, blocks))
		x.Drop(a)
		require.Zero(t, depthOf(x, a, blocks))
		a = x.Add(nil)
		x.SetCapacity(a, 400)
		require.Equal(t, 500, depthOf(x, b, blocks))
	}
	assert.Equal(t, 500, x.Holders())
	assert.LessOrEqual(t, len(x.lru.lanes), 67)
	verify(t, x)
}

func TestChurnDoesNotLeak(t *testing.T) {
	x := New(minBytes)
	stay := x.Add(nil)
	for i := range 2000 {
		pod := x.Add(nil)
		x.Insert(pod, prompt(i%7, 20, i, 100))
		x.Insert(stay, prompt(1, 3, i%5, 10))
		x.Drop(pod)
	}
	for i := range 100 {
		x.Insert(stay, prompt(1, 0, i, 2))
	}
	st := x.Stats()
	assert.Equal(t, st.Blocks, x.Holders())
	assert.LessOrEqual(t, len(x.lru.lanes), 67)
	assert.LessOrEqual(t, st.Bytes, int64(minBytes))
	verify(t, x)
}

func TestSlots(t *testing.T) {
	x := New(0)
	a, b := x.Add(nil), x.Add(nil)
	assert.NotEqual(t, a, b)
	x.Drop(a)
	x.Drop(a)
	assert.Equal(t, a, x.Add(nil))
}

func TestMoreReplicasThanSlots(t *testing.T) {
	x := New(0)
	for i := range uint16(noLane) {
		ring := node{prev: ringOf(i), next: ringOf(i)}
		x.lru.lanes = append(x.lru.lanes, lane{generation: 1, ring: ring, open: none})
	}
	assert.Equal(t, NoSlot, x.Add(nil))
	blocks := prompt(1, 0, 0, 4)
	for s := Slot(60_000); s < 60_900; s++ {
		x.Insert(s, blocks)
	}
	var m Matches
	x.Match(blocks, &m)
	assert.Equal(t, 4, shared(&m, 900))
	x.Drop(60_000)
	x.Match(blocks, &m)
	assert.Len(t, m.Holders, 899)
}

func TestSetCapacityEvicts(t *testing.T) {
	x := New(0)
	s, blocks := x.Add(nil), prompt(1, 0, 0, 400)
	x.SetCapacity(s, 300)
	x.Insert(s, blocks)
	x.SetCapacity(s, 17)
	assert.Equal(t, 17, depthOf(x, s, blocks))
	x.SetCapacity(s, 0)
	x.Insert(s, blocks)
	assert.Equal(t, 400, depthOf(x, s, blocks))
	verify(t, x)
}
