package call

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const floor = retryFloor * budgetWindow

func retried(b *budget, now time.Time, ratio float64) (n int) {
	for n < 10_000 && b.take(now, ratio) {
		n++
	}
	return n
}

func TestBudgetIsAShareOfTheCalls(t *testing.T) {
	now := time.Unix(1000, 0)
	var b budget
	require.Equal(t, floor, retried(&b, now, 0.2), "no call: the floor alone")
	b.calls.Add(1000)
	require.Equal(t, 200, retried(&b, now, 0.2))
	require.Zero(t, retried(&b, now.Add(5*time.Second), 0.2), "the window has not passed")
	b.calls.Add(100)
	require.Equal(t, 20, retried(&b, now.Add(6*time.Second), 0.2))
	require.Equal(t, floor, retried(&b, now.Add(20*time.Second), 0.2), "calls of long ago do not count")
}

func TestBudgetHasAFloor(t *testing.T) {
	now := time.Unix(1000, 0)
	var b budget
	require.Equal(t, floor, retried(&b, now, 0.2), "10 a second, for 10 s")
	require.Zero(t, retried(&b, now.Add(9*time.Second), 0.2))
	require.Equal(t, floor, retried(&b, now.Add(10*time.Second), 0.2))
}

// Calls of a long quiet time count for the last window only.
func TestBudgetDropsOldCalls(t *testing.T) {
	now := time.Unix(1000, 0)
	var b budget
	require.True(t, b.take(now, 0.2))
	b.calls.Add(3600)
	require.Equal(t, floor+2, retried(&b, now.Add(time.Hour), 0.2), "3,600 in an hour are 10 in 10 s")
}

func TestBudgetWithoutBound(t *testing.T) {
	var b budget
	require.Equal(t, 10_000, retried(&b, time.Unix(1000, 0), -1))
}
