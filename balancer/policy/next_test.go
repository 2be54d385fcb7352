package policy_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Next returns what the policy picks when the replicas before are excluded, and does not change later picks. Two
// Routers get the same requests; for one of them Next is called as well.
func TestNextIsWhatThePolicyWouldPick(t *testing.T) {
	for _, name := range []string{roundrobin.Name, consistenthash.Name, prefixaffinity.Name, kvaware.Name} {
		t.Run(name, func(t *testing.T) {
			fleet := policytest.Fleet(9)
			rt := func() *router.Router {
				p, err := policy.New(name, nil)
				require.NoError(t, err)
				return policytest.NewRouter(t, p, fleet, func(o *router.Options) { o.Rand = routertest.Seeded(3) })
			}
			called, twin := rt(), rt()
			for i := range 200 {
				q, same := routertest.Request(4*i), routertest.Request(4*i) // with all keys: nothing is drawn at random
				b, c := policytest.Pick(t, called, q), policytest.Pick(t, twin, same)
				require.Equal(t, c.Decision.Replica.ID, b.Decision.Replica.ID, "request %d", i)
				next := called.Next(q, b.Decision.Replica, 3, nil)
				require.Len(t, next, 3)
				if name == roundrobin.Name || name == kvaware.Name {
					continue // a pick there would change the twin
				}
				same.Exclude = []string{b.Decision.Replica.ID}
				for _, d := range next {
					var second router.Reservation
					require.NoError(t, twin.Reserve(context.Background(), same, &second, router.How{Query: true}))
					require.Equal(t, second.Decision.Replica.ID, d.Replica.ID, "request %d", i)
					require.Equal(t, second.Decision.Rule, d.Rule)
					second.Release()
					same.Exclude = append(same.Exclude, d.Replica.ID)
				}
			}
		})
	}
}

// In a rotation Next returns the following replica, and the next pick gets that one.
func TestNextInRotation(t *testing.T) {
	p, err := policy.New(roundrobin.Name, nil)
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, policytest.Fleet(4))
	q := new(policy.Request)
	for next := ""; len(next) < 100; {
		b := policytest.Pick(t, r, q)
		if next != "" {
			require.Equal(t, next[len(next)-len(b.Decision.Replica.ID):], b.Decision.Replica.ID)
		}
		next += r.Next(q, b.Decision.Replica, 2, nil)[0].Replica.ID
	}
}

// By cost, the cheapest of the others is next: replicas that hold more of the prompt first.
func TestNextByCost(t *testing.T) {
	p, err := policy.New(kvaware.Name, nil)
	require.NoError(t, err)
	r := policytest.NewRouter(t, p, policytest.Replicas("a", "b", "c", "d"))
	tokens := make([]uint32, 16_000) // steps of more than a near tie
	hashes := kvindex.AppendTokens(nil, tokens, 16, kvindex.SeedFor("", "", ""))
	for i, id := range []string{"c", "a", "d"} {
		r.CacheChanged([]policy.CacheChange{{Replica: id, BlockTokens: 16, Stored: hashes[:1000-300*i]}})
	}
	q := new(policy.Request)
	q.SetPrompt(policy.Prompt{Tokens: tokens})
	b := policytest.Pick(t, r, q)
	ids := []string{b.Decision.Replica.ID}
	for _, d := range r.Next(q, b.Decision.Replica, 16, nil) {
		ids = append(ids, d.Replica.ID)
	}
	require.Equal(t, []string{"c", "a", "d", "b"}, ids)
}
