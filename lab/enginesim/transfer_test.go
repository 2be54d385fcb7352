package enginesim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// leg submits a request as a leg.
func leg(t testing.TB, e *Engine, id string, tokens []uint32, output int, change func(*Request)) *Sequence {
	t.Helper()
	q := FromTokens(id, tokens, output, e.Config().BlockSize, 0)
	change(&q)
	s, err := e.Submit(e.Now(), q)
	require.NoError(t, err)
	return s
}

func TestHold(t *testing.T) {
	e := small(t, Config{KVTokens: 40})
	held := leg(t, e, "held", seqTokens(0, 20), 1, func(q *Request) { q.Hold = true })
	drain(t, e)
	require.Equal(t, 1, held.Result().OutputTokens)
	require.Equal(t, Load{UsedTokens: 20, TotalTokens: 40, MaxSequences: 1024, Held: 1}, e.Load())
	// The blocks are not evicted, and requests that need them wait.
	waits := submit(t, e, "waits", seqTokens(1000, 23), 1)
	drain(t, e)
	require.Equal(t, 1, e.Load().Waiting)
	e.Release(e.Now()+time.Second, held)
	drain(t, e)
	require.GreaterOrEqual(t, waits.Result().FirstToken, time.Second)
	e.Release(e.Now(), held)
	require.Equal(t, Load{TotalTokens: 40, MaxSequences: 1024}, e.Load())
}

func TestReceive(t *testing.T) {
	e := small(t, Config{KVTokens: 400})
	submit(t, e, "first half", seqTokens(0, 20), 1)
	drain(t, e)
	start := e.Now()
	got := leg(t, e, "decode", seqTokens(0, 41), 3, func(q *Request) { q.Received, q.Transfer = q.PromptTokens, 41*time.Second })
	at, busy := e.NextStep()
	require.True(t, busy)
	require.Equal(t, start+20*time.Second, at, "20 of 41 tokens come: 20 are here, and the last is computed")
	// Requests that arrive meanwhile do not wait for it.
	other := submit(t, e, "other", seqTokens(2000, 9), 1)
	at, _ = e.NextStep()
	require.Less(t, at, start+time.Second)
	e.Step(at)
	require.Equal(t, 1, other.Result().OutputTokens)
	at, _ = e.NextStep()
	require.Equal(t, start+20*time.Second, at)
	require.Equal(t, []Event{{got, -1, false}}, e.Step(at))
	drain(t, e)
	r := got.Result()
	require.Equal(t, []int{20, 20, 1, 3}, []int{r.CachedTokens, r.ReceivedTokens, r.ComputedTokens, r.OutputTokens})
	require.Equal(t, 20, e.Stats().ReceivedTokens)
	again := submit(t, e, "again", seqTokens(0, 41), 1)
	drain(t, e)
	require.Equal(t, 40, again.Result().CachedTokens, "what has come is cached")
}

func TestAbortWhileReceiving(t *testing.T) {
	e := small(t, Config{KVTokens: 400})
	s := leg(t, e, "decode", seqTokens(0, 41), 3, func(q *Request) { q.Received, q.Transfer = q.PromptTokens, time.Minute })
	require.Equal(t, 1, e.Load().Running)
	e.Abort(e.Now(), s)
	require.Zero(t, e.Load().UsedTokens)
	drain(t, e)
	require.Zero(t, s.Result().OutputTokens)
}
