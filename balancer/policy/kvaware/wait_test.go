package kvaware

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// A client that sees no load of others leaves a holder while a call of its own waits there for longer than all known
// work takes, and comes back when that call is answered.
func TestAWaitShowsLoad(t *testing.T) {
	clock := routertest.NewClock()
	r := policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), policytest.Fleet(2),
		func(o *router.Options) { o.Now = clock.Now })
	first := ask(tokens(1, 7500)) // 8,000 tokens a second, what a request costs included
	b := policytest.Pick(t, r, first)
	b.PrefillDone()
	b.Release()
	r.Complete(first, b.Decision, policy.Outcome{Sent: true, FirstMessage: time.Second, Usage: policy.NoUsage})

	prompt, another := tokens(2, 8000), tokens(4, 8000)
	for _, id := range []string{"r0", "r1"} {
		report(r, id, 0, 0, tokens(3, 16), 16) // both report their caches
	}
	report(r, "r1", 0, 0, prompt[:7200], 16)
	report(r, "r1", 0, 0, another[:7200], 16)
	next := func(prompt []uint32) string { return route(t, r, ask(prompt)).Replica.ID }

	waits := policytest.Pick(t, r, ask(prompt))
	require.Equal(t, "r1", waits.Decision.Replica.ID)
	require.Equal(t, "r1", next(prompt), "it has not waited yet")
	clock.Advance(2 * time.Second)
	require.Equal(t, "r1", next(prompt), "16,000 tokens ahead of 800 are less than three times 8,000")
	clock.Advance(2 * time.Second)
	require.Equal(t, "r0", next(prompt), "32,000 tokens are more")
	waits.PrefillDone()
	require.Equal(t, "r1", next(another), "nothing waits there")
	waits.Release()
}
