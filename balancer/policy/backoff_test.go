package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Issue 12.27: the defaults are Ray's, and each field can be set.
func TestBackoffWaits(t *testing.T) {
	waits := func(b policy.Backoff, n int) (ms []int64) {
		for i := range n {
			ms = append(ms, b.Wait(i+1).Milliseconds())
		}
		return ms
	}
	require.Equal(t, []int64{0, 25, 50, 100, 200, 400, 500, 500}, waits(policy.Backoff{}, 8))
	require.Equal(t, []int64{0, 1000, 1000}, waits(policy.Backoff{Initial: policy.Duration(time.Second)}, 3))
	require.Equal(t, []int64{0, 10, 30, 90, 100},
		waits(policy.Backoff{Initial: policy.Duration(10 * time.Millisecond), Multiplier: 3, Maximum: policy.Duration(100 * time.Millisecond)}, 5))
	require.Equal(t, 500*time.Millisecond, policy.Backoff{}.Wait(1<<30))
}
