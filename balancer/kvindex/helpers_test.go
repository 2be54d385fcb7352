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

// verify checks that tables, lists, sets and counts of the index tell one story.
func verify(t testing.TB, x *Index) {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()

	type pair struct {
		hash uint64
		lane uint16
	}
	inLists := make(map[pair]bool)
	unswept := 0
	for i := range x.lanes {
		l := &x.lanes[i]
		if l.generation == 0 {
			require.Zero(t, l.n)
			continue
		}
		n, prev := uint32(0), noNode
		for at := l.first; at != noNode; at = x.nodes.at(at).next {
			nd := x.nodes.at(at)
			require.Equal(t, uint16(i), nd.lane)
			require.Equal(t, prev, nd.prev)
			require.Equal(t, at, x.holding(nd.hash, nd.lane))
			if prev != noNode {
				require.LessOrEqual(t, nd.tick, x.nodes.at(prev).tick)
			}
			require.False(t, inLists[pair{nd.hash, nd.lane}])
			inLists[pair{nd.hash, nd.lane}] = true
			n, prev = n+1, at
		}
		require.Equal(t, l.n, n)
		require.Equal(t, l.last, prev)
		if n > 0 {
			require.Equal(t, l.oldest, x.nodes.at(l.last).tick)
		}
		if x.live[i/64]>>(i%64)&1 == 0 {
			unswept += int(n)
		} else if l.capacity > 0 {
			require.LessOrEqual(t, n, l.capacity)
		}
	}
	require.Len(t, inLists, x.nodes.count())
	holes := uint32(0)
	for i := range x.nodes.n {
		if x.nodes.at(i).lane == noLane {
			holes++
		}
	}
	require.Equal(t, x.nodes.holes, holes)
	require.Equal(t, unswept, x.unswept)

	blocks, holders, shared := 0, 0, 0
	inCells := [classes]uint32{}
	for i := range x.blocks.shards {
		s := &x.blocks.shards[i]
		count := 0
		s.each(func(e *entry) {
			count++
			lanes := slices.Clone(x.pool.members(e.ext))
			switch e.ext.kind() {
			case extOne:
				one, node := e.ext.one()
				require.Equal(t, e.hash, x.nodes.at(node).hash)
				require.Equal(t, one, x.nodes.at(node).lane)
				require.Equal(t, uint64(1)<<one, e.low, "0 from the 64th lane on")
			default:
				require.Len(t, lanes, e.ext.count())
				shared += e.ext.count() + bits.OnesCount64(e.low)
			}
			if kind := e.ext.kind(); kind == extList || kind == extBits {
				inCells[e.ext.class()]++
				require.Equal(t, e.hash, *x.pool.owner(e.ext.class(), e.ext.cell()))
			}
			for w := e.low; w != 0; w &= w - 1 {
				lanes = append(lanes, uint16(bits.TrailingZeros64(w)))
			}
			require.NotEmpty(t, lanes)
			for _, lane := range lanes {
				require.True(t, inLists[pair{e.hash, lane}])
			}
			holders += len(lanes)
		})
		require.Equal(t, s.n, count)
		blocks += count
	}
	require.Equal(t, x.nblocks, blocks)
	require.Equal(t, len(inLists), holders)

	refs, pooled := 0, int64(0)
	for i := range x.holdings.shards {
		refs += x.holdings.shards[i].n
	}
	require.Equal(t, shared, refs)
	for class := range x.pool.classes {
		require.Equal(t, inCells[class], x.pool.classes[class].n)
		pooled += int64(len(x.pool.classes[class].chunks)) * cellChunk
	}
	require.Equal(t, pooled, x.pool.bytes)
	require.Equal(t, int64(len(x.nodes.chunks))*nodeChunk, x.nodes.bytes)
	require.LessOrEqual(t, x.bytes(), x.maxBytes)
}
