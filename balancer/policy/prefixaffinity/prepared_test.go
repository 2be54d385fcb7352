package prefixaffinity

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

// Vectors of libxxhash 0.8.1: full blocks as in kvindex, then what follows them.
func TestBlocksAndTail(t *testing.T) {
	for _, tt := range []struct {
		prompt routing.Prompt
		size   int
		want   []uint64
	}{
		{routing.Prompt{Text: "the quick brown fox"}, 8, []uint64{5367101597652270396, 8859486533825349813, 6703121180581195638}},
		{routing.Prompt{Text: "hi"}, 8, []uint64{9089513857973819151}},
		{routing.Prompt{Tokens: []uint32{1, 2, 3, 4, 5, 6}}, 4, []uint64{14643705804678351452, 15850496887946224198}},
		{routing.Prompt{Tokens: []uint32{1, 2, 3, 4}}, 4, []uint64{14643705804678351452}},
	} {
		c := with(func(c *Config) { c.BlockBytes, c.BlockTokens = tt.size, tt.size })
		var s prepared
		s.hash(tt.prompt, c, 1337, true)
		assert.Equal(t, tt.want, s.blocks)
		s.hash(tt.prompt, c, 1337, false)
		assert.Equal(t, tt.want[:s.length/tt.size], append([]uint64{}, s.blocks...))
	}
}

func TestCovered(t *testing.T) {
	s := prepared{block: 64, length: 150, unit: routing.BytesPerToken, tokens: 38}
	assert.Equal(t, []int{0, 16, 32, 38}, []int{s.matchedTokens(0), s.matchedTokens(1), s.matchedTokens(2), s.matchedTokens(3)})
	assert.Zero(t, (&prepared{tokens: 40}).matchedTokens(0), "a session whose prompt was dropped before")
	s = prepared{block: 16, length: 40, unit: 1, tokens: 40}
	assert.Equal(t, []int{0, 16, 32, 40}, []int{s.matchedTokens(0), s.matchedTokens(1), s.matchedTokens(2), s.matchedTokens(3)})
}

func TestTenantsDoNotShare(t *testing.T) {
	r := newRouter(t, 16)
	route(t, r, ask(tokens(1, 800)))
	for _, change := range []func(*routing.Request){
		func(q *routing.Request) { q.Model = "m" },
		func(q *routing.Request) { q.Adapter = "a" },
		func(q *routing.Request) { q.CacheSalt = "s" },
	} {
		q := ask(tokens(1, 800))
		change(q)
		d := route(t, r, q)
		assert.Zero(t, d.MatchedTokens)
		assert.NotEqual(t, routing.ReasonPrefixMatch, d.Reason)
	}
	assert.Equal(t, 800, route(t, r, ask(tokens(1, 800))).MatchedTokens)
}

// The prompt is read and counted once, though the fleet changes and attempts fail.
func TestReadOnce(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(16))
	q := ask(tokens(1, 800))
	for i := range 10 {
		b := policytest.Pick(t, r, q)
		b.Release()
		q.DropPrompt()
		q.NextAttempt(b.Decision.Replica)
		assert.Equal(t, i+1 > 1, b.Decision.Reason == routing.ReasonRetry)
		policytest.SetFleet(r, policytest.Fleet(16+i))
	}
	assert.Equal(t, 1, p.popularity.now.requests)
	assert.Len(t, q.Prepared.(*prepared).blocks, 50)
}

func TestQuorum(t *testing.T) {
	f := func(n int) *fleet {
		return &fleet{replicas: make([]*routing.Replica, n), serving: map[string]int{"m": n / 4}, any: 1}
	}
	for n, want := range map[int]int{1: 2, 2: 2, 3: 3, 4: 4, 7: 4, 8: 5, 16: 9, 1000: 501} {
		assert.Equal(t, want, f(n).quorum("", 0.5), "%d replicas", n)
	}
	assert.Equal(t, 17, f(16).quorum("", 1), "off")
	assert.Equal(t, 4, f(16).quorum("m", 0.5), "five serve the model")
	assert.Equal(t, 9, f(16).quorum("unknown", 0.5))
}

func TestHoldersAreBounded(t *testing.T) {
	p := newPolicy(t, with(func(c *Config) { c.SharedFraction = 1 }))
	r := policytest.NewRouter(t, p, policytest.Fleet(100))
	for i := range 2 {
		q := ask(tokens(1, 176+16*i))
		r.Prepare(context.Background(), q)
		for _, rep := range r.View().Replicas()[20*i : 40] {
			p.Routed(q, routing.To(rep, ""))
		}
	}
	q := ask(tokens(1, 192))
	r.Prepare(context.Background(), q)
	s := q.Prepared.(*prepared)
	require.Len(t, s.holders, maxHolders)
	places := order(s.key, r.View().Replicas())
	at := func(id string) int {
		for i, o := range places {
			if o == id {
				return i
			}
		}
		return -1
	}
	for i, h := range s.holders {
		assert.Equal(t, map[bool]int{true: 12, false: 11}[i < 20], int(h.depth))
		if i > 0 && s.holders[i-1].depth == h.depth {
			assert.Less(t, at(s.fleet.replicas[s.holders[i-1].at].ID), at(s.fleet.replicas[h.at].ID))
		}
	}
}

func TestIndexStats(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	route(t, r, ask(tokens(1, 800)))
	x := p.IndexStats()
	assert.EqualValues(t, 50, x.Blocks)
	assert.Positive(t, x.Bytes)
	assert.Zero(t, x.Evictions)
	assert.Equal(t, kvindex.NoSlot, p.member(&routing.Replica{Attributes: routing.Attributes{ID: "gone"}}).slot)
}
