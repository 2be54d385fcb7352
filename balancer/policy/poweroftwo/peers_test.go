package poweroftwo_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/load"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Issue 12.20: the load of other clients, broadcast by a server or reported by a replica, counts next to the
// client's own; a report counts until it expires.
func TestEveryKnownLoadCounts(t *testing.T) {
	clock := routertest.NewClock()
	p, err := poweroftwo.New(poweroftwo.Config{})
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, policytest.Fleet(3), func(o *router.Options) { o.Now, o.Rand = clock.Now, routertest.Seeded(1) })
	picked := func() map[string]int {
		n := make(map[string]int)
		for range 300 {
			n[policytest.Route(t, r, &policy.Request{})]++
		}
		return n
	}
	require.Len(t, picked(), 3)

	r.Load.SetPeers([]load.Peer{{ID: "r0", Ongoing: 2}})
	require.NotContains(t, picked(), "r0", "it is the busier of any two")
	release := policytest.Fill(t, r, "r1", 3)
	n := picked()
	require.NotContains(t, n, "r1")
	require.Greater(t, n["r2"], n["r0"])
	release(3)

	r.Report("r2", load.Report{Ongoing: 7, QueuedTokens: -1})
	require.NotContains(t, picked(), "r2")
	clock.Advance(load.ReportTTL + time.Millisecond)
	n = picked()
	require.NotContains(t, n, "r0")
	require.Contains(t, n, "r2", "the report has expired")
}
