package kvevents

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

const testBlock = 4

func newTest(o Options) *translator {
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 20
	}
	r := &Replica{Options: o, Attrs: policy.Attributes{ID: "a", Models: []string{"m"}}}
	return r.NewStream("", 0).translator(3)
}

// ids returns n blocks of tokens that begin at from.
func ids(from, n int) []uint32 {
	tokens := make([]uint32, n*testBlock)
	for i := range tokens {
		tokens[i] = uint32(from*testBlock + i)
	}
	return tokens
}

// chained returns the hashes of those blocks in one prompt.
func chained(tokens []uint32) []uint64 {
	return kvindex.AppendTokens(nil, tokens, testBlock, kvindex.SeedFor("m", "", ""))
}

func store(parent uint64, tokens []uint32, hashes ...uint64) Event {
	return Event{
		Kind: Stored, Hashes: hashes, Parent: parent, Tokens: tokens, BlockSize: testBlock,
	}
}

func remove(hashes ...uint64) Event { return Event{Kind: Removed, Hashes: hashes} }

func on(medium string, e Event) Event { e.Medium = medium; return e }

func (t *translator) take(events ...Event) (out []policy.CacheChange) {
	t.stream.Sink = func(cs []policy.CacheChange) { out = append(out, cs...) }
	t.apply(context.Background(), events)
	return out
}

func gpu(removed, stored []uint64) policy.CacheChange {
	return policy.CacheChange{Replica: "a", Rank: 3, BlockTokens: testBlock, Removed: removed, Stored: stored}
}

func requireChanges(t *testing.T, got []policy.CacheChange, want ...policy.CacheChange) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range got {
		require.True(t, slices.Equal(want[i].Removed, got[i].Removed), "%v %v", want[i], got[i])
		require.True(t, slices.Equal(want[i].Stored, got[i].Stored), "%v %v", want[i], got[i])
		got[i].Removed, got[i].Stored, want[i].Removed, want[i].Stored = nil, nil, nil, nil
		require.Equal(t, want[i], got[i])
	}
}

func TestChainsAreHashedAnew(t *testing.T) {
	x := newTest(Options{})
	h := chained(ids(0, 4))
	requireChanges(t, x.take(store(0, ids(0, 2), 101, 102), store(102, ids(2, 2), 103, 104)), gpu(nil, h))
	requireChanges(t, x.take(remove(104, 999), remove(103), store(102, ids(2, 1), 103)), gpu([]uint64{h[3], h[2]}, h[2:3]))
}

func TestCopiesAreCounted(t *testing.T) {
	x := newTest(Options{})
	h := chained(ids(0, 1))
	x.take(store(0, ids(0, 1), 1))
	require.Empty(t, x.take(store(0, ids(0, 1), 1)), "a second copy changes nothing")
	require.Empty(t, x.take(remove(1)), "one copy is left")
	requireChanges(t, x.take(remove(1)), gpu(h, nil))
	require.Empty(t, x.take(remove(1)))
}

func TestDroppedParentIsStillKnown(t *testing.T) {
	x := newTest(Options{})
	x.take(store(0, ids(0, 1), 1), remove(1))
	requireChanges(t, x.take(store(1, ids(1, 1), 2)), gpu(nil, chained(ids(0, 2))[1:]))
}

func TestTiersAreCumulative(t *testing.T) {
	x := newTest(Options{})
	h := chained(ids(0, 3))
	host := func(removed, stored []uint64) policy.CacheChange {
		c := gpu(removed, stored)
		c.Tier = policy.TierHost
		return c
	}
	x.take(store(0, ids(0, 2), 1, 2))
	requireChanges(t, x.take(on("CPU", Event{Kind: Stored, Hashes: []uint64{2, 77}})), host(nil, h[:2]))
	require.Equal(t, int64(1), x.stream.counts.Orphaned, "77 is unknown")
	requireChanges(t, x.take(remove(1, 2)), gpu(h[:2], nil), host(h[:1], nil))
	requireChanges(t, x.take(store(2, ids(2, 1), 3)), gpu(nil, h[2:]), host(nil, h[2:]))
	requireChanges(t, x.take(on("CPU", remove(2))), host(h[1:2], nil))
	require.Empty(t, x.take(on("EXTERNAL", remove(3))))
	require.Equal(t, int64(1), x.stream.counts.Unreadable[BadMedium])
	away := on("CPU", store(0, ids(20, 1), 20))
	away.Elsewhere = true
	require.Empty(t, x.take(away))
	require.Equal(t, int64(2), x.stream.counts.Unreadable[BadMedium])
	all := []policy.CacheChange{gpu(nil, nil), host(nil, nil)}
	all[0].Cleared, all[1].Cleared = true, true
	requireChanges(t, x.take(Event{Kind: Cleared}), all...)
}

// Blocks with an unknown parent are dropped and counted.
func TestUnknownParents(t *testing.T) {
	x := newTest(Options{})
	h := chained(ids(0, 3))
	require.Empty(t, x.take(store(2, ids(2, 1), 3), remove(3)))
	require.Equal(t, int64(1), x.stream.counts.Orphaned)
	requireChanges(t, x.take(store(0, ids(0, 2), 1, 2), store(2, ids(2, 1), 3)), gpu(nil, h))
	require.Equal(t, int64(1), x.stream.counts.Orphaned)
}

func TestSeedsFollowTheChain(t *testing.T) {
	x := newTest(Options{})
	first := store(0, ids(0, 1), 1)
	first.Adapter, first.Salt = "ada", "tenant"
	second := store(1, ids(1, 1), 2)
	second.Adapter = "ada"
	want := kvindex.AppendTokens(nil, ids(0, 2), testBlock, kvindex.SeedFor("m", "ada", "tenant"))
	requireChanges(t, x.take(first, second), gpu(nil, want))
}

func TestWhatDoesNotFeedTheIndex(t *testing.T) {
	e := store(0, ids(0, 2), 1, 2)
	for name, c := range map[string]struct {
		change func(*Event)
		bad    string
		blocks int
	}{
		"adapter by number": {func(e *Event) { e.Numbered = true }, BadAdapter, 0},
		"missing tokens":    {func(e *Event) { e.Tokens = e.Tokens[1:] }, BadTokens, 0},
		"no block size":     {func(e *Event) { e.BlockSize = 0 }, BadTokens, 0},
		"sliding window":    {func(e *Event) { e.Spec = "sliding_window" }, BadGroup, 0},
		"another group":     {func(e *Event) { e.Group = 1 }, BadGroup, 0},
		"an image":          {func(e *Event) { e.Opaque = 1 }, BadContent, 1},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := newTest(Options{}), e
			c.change(&e)
			out := x.take(e)
			require.Equal(t, Unreadable{c.bad: 1}, x.stream.counts.Unreadable)
			require.Len(t, slices.Concat(stores(out)...), c.blocks)
		})
	}
	x := newTest(Options{})
	e.Group, e.Spec = 1, "mla_attention"
	require.NotEmpty(t, x.take(e))
	e = remove(1)
	e.Group = 1
	require.NotEmpty(t, x.take(e), "the kind of group 1 is known")
}

func stores(cs []policy.CacheChange) (out [][]uint64) {
	for _, c := range cs {
		out = append(out, c.Stored)
	}
	return out
}

// Blocks of another size are refused until everything is cleared. The policy's index checks that replicas agree.
func TestMixedBlockSizesAreRefused(t *testing.T) {
	x := newTest(Options{})
	small := store(0, ids(0, 2)[:4], 1, 2)
	small.BlockSize = 2
	require.NotEmpty(t, x.take(store(0, ids(0, 1), 1)))
	require.Empty(t, x.take(small))
	require.Equal(t, int64(1), x.stream.counts.Unreadable[BadSize])
	x.clear()
	require.NotEmpty(t, x.take(small))
}

// The blocks of hybrid models have sizes such as 528. Blocks that do not divide superblocks are read, and counted.
func TestBlocksOfEverySize(t *testing.T) {
	for _, size := range []int{1, 16, 256, 528, 1056, 2096, 1 << 16} {
		x := newTest(Options{Coarse: true})
		tokens := make([]uint32, 2*size)
		out := x.take(Event{Kind: Stored, Hashes: []uint64{1, 2}, Tokens: tokens, BlockSize: size})
		require.Equal(t, size, out[0].BlockTokens)
		require.Equal(t, kvindex.AppendTokens(nil, tokens, size, kvindex.SeedFor("m", "", "")), out[0].Stored)
		want := Unreadable(nil)
		if policy.SuperblockTokens%size != 0 {
			want = Unreadable{BadSuperblock: 1}
			require.Equal(t, policy.CacheChange{Replica: "a", Rank: 3, BlockTokens: size, Coarse: true, Cleared: true}, out[1], "its size")
		}
		require.Equal(t, want, x.stream.counts.Unreadable)
	}
}

// A slower tier may hold larger blocks than the fastest tier, whose size counts.
func TestSlowerTiersDoNotFixTheBlockSize(t *testing.T) {
	x := newTest(Options{})
	large := on("CPU", Event{Kind: Stored, Hashes: []uint64{9}, Tokens: ids(0, 4), BlockSize: 4 * testBlock})
	require.Equal(t, 4*testBlock, x.take(large)[0].BlockTokens, "until the fastest tier has some")
	out := x.take(store(0, ids(0, 2), 1, 2), large, on("CPU", Event{Kind: Stored, Hashes: []uint64{1}}))
	require.True(t, out[0].Cleared)
	require.Equal(t, 4*testBlock, out[0].BlockTokens)
	last := out[len(out)-1]
	require.Equal(t, []uint64{chained(ids(0, 2))[0]}, last.Stored[:1])
	require.Equal(t, []int{testBlock, int(policy.TierHost)}, []int{last.BlockTokens, int(last.Tier)})
	require.Equal(t, Unreadable{BadSize: 1}, x.stream.counts.Unreadable)
}

func TestSuperblocks(t *testing.T) {
	x := newTest(Options{Coarse: true})
	const size, n = 128, 12
	tokens := make([]uint32, size*n)
	hashes := make([]uint64, n)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	for i := range hashes {
		hashes[i] = uint64(i + 1)
	}
	want := kvindex.AppendTokens(nil, tokens, size, kvindex.SeedFor("m", "", ""))
	e := Event{Kind: Stored, Hashes: hashes, Tokens: tokens, BlockSize: size}
	out := x.take(e)
	require.Len(t, out, 2)
	require.Equal(t, []bool{false, true}, []bool{out[0].Coarse, out[1].Coarse})
	require.Equal(t, size, out[1].BlockTokens)
	require.Equal(t, []uint64{want[3], want[7], want[11]}, out[1].Stored)
	out = x.take(remove(12, 11))
	require.Equal(t, []uint64{want[11]}, out[1].Removed)
	require.Len(t, x.take(Event{Kind: Cleared}), 2)
}

// Whatever an engine reports, the changes add up to what it holds; above the budget, to a part of that.
func TestChangesAddUp(t *testing.T) {
	for seed := range uint64(40) {
		budget := 1 << 20
		if seed%4 == 3 {
			budget = 30 * blockBytes
		}
		runModel(t, seed, budget)
	}
}

func runModel(t *testing.T, seed uint64, budget int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	x := newTest(Options{MaxBytes: budget, Coarse: true})
	held := map[[2]uint64]bool{}            // tier, chained
	truth := map[uint64][policy.Tiers]int{} // engine hash -> copies
	tokens := func(h uint64) []uint32 { return ids(int(h%8), 1) }
	parent := func(h uint64) uint64 { return h / 8 } // a tree of engine hashes; 0 is the root
	var prefix func(h uint64) []uint32
	prefix = func(h uint64) []uint32 {
		if h == 0 {
			return nil
		}
		return append(prefix(parent(h)), tokens(h)...)
	}
	media := []string{"GPU", "CPU", "DISK"}
	known := map[uint64]bool{0: true}
	for range 1000 {
		h, tier := 1+rng.Uint64N(500), rng.IntN(2+int(seed%2))
		var e Event
		switch k := rng.IntN(200); {
		case k == 0:
			e = Event{Kind: Cleared}
			clear(truth)
			known = map[uint64]bool{0: true}
		case k < 140:
			for !known[parent(h)] {
				h = parent(h)
			}
			e = on(media[tier], store(parent(h), tokens(h), h))
			c := truth[h]
			c[tier]++
			truth[h], known[h] = c, true
		default:
			e = on(media[tier], remove(h))
			if c := truth[h]; c[tier] > 0 {
				c[tier]--
				truth[h] = c
			}
		}
		for _, c := range x.take(e) {
			if c.Coarse {
				continue
			}
			if c.Cleared {
				for k := range held {
					if k[0] == uint64(c.Tier) {
						delete(held, k)
					}
				}
			}
			for _, r := range c.Removed {
				delete(held, [2]uint64{uint64(c.Tier), r})
			}
			for _, s := range c.Stored {
				held[[2]uint64{uint64(c.Tier), s}] = true
			}
		}
	}
	want := map[[2]uint64]bool{}
	for h, c := range truth {
		hashes := chained(prefix(h))
		for tier := range x.lower + 1 {
			if slices.Max(c[:tier+1]) > 0 {
				want[[2]uint64{uint64(tier), hashes[len(hashes)-1]}] = true
			}
		}
	}
	if budget == 1<<20 {
		require.Equal(t, want, held, "seed %d", seed)
		return
	}
	require.LessOrEqual(t, len(x.blocks.places), 30)
	require.Positive(t, x.stream.counts.Forgotten)
	for k := range held {
		require.True(t, want[k], "seed %d: more than the engine holds", seed)
	}
}
