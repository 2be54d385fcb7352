package kvindex

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// prompt returns the chain of n blocks that begins with the given tokens' prefix: prompts with the same
// family share all blocks up to fork.
func prompt(family, fork, branch, n int) []uint64 {
	tokens := make([]uint32, 16*n)
	for i := range tokens {
		tokens[i] = uint32(family<<16 + i)
		if i >= 16*fork {
			tokens[i] += uint32(branch+1) << 24
		}
	}
	return AppendTokens(nil, tokens, 16, chainSeed)
}

// random returns n hashes that no other seed gives.
func random(seed uint64, n int) []uint64 {
	r, blocks := rand.New(rand.NewPCG(seed, 5)), make([]uint64, n)
	for i := range blocks {
		blocks[i] = r.Uint64()
	}
	return blocks
}

func replicas(x *Index, n int) []Slot {
	slots := make([]Slot, n)
	for i := range slots {
		slots[i] = x.AddReplica(fmt.Sprintf("replica-%d", i))
	}
	return slots
}

func depthOf(x *Index, s Slot, blocks []uint64) int {
	var m Matches
	x.Match(blocks, &m)
	return m.Depth(s)
}

// scanned is how many leading blocks a replica holds, found one by one.
func scanned(x *Index, s Slot, blocks []uint64) int {
	lane := x.laneOf(s)
	for i, hash := range blocks {
		if r := x.find(hash); r == noRef || x.heldBy(x.segments.at(r.segment()), lane)>>r.pos()&1 == 0 {
			return i
		}
	}
	return len(blocks)
}

// verify checks that tables, lists, sets and counts of the index tell one story.
func verify(t testing.TB, x *Index) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()

	type part struct {
		segment uint32
		lane    uint16
		node    uint32
	}
	inLists := make(map[part]bool)
	unswept := 0
	opened := make(map[uint32]bool)
	for i := range x.lanes {
		l := &x.lanes[i]
		if l.generation == 0 {
			require.Zero(t, l.n)
			require.Zero(t, l.room)
			continue
		}
		if l.room > 0 {
			require.True(t, x.segments.at(l.open).isOpen())
			require.False(t, opened[l.open])
			opened[l.open] = true
		}
		n, prev := 0, none
		for at := l.first; at != none; at = x.nodes.at(at).next {
			nd := x.nodes.at(at)
			require.Equal(t, uint16(i), nd.lane)
			require.Equal(t, prev, nd.prev)
			if prev != none {
				require.LessOrEqual(t, nd.tick, x.nodes.at(prev).tick)
			}
			inLists[part{nd.segment, nd.lane, at}] = true
			all := x.holdings(x.segments.at(nd.segment))
			found := slices.IndexFunc(all, func(h holding) bool { return h.node() == at && h.lane() == nd.lane })
			require.NotEqual(t, -1, found)
			n, prev = n+bits.OnesCount8(all[found].mask()), at
		}
		require.EqualValues(t, l.n, n)
		require.Equal(t, l.last, prev)
		if n > 0 {
			require.Equal(t, l.oldest, x.nodes.at(l.last).tick)
		}
		if x.live[i/64]>>(i%64)&1 == 0 {
			unswept += n
		} else if l.capacity > 0 {
			require.LessOrEqual(t, l.n, l.capacity)
		}
	}
	require.Len(t, inLists, x.nodes.count())
	require.Equal(t, unswept, x.unswept)
	require.False(t, x.nodes.hollow())
	require.False(t, x.segments.hollow())

	blocks, held, nodes, holes := 0, 0, 0, uint32(0)
	inCells := [classes]uint32{}
	for at := range x.segments.n {
		g := x.segments.at(at)
		if g.isHole() {
			holes++
			continue
		}
		require.Equal(t, opened[at], g.isOpen())
		require.True(t, g.isOpen() || g.live() != 0)
		if h := g.holders[0]; h.kind() == kindCell {
			inCells[h.class()]++
			require.Equal(t, at, x.pool.owner(h.class(), h.cell()))
			require.GreaterOrEqual(t, x.pool.count(h.class(), h.cell()), 2)
		}
		var live uint8
		byLane := make(map[uint16]uint8)
		for i, h := range x.holdings(g) {
			require.True(t, inLists[part{at, h.lane(), h.node()}])
			require.NotZero(t, h.mask())
			require.Zero(t, byLane[h.lane()]&h.mask())
			require.True(t, i == 0 || h.lane() >= x.holdings(g)[i-1].lane())
			byLane[h.lane()] |= h.mask()
			live |= h.mask()
			held += bits.OnesCount8(h.mask())
			nodes++
		}
		require.Equal(t, live, g.live())
		for ; live != 0; live &= live - 1 {
			r := refOf(at, bits.TrailingZeros8(live))
			require.Equal(t, r, x.find(x.hashAt(r)))
			blocks++
		}
	}
	require.Equal(t, x.segments.holes, holes)
	require.Equal(t, len(inLists), nodes)
	require.Equal(t, x.held, held)
	require.Equal(t, x.blocks, blocks)

	inTable, pooled, buckets := 0, int64(0), 0
	for i := range x.table.shards {
		s := &x.table.shards[i]
		n, passed := 0, make([]uint64, len(s.buckets))
		s.each(func(r ref) {
			n++
			mix := x.mix(x.hashAt(r))
			at, _ := s.place(mix, r)
			for b := home(mix, len(s.buckets)); b != at; b = (b + 1) % len(s.buckets) {
				passed[b]++
			}
		})
		require.Equal(t, s.n, n)
		for b := range s.buckets {
			require.Equal(t, passed[b], s.buckets[b].passed())
		}
		inTable += n
		buckets += len(s.buckets)
	}
	require.Equal(t, x.blocks, inTable)
	for class := range x.pool.classes {
		require.Equal(t, inCells[class], x.pool.classes[class].n)
		pooled += int64(len(x.pool.classes[class].chunks)) * chunkBytes(class)
	}
	require.Equal(t, pooled, x.pool.bytes)
	require.EqualValues(t, len(x.nodes.chunks), x.nodes.bytes/x.nodes.chunkBytes())
	require.EqualValues(t, len(x.segments.chunks), x.segments.bytes/x.segments.chunkBytes())
	require.LessOrEqual(t, x.bytes(), x.maxBytes)
}
