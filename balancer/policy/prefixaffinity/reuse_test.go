package prefixaffinity

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/warmpath/warmpath/balancer/policy/agreed"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

// What engines report of prompts that nobody here has sent there before decides how
// long the next will wait for its agreed replica.
func TestReuseIsLearnedFromAgreedPlacesOnly(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	end := func(q *routing.Request, usage routing.Usage) {
		b := policytest.Pick(t, r, q)
		b.Release()
		r.Complete(q, b.Decision, routing.Outcome{Sent: true, Usage: usage})
	}
	for i := range 50 {
		end(ask(tokens(i, 8_000)), routing.NoUsage)
	}
	unknown := new(agreed.Reuse).Share()
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9, "nothing was reported")
	for i := range 50 { // known here: says nothing of others
		end(ask(tokens(i, 8_000), tokens(100+i, 16)), routing.Usage{PromptTokens: 8_016, CachedTokens: 8_000})
	}
	assert.InDelta(t, unknown, p.reuse.Share(), 1e-9)
	for i := range 500 {
		end(ask(tokens(1000+i, 8_000)), routing.Usage{PromptTokens: 8_000})
	}
	assert.Less(t, p.reuse.Share(), 0.005)
}

// Where agreeing gains nothing requests take turns, but for some that find out whether
// it does again; where others' load is told, they do not.
func TestTurnsWhereAgreeingGainsNothing(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	for range 500 {
		p.reuse.Learn(0, 8_000)
	}
	count := func() (turns, inOrder int, each map[string]int) {
		each = make(map[string]int)
		for i := range 400 {
			d := route(t, r, ask(tokens(5_000+i, 64)))
			if d.Reason == routing.ReasonRoundRobin {
				turns++
				each[d.Replica.ID]++
			} else {
				inOrder++
			}
		}
		return turns, inOrder, each
	}
	turns, inOrder, each := count()
	assert.InDelta(t, 50, inOrder, 25)
	for id, n := range each {
		assert.InDelta(t, float64(turns)/4, n, 1, id)
	}
	r.SetForeignLoad([]routing.ForeignLoad{{ID: "r0", Ongoing: 1}, {ID: "r1", Ongoing: 1}})
	turns, _, _ = count()
	assert.Zero(t, turns)
	r.SetForeignLoad([]routing.ForeignLoad{{ID: "r0"}, {ID: "r1"}})
	for range 50 {
		p.reuse.Learn(8_000, 8_000)
	}
	turns, _, _ = count()
	assert.Zero(t, turns, "it does gain something")
}

// A turn is never given to a replica out of bounds, whoever is next, however many calls
// tell of the load.
func TestTurnsStayWithinTheBound(t *testing.T) {
	for _, calls := range []int{0, 5} {
		p := newPolicy(t, with(func(c *Config) { c.LoadSlackTokens = 1_000 }))
		r := policytest.NewRouter(t, p, policytest.Fleet(4))
		for range 500 {
			p.reuse.Learn(0, 8_000)
		}
		for _, id := range []string{"r0", "r1", "r2", "r3"} {
			policytest.Fill(t, r, id, calls)
		}
		policytest.Fill(t, r, "r1", 3)
		policytest.Fill(t, r, "r2", 4) // the next after r1
		for i := range 40 {
			id := route(t, r, ask(tokens(i, 64))).Replica.ID
			assert.NotEqual(t, "r1", id)
			assert.NotEqual(t, "r2", id)
		}
	}
}
