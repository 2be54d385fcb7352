package prefixaffinity

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// tell tells that a replica caches a prompt, in blocks or superblocks.
func tell(r *routing.Router, id string, prompt []uint32, blockTokens int) {
	var stored []uint64
	for i, h := range kvindex.AppendTokens(nil, prompt, 16, kvindex.SeedFor("", "", "")) {
		if (i+1)*16%blockTokens == 0 {
			stored = append(stored, h)
		}
	}
	r.CacheChanged([]routing.CacheChange{{Replica: id, BlockTokens: blockTokens, Stored: stored}})
}

// A client that is told finds a conversation that it has not seen, wherever it is.
func TestWhatIsToldIsFound(t *testing.T) {
	for grain, matched := range map[int]int{16: 2000, routing.SuperblockTokens: 1536} {
		r := newRouter(t, 16)
		talk := tokens(1, 2000)
		away := order(keyOf(t, ask(talk)), r.View().Replicas())[11]
		tell(r, away, talk, grain)
		d := route(t, r, ask(talk, tokens(2, 300)))
		assert.Equal(t, away, d.Replica.ID)
		assert.Equal(t, routing.ReasonPrefixMatch, d.Reason)
		assert.Equal(t, matched, d.MatchedTokens)
	}
}

// What most replicas are told to hold decides nothing, as what was routed there.
func TestWhatAllAreToldToHoldDecidesNothing(t *testing.T) {
	r := newRouter(t, 16)
	system, own := tokens(1, 2048), tokens(2, 1024)
	for _, rep := range r.View().Replicas()[:10] {
		tell(r, rep.ID, system, routing.SuperblockTokens)
	}
	q := ask(system, tokens(3, 1024))
	assert.NotEqual(t, routing.ReasonPrefixMatch, route(t, r, q).Reason)
	tell(r, "r15", append(append([]uint32{}, system...), own...), routing.SuperblockTokens)
	d := route(t, r, ask(system, own, tokens(4, 100)))
	assert.Equal(t, "r15", d.Replica.ID)
	assert.Equal(t, 3072, d.MatchedTokens)
}

func TestRaysRuleIsNotTold(t *testing.T) {
	p := newPolicy(t, with(func(c *Config) { c.OnMiss = OnMissSmallest }))
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	require.True(t, r.ObservesCache())
	tell(r, "r3", tokens(1, 800), 16)
	assert.Zero(t, route(t, r, ask(tokens(1, 800))).MatchedTokens)
}

// What was routed to a replica counts as long as its KV cache can hold it.
func TestCapacity(t *testing.T) {
	for capacity, matched := range map[int]int{0: 800, 2400: 0} {
		r := newRouter(t, 1)
		r.ReplicaCapacity("r0", capacity)
		for i := range 4 {
			route(t, r, ask(tokens(i, 800)))
		}
		assert.Equal(t, matched, route(t, r, ask(tokens(0, 800))).MatchedTokens)
	}
}
