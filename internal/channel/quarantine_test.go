package channel

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuarantineTakesTwoReplicas(t *testing.T) {
	const ttl = time.Minute
	now := time.Unix(1000, 0)
	var q quarantine
	require.Empty(t, q.strike(1, "a", now, ttl))
	require.Empty(t, q.strike(1, "a", now, ttl), "the same replica twice is one")
	require.Empty(t, q.refuses(1, now, ttl))
	require.Len(t, q.strike(1, "b", now.Add(time.Second), ttl), 2)
	require.Equal(t, []strike{{"a", now}, {"b", now.Add(time.Second)}}, q.refuses(1, now.Add(30*time.Second), ttl))
	require.Empty(t, q.refuses(2, now, ttl), "another prompt")

	require.Empty(t, q.refuses(1, now.Add(ttl), ttl), "the older is forgotten")
	require.Len(t, q.strike(1, "c", now.Add(ttl), ttl), 2, "and one more is enough")
	require.Empty(t, q.refuses(1, now.Add(3*ttl), ttl))
	require.Zero(t, q.held.Load())
}

func TestQuarantineKeepsTheLastTwo(t *testing.T) {
	const ttl = time.Minute
	now := time.Unix(1000, 0)
	var q quarantine
	for i, replica := range []string{"a", "b", "c"} {
		q.strike(1, replica, now.Add(time.Duration(i)*time.Second), ttl)
	}
	got := q.refuses(1, now.Add(3*time.Second), ttl)
	require.Len(t, got, 2)
	require.Equal(t, "b", got[0].replica)
	require.Equal(t, "c", got[1].replica)
}

func TestQuarantineLetsTheAnsweredGo(t *testing.T) {
	now := time.Unix(1000, 0)
	var q quarantine
	q.strike(1, "a", now, time.Minute)
	q.clear(1)
	require.Zero(t, q.held.Load())
	require.Empty(t, q.strike(1, "b", now, time.Minute))
}

func TestQuarantineIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	var q quarantine
	for i := range uint64(3 * maxSuspects) {
		q.strike(i, fmt.Sprint("r", i%7), now, time.Minute)
	}
	require.EqualValues(t, maxSuspects, q.held.Load())
	require.Len(t, q.suspects, maxSuspects)
	require.Equal(t, maxSuspects, q.order.Len())
	require.Len(t, q.strike(3*maxSuspects-1, "other", now, time.Minute), 2, "the latest are kept")
}
