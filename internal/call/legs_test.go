package call

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/state"
)

// A decode leg waits for a replica no longer than the prefill replica keeps the KV cache.
func TestDecodeLegWaitsForTheLease(t *testing.T) {
	live := new(state.Replica)
	live.Set(state.Connected, true)
	prefilled := policy.NewReplica(policy.Attributes{ID: "p"}, 0, nil, live)
	c := &Call{Context: t.Context(), legs: &legs{until: time.Now().Add(lease / 2)}}
	c.legs.prefill.reserved.held.Decision.Replica = prefilled
	var from *policy.Replica
	require.NoError(t, c.inLegs(noBinding, func(ctx context.Context, how *router.Legs) error {
		from = how.From
		end, ok := ctx.Deadline()
		require.True(t, ok)
		require.False(t, end.After(c.legs.until))
		return nil
	}))
	require.Equal(t, prefilled, from)
}
