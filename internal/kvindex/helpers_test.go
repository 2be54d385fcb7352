package kvindex

import (
	"math/bits"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// prompt returns a chain of n blocks: prompts of the same family share all blocks up to fork.
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
		slots[i] = x.Add(nil)
	}
	return slots
}

// shared is how many leading blocks are each held by at least n replicas that hold all blocks before, too.
func shared(m *Matches, holders int) int {
	if holders = max(holders, 1); holders > len(m.Holders) {
		return 0
	}
	return m.Holders[holders-1].Depth
}

func depthOf(x *Index, s Slot, blocks []uint64) int {
	var m Matches
	x.Match(blocks, &m)
	return m.Depth(s)
}

// age makes everything that the replica holds old, so that an insert touches it again.
func age(x *Index, s Slot) {
	l := &x.lru.lanes[s]
	l.older, l.recent, l.touched = x.tick+1, x.tick+1, 0
	x.maxBytes = min(x.maxBytes, 2*x.bytes()) // nothing is far from being evicted
}

// scanned is how many leading blocks a replica holds, found one by one.
func scanned(x *Index, s Slot, blocks []uint64) int {
	lane := uint16(s)
	for i, hash := range blocks {
		if r, _, _ := x.blocks.find(hash); r == noRef || x.cells.heldBy(x.blocks.segments.at(r.segment()), lane).mask()>>r.pos()&1 == 0 {
			return i
		}
	}
	return len(blocks)
}

// verify checks that tables, lists, sets and counts of the index agree.
func verify(t testing.TB, x *Index) {
	t.Helper()
	holders := x.Holders()
	x.mu.Lock()
	defer x.mu.Unlock()

	inLists := make(map[uint32]bool) // nodes
	unswept := 0
	for i := range x.lru.lanes {
		l := &x.lru.lanes[i]
		if l.generation == 0 {
			require.Zero(t, l.n)
			continue
		}
		ring := ringOf(uint16(i))
		n, prev := 0, ring
		for at := l.ring.next; at != ring; at = x.lru.nodes.at(at).next {
			nd := x.lru.nodes.at(at)
			require.True(t, x.lru.nodes.has(at))
			require.Equal(t, uint16(i), nd.lane)
			require.Equal(t, prev, nd.prev)
			if prev != ring {
				require.GreaterOrEqual(t, since(nd.tick, x.lru.nodes.at(prev).tick), int32(0))
			}
			inLists[at] = true
			h := x.cells.heldBy(x.blocks.segments.at(nd.segment), nd.lane)
			require.Equal(t, at, h.node())
			n, prev = n+bits.OnesCount8(h.mask()), at
		}
		require.EqualValues(t, l.n, n)
		require.Equal(t, l.ring.prev, prev)
		if l.retired {
			unswept += n
		} else if l.capacity > 0 {
			require.LessOrEqual(t, l.n, l.capacity)
		}
	}
	require.Equal(t, unswept, x.unswept)
	require.Equal(t, slabCount(t, &x.lru.nodes), len(inLists))

	blocks, held, nodes, segments, lists := 0, 0, 0, 0, 0
	for at := range uint32(len(x.blocks.segments.chunks) * perChunk) {
		if !x.blocks.segments.has(at) {
			continue
		}
		segments++
		g := x.blocks.segments.at(at)
		require.NotZero(t, g.live())
		if g.inCell() {
			lists++
			require.GreaterOrEqual(t, len(x.cells.of(g)), 2)
		}
		var live uint8
		for i, h := range x.cells.of(g) {
			require.True(t, inLists[h.node()])
			require.Equal(t, at, x.lru.nodes.at(h.node()).segment)
			require.NotZero(t, h.mask())
			require.True(t, i == 0 || h.lane() > x.cells.of(g)[i-1].lane())
			live |= h.mask()
			held += bits.OnesCount8(h.mask())
			nodes++
		}
		require.Equal(t, live, g.live())
		for ; live != 0; live &= live - 1 {
			pos := bits.TrailingZeros8(live)
			r, _, _ := x.blocks.find(g.hashes[pos])
			require.Equal(t, refOf(at, pos), r)
			blocks++
		}
	}
	require.Equal(t, slabCount(t, &x.blocks.segments), segments)
	require.Equal(t, len(inLists), nodes)
	require.Equal(t, holders+x.unswept, held)
	require.Equal(t, x.blocks.n, blocks)

	inTable, cells, shards := 0, int64(0), int64(0)
	for i := range x.blocks.shards {
		s := &x.blocks.shards[i]
		n, key := 0, uint32(0)
		for at, e := range s.entries {
			if e == 0 {
				continue
			}
			n++
			require.LessOrEqual(t, key, e.key())
			require.LessOrEqual(t, s.home(e.key()), at)
			require.NotContains(t, s.entries[s.home(e.key()):at], entry(0))
			key = e.key()
		}
		require.Equal(t, s.n, n)
		require.Zero(t, s.entries[len(s.entries)-1])
		inTable += n
		shards += int64(unsafe.Sizeof(*s)) + entryBytes*int64(len(s.entries))
	}
	require.Equal(t, x.blocks.bytes, shards)
	require.Equal(t, x.blocks.n, inTable)
	for _, list := range x.cells.lists {
		cells += listBytes + 8*int64(cap(list))
	}
	require.Equal(t, lists, len(x.cells.lists)-len(x.cells.free))
	require.Equal(t, cells, x.cells.bytes)
	require.LessOrEqual(t, x.bytes(), x.maxBytes)
}

// slabCount returns how many values an array has, and checks its counts.
func slabCount[T any](t testing.TB, a *slab[T]) (n int) {
	t.Helper()
	chunks := 0
	for _, c := range a.chunks {
		if c == nil {
			continue
		}
		chunks++
		used := 0
		for _, w := range c.used {
			used += bits.OnesCount64(w)
		}
		require.Equal(t, c.n, used)
		n += used
	}
	require.Equal(t, a.free, chunks*perChunk-n)
	require.EqualValues(t, a.bytes, int64(chunks)*int64(unsafe.Sizeof(chunk[T]{})+16))
	return n
}
