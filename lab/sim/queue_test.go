package sim

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/lab/drive"
)

// bounded is a small fleet that takes few requests at once; the others wait.
func bounded(policyName string, clients, ongoing, queued int, patience time.Duration) Config {
	c := small(policyName, clients, ShareNone)
	c.Channel.MaxOngoingRequests, c.Channel.MaxQueuedRequests, c.Patience = ongoing, policy.Limit(queued), patience
	return c
}

// With an offered load far above its capacity, a bounded fleet serves about its capacity in time, and refuses the
// rest; an unbounded one serves hardly any request in time.
func TestOverload(t *testing.T) {
	skipUnderRace(t)
	rs := chatsFor(t, 40, 4*time.Minute)
	for _, name := range []string{"round_robin", "power_of_two_choices", "consistent_hash", "kv_aware"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := bounded(name, 1, 16, 20, 4*time.Second)
			c.WarmUp = 2 * time.Minute
			held := runOf(t, rs, c)
			c.Channel.MaxOngoingRequests, c.Channel.MaxQueuedRequests, c.Patience = 0, 0, 0
			free := runOf(t, rs, c)
			require.Zero(t, free.Errors)
			require.Less(t, free.Goodput, 0.05)
			require.Greater(t, held.Goodput, 0.25)
			t.Logf("%.1f %% in time, %.1f %% without a bound", 100*held.Goodput, 100*free.Goodput)
			ended := map[bool]int{}
			for i := range held.Samples {
				s := &held.Samples[i]
				if s.Err != nil {
					full, late := errors.Is(s.Err, router.ErrQueueFull), errors.Is(s.Err, context.DeadlineExceeded)
					require.True(t, full || late, "%v", s.Err)
					ended[full]++
					continue
				}
				require.LessOrEqual(t, s.Waited, 4*time.Second)
				require.True(t, s.TTFT <= drive.GoodTTFT || s.WarmUp, "what is served is served in time")
			}
			require.Positive(t, ended[true], "refused at once")
		})
	}
}

// Requests that any replica may serve are sent in order of arrival, and the same seed has the same results.
func TestOrderOfArrival(t *testing.T) {
	rs := chatsFor(t, 30, 3*time.Minute)
	c := bounded("power_of_two_choices", 1, 8, -1, 6*time.Second)
	one := runOf(t, rs, c)
	sent, waited := time.Duration(0), 0
	for i := range one.Samples {
		s := &one.Samples[i]
		if s.Err != nil {
			require.ErrorIs(t, s.Err, context.DeadlineExceeded)
			continue
		}
		require.GreaterOrEqual(t, s.At+s.Waited, sent)
		sent = s.At + s.Waited
		if s.Waited > 0 {
			waited++
			require.Equal(t, policy.ReasonQueued, s.Reason)
		}
	}
	require.Positive(t, waited)
	require.Equal(t, one.Samples, runOf(t, rs, c).Samples)
}

// Many clients leave nothing in a queue.
func TestQueuesOfManyClients(t *testing.T) {
	rs := chatsFor(t, 30, 2*time.Minute)
	c := bounded("kv_aware", 6, 4, 10, 0)
	res := runOf(t, rs, c)
	require.Positive(t, res.Decisions[string(policy.ReasonQueued)])
	for i := range res.Samples {
		if err := res.Samples[i].Err; err != nil {
			require.ErrorIs(t, err, router.ErrQueueFull)
		}
	}
}
