package roundrobin

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Ray's unit/test_round_robin_router.py, case by case, with its numbers.

// from returns the policy with its cursor at a position.
func from(next uint64) *rotation {
	p := newRotation()
	p.plain.next = next + 1
	return p
}

func route(t *testing.T, r *router.Router, q *policy.Request, n int) (ids []string) {
	t.Helper()
	for range n {
		b := policytest.Pick(t, r, q)
		require.Equal(t, policy.ReasonRoundRobin, b.Decision.Reason)
		ids = append(ids, b.Decision.Replica.ID)
		b.Release()
	}
	return ids
}

func TestRayCounterStartsAtRandom(t *testing.T) {
	seen := make(map[uint64]bool)
	for seed := range uint64(20) {
		p := newRotation()
		r := policytest.NewRouter(t, p.policy(), policytest.Fleet(3), func(o *router.Options) { o.Rand = routertest.Seeded(seed) })
		policytest.Route(t, r, &policy.Request{})
		require.Less(t, p.plain.next-2, uint64(1<<31))
		seen[p.plain.next] = true
	}
	require.Len(t, seen, 20)
}

func TestRayOrderFollowsTheFleet(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Replicas("r2", "r0", "r1"))
	require.Equal(t, []string{"r2", "r0", "r1", "r2"}, route(t, r, &policy.Request{}, 4))
}

func TestRayMetadataIsIgnored(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Replicas("r2", "r0", "r1"))
	q := &policy.Request{Session: "s", Model: "m", Adapter: "no replica declares any"}
	require.Equal(t, []string{"r2", "r0", "r1", "r2"}, route(t, r, q, 4))
}

func TestRayFullReplicaIsSkipped(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Bounded(policytest.Fleet(2), 1))
	policytest.Fill(t, r, "r0", 1)
	require.Equal(t, "r1", policytest.Route(t, r, &policy.Request{}))
}

func TestRayNoCandidatesLeaveTheCounter(t *testing.T) {
	p := from(7)
	r := policytest.NewRouter(t, p.policy(), nil)
	require.Nil(t, routertest.Choose(t, r, &policy.Request{}).Replica)
	require.EqualValues(t, 8, p.plain.next)
}

func TestRayTeardownLeavesNoRequestPending(t *testing.T) {
	r := policytest.NewRouter(t, from(0).policy(), policytest.Fleet(3))
	for range 10 {
		policytest.Route(t, r, &policy.Request{})
	}
	require.Zero(t, r.Queued())
	require.NoError(t, r.Close())
	require.ErrorIs(t, r.Reserve(context.Background(), &policy.Request{}, new(router.Reservation), router.How{NoWait: true}), router.ErrClosed)
}
