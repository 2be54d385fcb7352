package call

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// broken is the break of an attempt that began after all breaks before it.
func (q *quarantine) broken(prompt uint64, replica string, now time.Time) []breakage {
	return q.broke(breakage{prompt: prompt, known: true, replica: replica, at: now, began: q.breaks.Load()}, time.Minute)
}

func names(breaks []breakage) (replicas []string) {
	for _, s := range breaks {
		replicas = append(replicas, s.replica)
	}
	return replicas
}

func TestQuarantineTakesTwoReplicas(t *testing.T) {
	const ttl = time.Minute
	now := time.Unix(1000, 0)
	var q quarantine
	require.Empty(t, q.broken(1, "a", now))
	require.Empty(t, q.broken(1, "a", now), "the same replica twice is one")
	require.Empty(t, q.refuses(1, now, ttl))
	require.Len(t, q.broken(1, "b", now.Add(time.Second)), 2)
	require.Equal(t, []string{"a", "b"}, names(q.refuses(1, now.Add(30*time.Second), ttl)))
	require.Empty(t, q.refuses(2, now, ttl), "another prompt")

	require.Empty(t, q.refuses(1, now.Add(ttl), ttl), "the older break is dropped")
	require.Len(t, q.broken(1, "c", now.Add(ttl)), 2, "and one more is enough")
	require.Empty(t, q.refuses(1, now.Add(3*ttl), ttl))
	require.Zero(t, q.held.Load())
}

func TestQuarantineKeepsTheLastTwo(t *testing.T) {
	now := time.Unix(1000, 0)
	var q quarantine
	for i, replica := range []string{"a", "b", "c"} {
		q.broken(1, replica, now.Add(time.Duration(i)*time.Second))
	}
	require.Equal(t, []string{"b", "c"}, names(q.refuses(1, now.Add(3*time.Second), time.Minute)))
}

func TestQuarantineEndsWithAnAnswer(t *testing.T) {
	now := time.Unix(1000, 0)
	var q quarantine
	q.broken(1, "a", now)
	q.clear(1)
	require.Zero(t, q.held.Load())
	require.Empty(t, q.broken(1, "b", now))
}

func TestQuarantineIsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	var q quarantine
	for i := range uint64(3 * maxBreaks) {
		q.broken(i, fmt.Sprint("r", i%7), now)
	}
	require.EqualValues(t, maxBreaks, q.held.Load())
	require.Len(t, q.recent, maxBreaks)
	require.Len(t, q.broken(3*maxBreaks-1, "other", now), 2, "the latest are kept")
}

// Issue 12.32: breaks at about the same time, and those under several prompts, are no evidence, in whatever order they
// come.
func TestQuarantineOfOneCause(t *testing.T) {
	const ttl = time.Minute
	now := time.Unix(1000, 0)
	at := func(prompt uint64, replica string, began uint64, after time.Duration) breakage {
		return breakage{prompt: prompt, known: prompt != 0, replica: replica, began: began, at: now.Add(after)}
	}
	for name, c := range map[string]struct {
		breaks    []breakage
		convicted bool
	}{
		"two connections at once":            {breaks: []breakage{at(1, "a", 0, 0), at(1, "b", 0, 5*time.Millisecond)}},
		"one after the other":                {convicted: true, breaks: []breakage{at(1, "a", 0, 0), at(1, "b", 1, 5*time.Millisecond)}},
		"both under way, one breaks later":   {convicted: true, breaks: []breakage{at(1, "a", 0, 0), at(1, "b", 0, together)}},
		"twice on one replica":               {convicted: true, breaks: []breakage{at(1, "a", 0, 0), at(1, "a", 0, 0), at(1, "b", 2, 0)}},
		"another prompt, which breaks first": {breaks: []breakage{at(2, "a", 0, 0), at(1, "a", 0, 0), at(1, "b", 2, 0)}},
		"another prompt, which breaks last":  {breaks: []breakage{at(1, "a", 0, 0), at(2, "a", 0, 0), at(1, "b", 2, 0)}},
		"a call that was answered":           {breaks: []breakage{at(1, "a", 0, 0), at(0, "a", 0, 0), at(1, "b", 2, 0)}},
	} {
		t.Run(name, func(t *testing.T) {
			var q quarantine
			for _, b := range c.breaks {
				q.broke(b, ttl)
			}
			require.Equal(t, c.convicted, q.refuses(1, now.Add(together), ttl) != nil)
		})
	}
}
