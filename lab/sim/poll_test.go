package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Clients that poll replicas are as good as clients that share load. However many clients there are, a request costs
// about one poll: 1.04 of 32 clients, 1.37 of 500, which each see too few requests to learn what prompts share.
func TestPolling(t *testing.T) {
	t.Parallel()
	rs := chatsFor(t, 12, 2*time.Minute)
	at := func(clients int, share Share) (ttft float64, polls int) {
		c := small("kv_aware", clients, share)
		c.NoEvents = true
		r, err := finished(t.Context(), NewPrompts(rs), c)
		require.NoError(t, err)
		return r.result().TTFT.Mean, r.polls
	}
	none, polls := at(32, ShareNone)
	require.Zero(t, polls)
	shared, _ := at(32, ShareLoad)
	polled, few := at(32, SharePoll)
	require.Less(t, polled, none)
	require.Less(t, polled, 1.15*shared)
	counts, _ := at(32, SharePollCount)
	require.Less(t, counts, none)
	_, many := at(500, SharePoll)
	require.Less(t, few, len(rs)*11/10)
	require.Less(t, many, len(rs)*14/10)
}
