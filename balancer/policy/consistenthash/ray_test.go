package consistenthash

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// Ray's unit/test_consistent_hash_router.py, case by case, with its numbers.

func sessions(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("sess_%04d", i)
	}
	return keys
}

// owners returns the primary of every session.
func owners(t *testing.T, r *router.Router, keys []string) map[string]string {
	t.Helper()
	m := make(map[string]string, len(keys))
	for _, k := range keys {
		m[k] = policytest.Route(t, r, policytest.Session(k))
	}
	return m
}

func TestRayHashVectors(t *testing.T) {
	for key, want := range map[string]uint64{
		"":          0xf909160d05c35c01,
		"hello":     0x790db43c869050c8,
		"r0:0":      0x51fa3fbf907c88cc,
		"r0:1":      0xed21a2b802882fdf,
		"r0:99":     0x9b8d29d889402189,
		"sess_0000": 0x5cb6745899391ecc,
		"sess_0001": 0x4d3e405556374f03,
		"user_42":   0xf6213308038538d9,
		"user_123":  0xb7673f0c0d8bb10a,
	} {
		require.Equalf(t, want, Hash(key), "%q: %#x", key, Hash(key))
	}
}

func TestRayRingVectors(t *testing.T) {
	p := with(Config{}.WithDefaults())
	policytest.NewRouter(t, p.policy(), policytest.Fleet(3))
	require.Equal(t, []string{"r2", "r0", "r1"}, order(p, "user_42", 3))
	require.Equal(t, []string{"r0", "r2", "r1"}, order(p, "user_123", 3))
	require.Equal(t, []string{"r2", "r1", "r0"}, order(p, "burst-session", 3))
	ring := p.ring
	last := len(ring) - 1
	require.Equal(t, 299, last)
	require.Equal(t, uint64(0x016887e61dc26a79), ring[0].hash)
	require.Equal(t, "r1", ring[0].owner.id)
	require.Equal(t, uint64(0xffbca4a55dc97c72), ring[last].hash)
	require.Equal(t, "r2", ring[last].owner.id)
}

func TestRayHashIsDeterministicAndDistinct(t *testing.T) {
	seen := make(map[uint64]string)
	for _, k := range sessions(1000) {
		require.Equal(t, Hash(k), Hash(k))
		require.Empty(t, seen[Hash(k)])
		seen[Hash(k)] = k
	}
}

func TestRayParameters(t *testing.T) {
	require.Equal(t, 100, Config{}.WithDefaults().NumVirtualNodes)
	require.EqualValues(t, 2, Config{}.WithDefaults().NumFallbackReplicas)
	for _, n := range []int{-1, -5} {
		_, err := New(Config{NumVirtualNodes: n})
		require.ErrorContains(t, err, "num_virtual_nodes")
	}
	_, err := New(Config{NumVirtualNodes: 100, NumFallbackReplicas: -2})
	require.ErrorContains(t, err, "num_fallback_replicas")
	_, err = New(Config{NumVirtualNodes: 42, NumFallbackReplicas: 7})
	require.NoError(t, err)
}

// candidates fills one replica after the other and returns the replicas that the key had.
func candidates(t *testing.T, r *router.Router, key string) (ids []string) {
	t.Helper()
	for {
		var b router.Reservation
		err := r.Reserve(context.Background(), policytest.Session(key), &b, router.How{NoWait: true})
		if err != nil {
			require.ErrorIs(t, err, router.ErrFull)
			return ids
		}
		require.Equal(t, len(ids), b.Decision.Place)
		ids = append(ids, b.Decision.Replica.ID)
	}
}

func TestRayMoreFallbacksThanReplicas(t *testing.T) {
	c := Config{}.WithDefaults()
	c.NumFallbackReplicas = 5
	r := policytest.NewRouter(t, with(c).policy(), policytest.Bounded(policytest.Fleet(3), 1))
	require.ElementsMatch(t, []string{"r0", "r1", "r2"}, candidates(t, r, "user_42"))
}

func TestRayTwoReplicasTwoRanks(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Bounded(policytest.Fleet(2), 1))
	require.ElementsMatch(t, []string{"r0", "r1"}, candidates(t, r, "user_42"))
}

func TestRayNoReplicas(t *testing.T) {
	r := policytest.NewRouter(t, build(), nil)
	require.Nil(t, routertest.Choose(t, r, policytest.Session("s")).Replica)
	require.ErrorIs(t, r.Reserve(context.Background(), policytest.Session("s"), new(router.Reservation), router.How{NoWait: true}), router.ErrNotConnected)
}

func TestRaySameSessionSamePrimary(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(3))
	for range 10 {
		b := policytest.Pick(t, r, policytest.Session("user_42"))
		require.Equal(t, "r2", b.Decision.Replica.ID)
		require.Equal(t, policy.ReasonRing, b.Decision.Reason)
		require.Zero(t, b.Decision.Place)
	}
}

func TestRayNoFallbackIsStrict(t *testing.T) {
	c := Config{}.WithDefaults()
	c.NumFallbackReplicas = policy.Off
	r := policytest.NewRouter(t, with(c).policy(), policytest.Bounded(policytest.Fleet(3), 1))
	require.Equal(t, []string{"r2"}, candidates(t, r, "user_42"))
	d := routertest.Choose(t, r, policytest.Session("user_42"))
	require.Len(t, d.WaitFor, 1)
	require.Equal(t, "r2", d.WaitFor[0].ID)
}

func TestRaySessionlessSpread(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(3))
	seen := make(map[string]bool)
	for i := range 20 {
		b := policytest.Pick(t, r, &policy.Request{ID: fmt.Sprintf("3f2a9c1e-%04d", i)})
		require.Equal(t, policy.ReasonRing, b.Decision.Reason)
		seen[b.Decision.Replica.ID] = true
	}
	require.Greater(t, len(seen), 1)
}

func TestRayWrapsAround(t *testing.T) {
	p := with(Config{}.WithDefaults())
	r := policytest.NewRouter(t, p.policy(), policytest.Bounded(policytest.Fleet(3), 1))
	ring := p.ring
	first := ring[0].owner.id
	q := policytest.Session("any")
	last := ring[len(ring)-1].hash
	require.Equal(t, first, p.clockwise(last+1, q, r.View()).Replica.ID)
	require.Equal(t, first, p.clockwise(last, q, r.View()).Replica.ID, "a key on a point belongs to the next one")
	for _, h := range []uint64{0, math.MaxUint64} {
		require.Equal(t, first, p.clockwise(h, q, r.View()).Replica.ID)
	}
}

func TestRayBalance(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(5))
	owned := make(map[string]int)
	for _, id := range owners(t, r, sessions(2000)) {
		owned[id]++
	}
	require.Len(t, owned, 5)
	for id, n := range owned {
		require.Greaterf(t, n, 200, id)
		require.Lessf(t, n, 800, id)
	}
}

func TestRayScaleUp(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(4))
	before := owners(t, r, sessions(1000))
	policytest.SetFleet(r, policytest.Fleet(5))
	moved := 0
	for k, id := range owners(t, r, sessions(1000)) {
		if id != before[k] {
			require.Equal(t, "r4", id, "no session moves between two old replicas")
			moved++
		}
	}
	require.Greater(t, moved, 0)
	require.Less(t, moved, 400)
}

func TestRayScaleDown(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(4))
	before := owners(t, r, sessions(1000))
	policytest.SetFleet(r, policytest.Replicas("r0", "r1", "r3"))
	for k, id := range owners(t, r, sessions(1000)) {
		if before[k] == "r2" {
			require.NotEqual(t, "r2", id)
		} else {
			require.Equal(t, before[k], id)
		}
	}
}

func TestRayFullPrimaryFallsBack(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Bounded(policytest.Fleet(3), 10))
	policytest.Fill(t, r, "r2", 10)
	b := policytest.Pick(t, r, policytest.Session("user_42"))
	require.Equal(t, "r0", b.Decision.Replica.ID)
	require.Equal(t, policy.ReasonRingFallback, b.Decision.Reason)
	require.Equal(t, 1, b.Decision.Place)
}

func TestRayAllFullWaitsForThePrimary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := policytest.NewRouter(t, build(), policytest.Bounded(policytest.Fleet(3), 10))
		primary := policytest.Fill(t, r, "r2", 10)
		policytest.Fill(t, r, "r0", 10)
		policytest.Fill(t, r, "r1", 10)
		got := routertest.Acquire(t, r, policytest.Session("user_42"))
		synctest.Wait()
		require.Equal(t, 1, r.Queued())
		primary(1)
		d := (<-got).Decision
		require.Equal(t, "r2", d.Replica.ID)
		require.Equal(t, policy.ReasonQueued, d.Reason)
		require.Equal(t, policy.ReasonRing, d.Rule)
	})
}

func TestRayNeverSpillsBeyondTheFallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := with(Config{}.WithDefaults())
		r := policytest.NewRouter(t, p.policy(), policytest.Bounded(policytest.Fleet(6), 1))
		order := order(p, "user_42", 6)
		var release []func(int)
		for _, id := range order[:3] {
			release = append(release, policytest.Fill(t, r, id, 1))
		}
		got := routertest.Acquire(t, r, policytest.Session("user_42"))
		synctest.Wait()
		require.Equal(t, 1, r.Queued(), "three others are idle")
		release[1](1)
		require.Equal(t, order[1], (<-got).Decision.Replica.ID)
	})
}

func TestRayActorDied(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(3))
	policytest.SetFleet(r, policytest.Replicas("r0", "r1"))
	b := policytest.Pick(t, r, policytest.Session("user_42"))
	require.Equal(t, "r0", b.Decision.Replica.ID, "the first fallback is the primary now")
	require.Nil(t, r.View().ByID("r2"))
}

func TestRayActorUnavailable(t *testing.T) {
	r := policytest.NewRouter(t, build(), policytest.Fleet(3))
	r.Fleet.SetConnected("r2", false)
	b := policytest.Pick(t, r, policytest.Session("user_42"))
	require.Equal(t, "r0", b.Decision.Replica.ID)
	require.Equal(t, policy.ReasonRingFallback, b.Decision.Reason)
	require.NotNil(t, r.View().ByID("r2"), "a replica whose connection is down stays on the ring")
	r.Fleet.SetConnected("r2", true)
	require.Equal(t, "r2", policytest.Route(t, r, policytest.Session("user_42")))
}

func TestRayBurstOfOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := policytest.NewRouter(t, build(), policytest.Bounded(policytest.Fleet(3), 10))
		var waits []<-chan *router.Reservation
		for range 1 + 2 + 2 {
			waits = append(waits, routertest.Acquire(t, r, policytest.Session("burst-session")))
		}
		for _, got := range waits {
			require.Equal(t, "r2", (<-got).Decision.Replica.ID)
		}
	})
}

func TestRayTwoRoutersAgree(t *testing.T) {
	a := policytest.NewRouter(t, build(), policytest.Replicas("r0", "r1", "r2", "r3"))
	b := policytest.NewRouter(t, build(), policytest.Replicas("r3", "r1", "r0", "r2"))
	keys := sessions(20)
	require.Equal(t, owners(t, a, keys), owners(t, b, keys))
}
