package prefixaffinity

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
)

func TestTenantsDoNotShare(t *testing.T) {
	r := newRouter(t, 16)
	route(t, r, ask(tokens(1, 800)))
	for _, change := range []func(*policy.Request){
		func(q *policy.Request) { q.Model = "m" },
		func(q *policy.Request) { q.Adapter = "a" },
		func(q *policy.Request) { q.CacheSalt = "s" },
	} {
		q := ask(tokens(1, 800))
		change(q)
		d := route(t, r, q)
		assert.Zero(t, d.MatchedTokens)
		assert.NotEqual(t, policy.ReasonPrefixMatch, d.Reason)
	}
	assert.Equal(t, 800, route(t, r, ask(tokens(1, 800))).MatchedTokens)
}

// The prompt is read once, though the fleet changes and attempts fail.
func TestReadOnce(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(16))
	q := ask(tokens(1, 800))
	for i := range 10 {
		b := policytest.Pick(t, r, q)
		b.Release()
		router.DropPrompt(q)
		router.NextAttempt(q, b.Decision.Replica)
		assert.Equal(t, i+1 > 1, b.Decision.Reason == policy.ReasonRetry)
		policytest.SetFleet(r, policytest.Fleet(16+i))
	}
	assert.Len(t, q.Prepared.(*prepared).Hashes, 50)
}

// What was prepared for a request that has ended is memory for the next one, and nothing of it is left.
func TestMemoryIsUsedAgain(t *testing.T) {
	fresh, again := newRouter(t, 16), newRouter(t, 16)
	decide := func(r *router.Router, q *policy.Request) policy.Decision {
		d := route(t, r, q)
		r.Complete(q, d, policy.Outcome{Sent: true, Usage: policy.NoUsage})
		return d
	}
	var spare, before any
	for i := range 500 {
		q := policy.Request{Session: "s"}
		if i%10 != 0 {
			q = *ask(tokens(i%7, 16*(i%7)), tokens(i%50, 20+i%900))
		}
		own := q
		own.State().Spare = &spare
		want, got := decide(fresh, &q), decide(again, &own)
		require.Equal(t, want.Replica.ID, got.Replica.ID)
		require.Equal(t, want.Reason, got.Reason)
		require.Equal(t, want.MatchedTokens, got.MatchedTokens)
		require.Equal(t, want.Place, got.Place)
		require.Nil(t, spare, "it is taken")
		require.True(t, before == nil || own.Prepared == before, "another memory")
		spare, before = own.Prepared, own.Prepared
	}
}

// A policy that asks two of these gives each a copy of the request: only one of them takes the memory.
func TestCopiesDoNotShareMemory(t *testing.T) {
	r := newRouter(t, 4)
	used := ask(tokens(1, 100))
	r.Prepare(context.Background(), used)
	spare := used.Prepared
	first := *ask(tokens(2, 100))
	first.State().Spare = &spare
	second := first
	r.Prepare(context.Background(), &first)
	r.Prepare(context.Background(), &second)
	require.Same(t, used.Prepared, first.Prepared)
	require.NotSame(t, first.Prepared, second.Prepared)
}

func TestHoldersAreBounded(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(100))
	for i := range 2 {
		q := ask(tokens(1, 176+16*i))
		r.Prepare(context.Background(), q)
		for _, rep := range r.View().Replicas()[20*i : 40] {
			p.routed(q, policy.To(rep, ""))
		}
	}
	q := ask(tokens(1, 192))
	r.Prepare(context.Background(), q)
	s := q.Prepared.(*prepared)
	require.Equal(t, maxHolders, s.holders)
	places := order(s.Key, r.View().Replicas())
	at := func(id string) int {
		for i, o := range places {
			if o == id {
				return i
			}
		}
		return -1
	}
	for i, h := range s.places[:s.holders] {
		assert.Equal(t, map[bool]int{true: 12, false: 11}[i < 20], int(h.Depth))
		if i > 0 && s.places[i-1].Depth == h.Depth {
			assert.Less(t, at(s.fleet.Replicas[s.places[i-1].At].ID), at(s.fleet.Replicas[h.At].ID))
		}
	}
}

func TestIndexStats(t *testing.T) {
	p := newPolicy(t, Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(4))
	route(t, r, ask(tokens(1, 800)))
	x := p.caches.Stats()
	assert.EqualValues(t, 50, x.Blocks)
	assert.Positive(t, x.Bytes)
	assert.Zero(t, x.Evictions)
	_, ok := p.caches.Fleet(r.View()).Place(p.caches.Member(&policy.Replica{Attributes: policy.Attributes{ID: "gone"}}))
	assert.False(t, ok)
}
