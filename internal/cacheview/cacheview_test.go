package cacheview

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
)

var defaults = Options{MaxBytes: 4 << 20, Grain: rendezvous.Grain{Bytes: 64, Tokens: 16}}

// world is an Index and its fleet.
type world struct {
	*testing.T
	*Index
	fleet *Fleet
}

func newWorld(t *testing.T, o Options, members ...router.Member) *world {
	if len(members) == 0 {
		members = policytest.Fleet(4)
	}
	p, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	v := policytest.NewRouter(t, p, members).View()
	x := New(o)
	x.FleetChanged(policy.FleetChange{Added: v.Replicas()})
	return &world{T: t, Index: x, fleet: x.Fleet(v)}
}

// tokens returns n token ids; those of different seeds share nothing.
func tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*1_000_003 + i)
	}
	return out
}

func (w *world) cut(prompt []uint32) *rendezvous.Blocks {
	b := new(rendezvous.Blocks)
	b.Cut(policy.Prompt{Tokens: prompt}, len(prompt), w.Grain(""), kvindex.SeedFor("", "", ""))
	return b
}

// depth is how many blocks of a prompt a replica holds on a tier.
func (w *world) depth(prompt []uint32, id string, tier policy.Tier) int {
	var f Found
	w.Match(w.fleet, w.cut(prompt), &f)
	at, ok := w.fleet.Place(w.members[id])
	require.True(w, ok)
	for i, h := range f.Holders {
		require.Equal(w, int(h.Depth), f.Any(int(h.At)))
		require.True(w, i == 0 || f.Holders[i-1].Depth >= h.Depth)
	}
	return f.Depth(at, tier)
}

func (w *world) report(c policy.CacheChange) { w.CacheChanged([]policy.CacheChange{c}) }

func (w *world) route(id string, prompt []uint32) *Prediction {
	predicted := new(Prediction)
	w.members[id].Routed(predicted, 0, Route{Blocks: w.cut(prompt).Hashes, BlockTokens: 16})
	return predicted
}

// full returns the hashes of a prompt's full blocks, or superblocks.
func full(prompt []uint32, per int) []uint64 {
	var out []uint64
	for i, h := range kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", "")) {
		if (i+1)%per == 0 {
			out = append(out, h)
		}
	}
	return out
}

func TestReportedBlocks(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 100)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Stored: full(p, 1)})
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Tier: policy.TierDisk, Stored: full(p, 1)})
	w.report(policy.CacheChange{Replica: "absent", BlockTokens: 16, Stored: full(p, 1)})
	assert.Equal(t, 6, w.depth(p, "r1", policy.TierGPU), "what follows the last full block is not reported")
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Removed: full(p, 1)[2:]})
	assert.Equal(t, 2, w.depth(p, "r1", policy.TierGPU))
	assert.Equal(t, 2, w.depth(p, "r1", policy.TierHost), "the slower tier holds nothing more")
	assert.Equal(t, 6, w.depth(p, "r1", policy.TierDisk))
	assert.Zero(t, w.depth(p, "r2", policy.TierDisk))
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Cleared: true, Stored: full(p, 1)[:1]})
	assert.Equal(t, 1, w.depth(p, "r1", policy.TierGPU))
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Tier: policy.TierDisk, Cleared: true})
	assert.Equal(t, 1, w.depth(p, "r1", policy.TierDisk))
	assert.Zero(t, w.Stats().Refused)
}

func TestSuperblocks(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 1600)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Coarse: true, Stored: full(p, 32)})
	w.report(policy.CacheChange{Replica: "r2", BlockTokens: 16, Coarse: true, Stored: full(p, 32)[:1]})
	assert.Equal(t, 96, w.depth(p, "r1", policy.TierGPU), "three superblocks")
	assert.Equal(t, 32, w.depth(p, "r2", policy.TierGPU))
	assert.Equal(t, 64, w.depth(p[:1100], "r1", policy.TierGPU))
	assert.Zero(t, w.depth(p[:500], "r1", policy.TierGPU))
	w.route("r2", p)
	assert.Equal(t, 100, w.depth(p, "r2", policy.TierGPU), "the deepest of all sources")
	w.route("r1", p[:600])
	assert.Equal(t, 96, w.depth(p, "r1", policy.TierGPU))
}

// The report of a server lacks what changed meanwhile.
func TestSuperblocksWithAGap(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 30*policy.SuperblockTokens)
	super := full(p, 32)
	stored := append(append([]uint64{}, super[:20]...), super[21:]...)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Coarse: true, Stored: stored})
	assert.Equal(t, 20*32, w.depth(p, "r1", policy.TierGPU))
}

func TestSuperblocksOfText(t *testing.T) {
	w := newWorld(t, defaults)
	text := string(make([]byte, 5000))
	var b rendezvous.Blocks
	b.Cut(policy.Prompt{Text: text}, 1250, defaults.Grain, 1337)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Coarse: true, Stored: []uint64{b.Hashes[31], b.Hashes[63]}})
	var f Found
	w.Match(w.fleet, &b, &f)
	require.Len(t, f.Holders, 1)
	assert.EqualValues(t, 64, f.Holders[0].Depth)
}

func TestMismatchedBlocksAreRefused(t *testing.T) {
	odd := defaults
	odd.Grain = rendezvous.Grain{Bytes: 100, Tokens: 24}
	for i, tt := range []struct {
		options Options
		tokens  int
		coarse  bool
		refused int64
	}{
		{defaults, 16, false, 0}, {defaults, 32, false, 0}, {defaults, 512, false, 0}, {odd, 24, false, 0},
		{defaults, 16, true, 0}, {defaults, 512, true, 0}, {defaults, 528, true, 1}, {defaults, 0, true, 0},
		{defaults, 0, false, 1}, {odd, 0, true, 1}, {odd, 16, true, 0},
		{Options{MaxBytes: 1 << 20, Grain: rendezvous.Grain{Bytes: 64, Tokens: 1}}, 1<<16 + 1, false, 1},
		{Options{MaxBytes: 1 << 20, Grain: rendezvous.Grain{Bytes: 64, Tokens: 1}}, 2096, false, 0},
	} {
		w := newWorld(t, tt.options)
		w.report(policy.CacheChange{Replica: "r1", BlockTokens: tt.tokens, Coarse: tt.coarse, Stored: []uint64{1}})
		assert.Equal(t, tt.refused, w.Stats().Refused, "case %d", i)
		assert.Equal(t, tt.refused == 0, w.members["r1"].reported.Load() != unreported)
	}
}

// The blocks of an engine may be as large as superblocks.
func TestBlocksOfTheSizeOfSuperblocks(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 3*policy.SuperblockTokens+100)
	hashes := kvindex.AppendTokens(nil, p, policy.SuperblockTokens, kvindex.SeedFor("", "", ""))
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: policy.SuperblockTokens, Stored: hashes})
	w.report(policy.CacheChange{Replica: "r2", BlockTokens: policy.SuperblockTokens, Coarse: true, Stored: hashes[:2]})
	require.Equal(t, policy.SuperblockTokens, w.Grain("").Tokens)
	require.Equal(t, 3, w.depth(p, "r1", policy.TierGPU))
	require.Equal(t, 2, w.depth(p, "r2", policy.TierGPU))
	require.Equal(t, []bool{true, false}, []bool{w.members["r1"].Reported(), w.members["r2"].Reported()})
}

// A change without hashes tells the size of the blocks. If superblocks cannot consist of these, it is no report.
func TestSizeWithoutBlocks(t *testing.T) {
	w := newWorld(t, defaults)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 528, Coarse: true, Cleared: true})
	require.Equal(t, 528, w.Grain("").Tokens)
	require.False(t, w.members["r1"].Coarse())
	w.report(policy.CacheChange{Replica: "r2", BlockTokens: 32, Coarse: true, Predicted: true})
	require.Equal(t, 32, w.Grain("").Tokens)
	require.False(t, w.members["r2"].Coarse())
	require.Zero(t, w.Stats().Refused)
}

// A fleet may be restarted with another block, one replica after the other.
func TestAnotherBlockSizeIsLearned(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 320)
	report := func(id string, size int) {
		w.report(policy.CacheChange{Replica: id, BlockTokens: size, Stored: kvindex.AppendTokens(nil, p, size, kvindex.SeedFor("", "", ""))})
	}
	report("r0", 16)
	report("r1", 16)
	w.report(policy.CacheChange{Replica: "r0", BlockTokens: 16, Cleared: true})
	report("r0", 32)
	require.EqualValues(t, 1, w.Stats().Refused, "r1 holds blocks of the other size")
	require.Equal(t, 16, w.Grain("").Tokens)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Cleared: true})
	report("r0", 32)
	report("r1", 32)
	require.EqualValues(t, 1, w.Stats().Refused)
	require.Equal(t, 32, w.Grain("").Tokens)
	require.Equal(t, 10, w.depth(p, "r0", policy.TierGPU))
	require.Equal(t, 10, w.depth(p, "r1", policy.TierGPU))
}

func TestBlockSizeOfTheEngineIsLearned(t *testing.T) {
	fleet := policytest.Fleet(4)
	fleet[1].Models, fleet[2].Models, fleet[3].Models = []string{"a"}, []string{"b"}, []string{"a"}
	w := newWorld(t, defaults, fleet...)
	report := func(id string, tokens int) {
		w.report(policy.CacheChange{Replica: id, BlockTokens: tokens, Stored: []uint64{1}})
	}
	assert.Equal(t, 16, w.Grain("a").Tokens)
	report("r1", 64)
	report("r2", 32)
	assert.Equal(t, []int{64, 32, 16}, []int{w.Grain("a").Tokens, w.Grain("b").Tokens, w.Grain("c").Tokens})
	assert.Equal(t, 64, w.Grain("a").Bytes, "text has none")
	report("r3", 32)
	assert.EqualValues(t, 1, w.Stats().Refused, "a has another")
	assert.Equal(t, 64, w.Grain("a").Tokens)
	report("r0", 128)
	assert.Equal(t, 128, w.Grain("").Tokens)
}

// Predictions last where nothing is reported, and elsewhere while their requests are under way.
func TestPredictionsEndWhereReported(t *testing.T) {
	for _, reported := range []bool{false, true} {
		w := newWorld(t, defaults)
		p, other := tokens(1, 320), tokens(2, 320)
		if reported {
			w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Stored: full(p, 1)[:3]})
		}
		predicted := w.route("r1", p)
		w.route("r1", other)
		assert.Equal(t, 20, w.depth(p, "r1", policy.TierGPU), "under way")
		predicted.End(true)
		w.route("r1", tokens(3, 16))
		assert.Equal(t, map[bool]int{false: 20, true: 3}[reported], w.depth(p, "r1", policy.TierGPU))
		assert.Equal(t, 20, w.depth(other, "r1", policy.TierGPU), "under way")
	}
}

// Where a request is alone on a replica, the requests before it have ended, reported or not.
func TestEndsThatWereNotReported(t *testing.T) {
	w := newWorld(t, defaults)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Cleared: true})
	for i := range 5 {
		w.route("r1", tokens(i, 320))
	}
	w.members["r1"].Routed(new(Prediction), 0, Route{Blocks: w.cut(tokens(9, 320)).Hashes, BlockTokens: 16, Alone: true})
	for i := range 5 {
		assert.Zero(t, w.depth(tokens(i, 320), "r1", policy.TierGPU))
	}
	assert.Equal(t, 20, w.depth(tokens(9, 320), "r1", policy.TierGPU))
}

func TestCapacity(t *testing.T) {
	o := defaults
	o.KVTokens = 640
	w := newWorld(t, o)
	w.SetCapacity("r2", 320)
	w.SetCapacity("absent", 1)
	for _, id := range []string{"r1", "r2"} {
		w.route(id, tokens(1, 320))
		w.route(id, tokens(2, 320))
	}
	assert.Equal(t, 20, w.depth(tokens(1, 320), "r1", policy.TierGPU))
	assert.Zero(t, w.depth(tokens(1, 320), "r2", policy.TierGPU))
	w.SetCapacity("r1", 0)
	for i := range 50 {
		w.route("r1", tokens(i, 320))
	}
	assert.Equal(t, 20, w.depth(tokens(3, 320), "r1", policy.TierGPU))
}

// The reports of a replica go with it, and the next replica with its number does not
// inherit them.
func TestLeaving(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 1600)
	for _, grain := range []int{1, 32} {
		w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Coarse: grain > 1, Stored: full(p, grain)})
	}
	old := w.fleet
	var before Found
	w.Match(old, w.cut(p), &before)
	require.Len(t, before.Holders, 1)
	w.FleetChanged(policy.FleetChange{Added: []*policy.Replica{{Attributes: policy.Attributes{ID: "new"}}}, Removed: []*policy.Replica{old.Replicas[1]}})
	w.report(policy.CacheChange{Replica: "new", BlockTokens: 16, Stored: full(p, 1)})
	w.Match(old, w.cut(p), &before)
	assert.Empty(t, before.Holders, "new is not of that fleet")
	assert.Same(t, absent, w.Member(&policy.Replica{Attributes: policy.Attributes{ID: "r1"}}))
	var predicted Prediction
	absent.Routed(&predicted, 0, Route{Blocks: full(p, 1), BlockTokens: 16})
	predicted.End(true)
}

func TestConcurrentUse(t *testing.T) {
	w := newWorld(t, Options{MaxBytes: 1 << 20, Grain: defaults.Grain})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var f Found
			id := fmt.Sprint("r", g)
			m := w.Member(w.fleet.Replicas[g])
			for i := range 200 {
				p := tokens(i%20, 1200)
				for _, grain := range []int{1, 32} {
					w.report(policy.CacheChange{
						Replica: id, Rank: i % 2, Tier: policy.Tier(i % 3), BlockTokens: 16, Coarse: grain > 1,
						Cleared: i%50 == 0, Stored: full(p, grain), Removed: full(tokens(i%7, 1200), grain),
					})
				}
				b := w.cut(p)
				w.Match(w.fleet, b, &f)
				var predicted Prediction
				m.Routed(&predicted, 0, Route{Blocks: b.Hashes, BlockTokens: 16, Work: 1, Alone: i%9 == 0})
				predicted.End(true)
				w.SetCapacity(id, i*100)
				w.Stats()
			}
		})
	}
	wg.Wait()
}

func TestMatchDoesNotAllocate(t *testing.T) {
	w := newWorld(t, defaults)
	p := tokens(1, 1600)
	for i := range 4 {
		for _, grain := range []int{1, 32} {
			w.report(policy.CacheChange{Replica: fmt.Sprint("r", i), BlockTokens: 16, Coarse: grain > 1, Stored: full(p, grain)[i:]})
		}
		w.route(fmt.Sprint("r", i), p[:400*i])
	}
	var f Found
	b := w.cut(p)
	w.Match(w.fleet, b, &f)
	assert.Zero(t, testing.AllocsPerRun(20, func() { w.Match(w.fleet, b, &f) }))
}

// An engine that says that its cache was cleared has nothing of what was routed there.
func TestClearedCacheHasNoRoutes(t *testing.T) {
	w := newWorld(t, defaults)
	p, q := tokens(1, 1600), tokens(2, 1600)
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Stored: full(p, 1)})
	ended, underWay := w.route("r1", p), w.route("r1", q)
	ended.End(true)
	require.Equal(t, 100, w.depth(p, "r1", policy.TierGPU))
	w.report(policy.CacheChange{Replica: "r1", BlockTokens: 16, Cleared: true})
	require.Zero(t, w.depth(p, "r1", policy.TierGPU))
	underWay.End(true)
	require.Zero(t, w.depth(q, "r1", policy.TierGPU))
	w.route("r1", p)
	require.Equal(t, 100, w.depth(p, "r1", policy.TierGPU))
}
