package call

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/router/part"
	"github.com/warmpath/warmpath/internal/router/state"
)

func connectedReplica() *policy.Replica {
	live := &state.Replica{Book: new(state.Book)}
	live.Set(state.Connected, true)
	return part.NewReplica(policy.Attributes{ID: "p"}, 0, nil, live)
}

// prefilledCall is one whose decode leg is to begin at another replica.
func prefilledCall(ctx context.Context, by *policy.Replica) *Call {
	return &Call{Scope: &Scope{Context: ctx}, legs: &legs{until: time.Now().Add(lease / 2), prefills: linkTo(by)}}
}

// A decode leg waits for a replica no longer than the prefill replica keeps the KV cache.
func TestDecodeLegWaitsForTheLease(t *testing.T) {
	prefilled := connectedReplica()
	c := prefilledCall(t.Context(), prefilled)
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

// An Abort that an engine has not answered would end the next attempt, which has the same id. The attempt waits
// for the answer, but not from a dead engine, and not beyond the call.
func TestAttemptWaitsForAborts(t *testing.T) {
	for name, tt := range map[string]struct {
		then  func(ended, cancel func())
		waits time.Duration
	}{
		"answered":  {func(ended, _ func()) { ended() }, 0},
		"dead":      {func(_, _ func()) { time.Sleep(time.Second) }, time.Second},
		"cancelled": {func(_, cancel func()) { cancel() }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := prefilledCall(ctx, connectedReplica())
				began := time.Now()
				c.legs.aborts()() // that of the other leg is answered
				ended := c.legs.aborts()
				var reserved atomic.Int64
				reserved.Store(-1)
				go func() {
					_ = c.inLegs(noBinding, func(context.Context, *router.Legs) error {
						reserved.Store(int64(time.Since(began)))
						return nil
					})
				}()
				synctest.Wait()
				require.Negative(t, reserved.Load())
				tt.then(ended, cancel)
				synctest.Wait()
				require.EqualValues(t, tt.waits, reserved.Load())
			})
		})
	}
}
