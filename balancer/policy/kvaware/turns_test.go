package kvaware

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/warmpath/warmpath/balancer/policy/agreed"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

// answer picks a replica, which answers that so many tokens of the prompt were cached.
func answer(t *testing.T, r *routing.Router, q *routing.Request, cached int) routing.Decision {
	t.Helper()
	b := policytest.Pick(t, r, q)
	b.Release()
	r.Complete(q, b.Decision, routing.Outcome{Sent: true, Usage: routing.Usage{PromptTokens: q.PromptTokens, CachedTokens: cached}})
	return b.Decision
}

// What engines report of prompts that cost the same everywhere tells whether it matters
// which of them is taken. What all of these hold does not count.
func TestReuseIsLearnedFromNearTies(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	unknown := new(agreed.Reuse).Share()

	for i := range 50 { // one holds it, and is cheaper than all others
		held := tokens(100+i, 8_000)
		tell(r, "r1", 0, 0, held, 16)
		d := answer(t, r, ask(held, tokens(200+i, 16)), 8_000)
		assert.Equal(t, routing.ReasonKVCost, d.Reason)
	}
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9)

	prompt := tokens(1, 8_000)
	for _, id := range []string{"r0", "r1", "r2", "r3"} {
		tell(r, id, 0, 0, prompt, 16)
	}
	answer(t, r, ask(prompt, tokens(900, 800)), -1)
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9, "nothing was reported")
	for i := range 200 { // all hold it, and nothing else
		answer(t, r, ask(prompt, tokens(1_000+i, 800)), 8_000)
	}
	assert.Less(t, p.reuse.Share(), 0.005)
	for i := range 100 { // what follows it is cached where it went
		answer(t, r, ask(prompt, tokens(2_000+i, 800)), 8_800)
	}
	if share := p.reuse.Share(); assert.Greater(t, share, 0.5) {
		answer(t, r, policytest.Session("s"), 0)
		assert.InDelta(t, share, p.reuse.Share(), 1e-9, "no prompt")
	}
}

// Where the order gains nothing those that cost the same take turns, and nobody else does.
func TestTurnsWhereAgreeingGainsNothing(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	for range 200 {
		p.reuse.Learn(0, 800)
	}
	asked := 0
	count := func(change func(q *routing.Request)) (turns int, each map[string]int) {
		each = make(map[string]int)
		for range 400 {
			asked++
			q := ask(tokens(asked, 64))
			change(q)
			if d := route(t, r, q); d.Reason == routing.ReasonRoundRobin {
				turns++
				each[d.Replica.ID]++
			}
		}
		return turns, each
	}
	same := func(*routing.Request) {}
	turns, each := count(same)
	assert.InDelta(t, 350, turns, 25, "but for one key in eight")
	for id, n := range each {
		assert.InDelta(t, float64(turns)/4, n, 1, id)
	}

	held := tokens(77, 8_000)
	tell(r, "r2", 0, 0, held, 16)
	for i := range 16 {
		d := route(t, r, ask(held, tokens(9_000+i, 64)))
		assert.Equal(t, "r2", d.Replica.ID, "its cache is worth more than a turn")
		assert.Equal(t, routing.ReasonKVCost, d.Reason)
	}

	busy(t, r, "r1", 5_000)
	turns, each = count(same)
	assert.Zero(t, each["r1"], "it costs more")
	assert.InDelta(t, 350*3/4, turns, 25, "whose turn it is not goes by the order")

	r.SetForeignLoad([]routing.ForeignLoad{{ID: "r0", Ongoing: 1}, {ID: "r3", Ongoing: 1}})
	turns, _ = count(same)
	assert.Zero(t, turns, "the others' load is told")
}

func TestSessionsTakeNoTurns(t *testing.T) {
	p := newPolicy(t, with(func(c *Config) { c.StickySessions = true }))
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	for range 200 {
		p.reuse.Learn(0, 800)
	}
	for i := range 40 {
		q := ask(tokens(i, 64))
		q.Session = "s"
		assert.Equal(t, routing.ReasonKVNearTie, route(t, r, q).Reason)
	}
	assert.Equal(t, routing.ReasonKVNearTie, route(t, r, policytest.Session("s")).Reason)
}

// A rank is given the turn of its replica.
func TestTurnsOfRanks(t *testing.T) {
	fleet := policytest.Fleet(3)
	for i := range fleet {
		fleet[i].Ranks = 4
	}
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, fleet)
	for range 200 {
		p.reuse.Learn(0, 800)
	}
	each, turns := make(map[string]int), 0
	for i := range 120 {
		if d := route(t, r, ask(tokens(i, 64))); d.Reason == routing.ReasonRoundRobin {
			turns++
			each[d.Replica.ID]++
			assert.GreaterOrEqual(t, d.Rank(), 0)
		}
	}
	for id, n := range each {
		assert.InDelta(t, float64(turns)/3, n, 1, id)
	}
}

// Of a fleet too large to look at everybody each has its turn all the same, and what all
// prompts begin with is no reason to pass it over.
func TestTurnsInALargeFleet(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(200))
	common := tokens(1, 4_000)
	for i := range 100 {
		route(t, r, ask(common, tokens(1_000+i, 64)))
	}
	for range 200 {
		p.reuse.Learn(0, 800)
	}
	each, turns := make(map[string]int), 0
	for i := range 1_200 {
		if d := route(t, r, ask(common, tokens(2_000+i, 64))); d.Reason == routing.ReasonRoundRobin {
			turns++
			each[d.Replica.ID]++
		}
	}
	assert.Greater(t, turns, 1_000)
	assert.Len(t, each, 200)
	for id, n := range each {
		assert.InDelta(t, float64(turns)/200, n, 1.5, id)
	}
}
