package kvaware

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// The kit's functions under short names.
var (
	tokens = routertest.Tokens
	ask    = routertest.Prompt
	route  = routertest.Decide
)

// with returns the default config, changed.
func with(change func(*Config)) Config {
	c := Config{}.WithDefaults()
	change(&c)
	return c
}

func newPolicy(t testing.TB, c Config) *kvAware {
	t.Helper()
	p, err := build(c)
	require.NoError(t, err)
	return p
}

// newRouter returns a Router of the default policy over n replicas, r0, r1, ….
func newRouter(t testing.TB, n int) *router.Router {
	t.Helper()
	return policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), policytest.Fleet(n))
}

// report reports what a rank of a replica caches of a prompt, in the engine's blocks, or
// in superblocks of blocks of 16.
func report(r *router.Router, id string, rank int, tier policy.Tier, prompt []uint32, blockTokens int) {
	cut, coarse := blockTokens, blockTokens == policy.SuperblockTokens
	if coarse {
		cut = 16
	}
	var stored []uint64
	for i, h := range kvindex.AppendTokens(nil, prompt, cut, kvindex.SeedFor("", "", "")) {
		if (i+1)*cut%blockTokens == 0 {
			stored = append(stored, h)
		}
	}
	r.CacheChanged([]policy.CacheChange{{Replica: id, Rank: rank, Tier: tier, BlockTokens: cut, Coarse: coarse, Stored: stored}})
}

// busy reserves a prompt of so many tokens on a replica.
func busy(t testing.TB, r *router.Router, id string, tokens int) *router.Reservation {
	t.Helper()
	return policytest.Pick(t, r, &policy.Request{Pin: id, PromptTokens: tokens})
}

// places returns the whole rendezvous order of a prepared request.
func places(t testing.TB, r *router.Router, q *policy.Request) []string {
	t.Helper()
	r.Prepare(t.Context(), q)
	return routertest.Order(q.Prepared.(*prepared).Key, r.View().Replicas())
}
