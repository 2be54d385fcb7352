package prefixaffinity

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

func TestReuse(t *testing.T) {
	var u reuse
	assert.InDelta(t, unknownReuse, u.share(), 1e-9)
	u.learn(10, 0)
	u.learn(10, -5)
	assert.InDelta(t, unknownReuse, u.share(), 1e-9, "nothing of its own says nothing")
	u.learn(0, 100)
	assert.InDelta(t, unknownReuse*(1-reuseStep), u.share(), 1e-9)
	for range 1000 {
		u.learn(6_000, 8_000)
	}
	assert.InDelta(t, 0.75, u.share(), 1e-3)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 1000 {
				u.learn(90_000, 10_000)
			}
		})
	}
	all.Wait()
	assert.InDelta(t, 1, u.share(), 1e-3, "never more than all")
}

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
	assert.InDelta(t, unknownReuse, p.reuse.share(), 1e-9, "nothing was reported")
	for i := range 50 { // known here: says nothing of others
		end(ask(tokens(i, 8_000), tokens(100+i, 16)), routing.Usage{PromptTokens: 8_016, CachedTokens: 8_000})
	}
	assert.InDelta(t, unknownReuse, p.reuse.share(), 1e-9)
	for i := range 500 {
		end(ask(tokens(1000+i, 8_000)), routing.Usage{PromptTokens: 8_000})
	}
	assert.Less(t, p.reuse.share(), littleReuse)
}

// How fast it is learned does not depend on how long prompts are as a rule, and short ones
// among long ones count for less.
func TestReuseIsLearnedAtAnyLength(t *testing.T) {
	var short, long, mixed reuse
	for range 100 {
		short.learn(0, 400)
		long.learn(0, 40_000)
	}
	assert.InDelta(t, long.share(), short.share(), 1e-9)
	assert.Less(t, short.share(), littleReuse)
	for range 500 {
		mixed.learn(9_000, 9_000)
		mixed.learn(0, 1_000)
	}
	assert.InDelta(t, 0.9, mixed.share(), 0.05)
}

// Where agreeing gains nothing requests take turns, but for some that find out whether
// it does again; where others' load is told, they do not.
func TestTurnsWhereAgreeingGainsNothing(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	for range 500 {
		p.reuse.learn(0, 8_000)
	}
	count := func() (turns, agreed int, each map[string]int) {
		each = make(map[string]int)
		for i := range 400 {
			d := route(t, r, ask(tokens(5_000+i, 64)))
			if d.Reason == routing.ReasonRoundRobin {
				turns++
				each[d.Replica.ID]++
			} else {
				agreed++
			}
		}
		return turns, agreed, each
	}
	turns, agreed, each := count()
	assert.InDelta(t, 50, agreed, 25)
	for id, n := range each {
		assert.InDelta(t, float64(turns)/4, n, 1, id)
	}
	r.SetForeignLoad([]routing.ForeignLoad{{ID: "r0", Ongoing: 1}, {ID: "r1", Ongoing: 1}})
	turns, _, _ = count()
	assert.Zero(t, turns)
	r.SetForeignLoad([]routing.ForeignLoad{{ID: "r0"}, {ID: "r1"}})
	for range 50 {
		p.reuse.learn(8_000, 8_000)
	}
	turns, _, _ = count()
	assert.Zero(t, turns, "it does gain something")
}

// A turn is no reason to add to calls that are slow to come back; a client with many under
// way goes by small differences too.
func TestTurnsGoToTheLessLoadedOfTwo(t *testing.T) {
	p := newPolicy(t, DefaultConfig())
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	for range 500 {
		p.reuse.learn(0, 8_000)
	}
	asked := 5_000
	took := func() map[string]int {
		each := make(map[string]int)
		for range 40 {
			asked++
			if d := route(t, r, ask(tokens(asked, 64))); d.Reason == routing.ReasonRoundRobin {
				each[d.Replica.ID]++
			}
		}
		return each
	}
	policytest.Fill(t, r, "r2", 1)
	assert.InDelta(t, 8, took()["r2"], 4, "few calls: in turn")
	policytest.Fill(t, r, "r2", fewer)
	assert.Zero(t, took()["r2"], "they are slow to come back")
	for _, id := range []string{"r0", "r1", "r3"} {
		policytest.Fill(t, r, id, telling)
	}
	policytest.Fill(t, r, "r2", telling-fewer) // one more than they have
	each := took()
	assert.Zero(t, each["r2"])
	assert.Greater(t, each["r3"], each["r0"], "who follows it takes its turns too")
	assert.Positive(t, each["r0"])
	assert.Positive(t, each["r1"])
}

// A turn is never given to a replica out of bounds, whoever is next, however many calls
// tell of the load.
func TestTurnsStayWithinTheBound(t *testing.T) {
	for _, calls := range []int{0, telling} {
		p := newPolicy(t, with(func(c *Config) { c.LoadSlackTokens = 1_000 }))
		r := policytest.NewRouter(t, p, policytest.Fleet(4))
		for range 500 {
			p.reuse.learn(0, 8_000)
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
