package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Sessions that a policy keeps together have their follow-ups at one replica. A policy that ignores the state
// regrets more than one that uses loads and caches.
func TestBalance(t *testing.T) {
	rs := chatsFor(t, 8, 2*time.Minute)
	hashed := runOf(t, rs, small("consistent_hash", 2, ShareNone))
	require.Equal(t, 1.0, hashed.FollowUpsHome)
	spread := runOf(t, rs, small("round_robin", 2, ShareNone))
	require.InDelta(t, 0.25, spread.FollowUpsHome, 0.1, "four replicas")
	warm := runOf(t, rs, small("kv_aware", 1, ShareNone))
	require.Greater(t, spread.RegretMS, 2*warm.RegretMS)
	require.GreaterOrEqual(t, warm.RegretMS, 0.0)
	for _, r := range []float64{spread.RequestsCV, spread.KVCV} {
		require.Greater(t, r, 0.0)
		require.Less(t, r, hashed.RequestsCV+hashed.KVCV)
	}
	alone := small("round_robin", 1, ShareNone)
	alone.Replicas = 1
	one := runOf(t, rs, alone)
	require.Zero(t, one.RegretMS, "there is no choice")
	require.Zero(t, one.RequestsCV)
	require.Equal(t, 1.0, one.FollowUpsHome)
}
