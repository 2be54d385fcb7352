package kvaware_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

func idleFleet(t *testing.T, n int) *router.Router {
	p, err := kvaware.New(kvaware.Config{}.WithDefaults())
	require.NoError(t, err)
	return policytest.NewRouter(t, p, policytest.Fleet(n))
}

// stored reports the blocks of a prompt as cached by a replica.
func stored(r *router.Router, id string, prompt []uint32) {
	r.CacheChanged([]policy.CacheChange{{Replica: id, BlockTokens: 16, Stored: kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", ""))}})
}

// answer serves a request; the replica reports what it had cached.
func answer(t *testing.T, r *router.Router, q *policy.Request) policy.Decision {
	b := policytest.Pick(t, r, q)
	b.PrefillDone()
	b.Release()
	r.Complete(q, b.Decision, policy.Outcome{
		Sent: true, FirstMessage: time.Second, Usage: policy.Usage{PromptTokens: q.PromptTokens, CachedTokens: b.Decision.MatchedTokens},
	})
	return b.Decision
}

// Issue 12.15: on an idle fleet a cached prefix of 64 tokens or more wins every time, however short or long the
// prompt is, and whatever requests came before.
func TestOnAnIdleFleetTheCacheWins(t *testing.T) {
	r := idleFleet(t, 8)
	for i := range 300 {
		cached := []int{64, 128, 1024, 1328, 4000}[i%5]
		prefix := routertest.Tokens(1000+i, cached)
		holder := fmt.Sprint("r", i%8)
		stored(r, holder, prefix)
		d := answer(t, r, routertest.Prompt(prefix, routertest.Tokens(5000+i, []int{0, 40, 900, 8000}[i%4])))
		require.Equal(t, holder, d.Replica.ID, "%d tokens", cached)
		require.Equal(t, cached, d.MatchedTokens)
	}
}

// Issue 12.15: a repeated prompt on an idle fleet is warm each time but the first.
func TestOnAnIdleFleetARepeatedPromptStays(t *testing.T) {
	for _, n := range []int{2, 3, 16, 100} {
		r := idleFleet(t, n)
		for i := range 200 { // of all kinds before
			answer(t, r, routertest.Prompt(routertest.Tokens(i%5, 640), routertest.Tokens(100+i, 500)))
		}
		for i := range 20 {
			d := answer(t, r, routertest.Prompt(routertest.Tokens(9999, 8000)))
			if i > 0 {
				require.Equal(t, 8000, d.MatchedTokens, "%d replicas, call %d", n, i+1)
			}
		}
	}
}
