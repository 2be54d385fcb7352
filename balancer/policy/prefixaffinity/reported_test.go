package prefixaffinity

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
)

// report reports that a replica caches a prompt, in blocks or superblocks.
func report(r *router.Router, id string, prompt []uint32, blockTokens int) {
	var stored []uint64
	for i, h := range kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", "")) {
		if (i+1)*16%blockTokens == 0 {
			stored = append(stored, h)
		}
	}
	r.CacheChanged([]policy.CacheChange{{Replica: id, BlockTokens: blockTokens, Stored: stored}})
}

// A client finds a conversation that it has not seen on the replica that reports it.
func TestReportedCachesAreFound(t *testing.T) {
	for grain, matched := range map[int]int{16: 2000, policy.SuperblockTokens: 1536} {
		r := newRouter(t, 16)
		talk := tokens(1, 2000)
		away := order(keyOf(t, ask(talk)), r.View().Replicas())[11]
		report(r, away, talk, grain)
		d := route(t, r, ask(talk, tokens(2, 300)))
		assert.Equal(t, away, d.Replica.ID)
		assert.Equal(t, policy.ReasonPrefixMatch, d.Reason)
		assert.Equal(t, matched, d.MatchedTokens)
	}
}

func TestRaysRuleIgnoresReports(t *testing.T) {
	p := newPolicy(t, with(func(c *Config) { c.OnMiss = OnMissSmallest }))
	r := policytest.NewRouter(t, p.policy(), policytest.Fleet(4))
	require.True(t, r.ObservesCache())
	report(r, "r3", tokens(1, 800), 16)
	assert.Zero(t, route(t, r, ask(tokens(1, 800))).MatchedTokens)
}

// A route counts as long as the replica's KV cache can hold its prompt.
func TestCapacity(t *testing.T) {
	for capacity, matched := range map[int]int{0: 800, 2400: 0} {
		r := newRouter(t, 1)
		r.Fleet.SetCapacity("r0", capacity)
		for i := range 4 {
			route(t, r, ask(tokens(i, 800)))
		}
		assert.Equal(t, matched, route(t, r, ask(tokens(0, 800))).MatchedTokens)
	}
}
