package kvaware

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
)

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
		part.OfRequest(&own).Spare = &spare
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
	part.OfRequest(&first).Spare = &spare
	second := first
	r.Prepare(context.Background(), &first)
	r.Prepare(context.Background(), &second)
	require.Same(t, used.Prepared, first.Prepared)
	require.NotSame(t, first.Prepared, second.Prepared)
}
