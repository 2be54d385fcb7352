package enginesim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/workload"
)

// seqTokens returns n tokens, different for every from.
func seqTokens(from, n int) []uint32 {
	ts := make([]uint32, n)
	for i := range ts {
		ts[i] = uint32(from + i)
	}
	return ts
}

func small(t testing.TB, c Config) *Engine {
	t.Helper()
	if c.BlockSize == 0 {
		c.BlockSize = 4
	}
	e, err := New(c)
	require.NoError(t, err)
	return e
}

func submit(t testing.TB, e *Engine, id string, tokens []uint32, output int) *Sequence {
	t.Helper()
	s, err := e.Submit(e.Now(), FromTokens(id, tokens, output, e.Config().BlockSize, 0))
	require.NoError(t, err)
	return s
}

// drain runs an engine until it is idle and checks it after every pass.
func drain(t testing.TB, e *Engine) {
	t.Helper()
	for {
		at, busy := e.NextStep()
		if !busy {
			return
		}
		e.Step(at)
		audit(t, e)
	}
}

func TestChunkedPrefill(t *testing.T) {
	e := small(t, Config{KVTokens: 400, MaxBatchedTokens: 32})
	a := submit(t, e, "a", seqTokens(0, 70), 3)
	b := submit(t, e, "b", seqTokens(1000, 10), 1)
	chunks := func() (got []int) {
		for _, s := range e.running {
			got = append(got, s.chunk)
		}
		return got
	}
	step := func() {
		at, _ := e.NextStep()
		e.Step(at)
	}
	require.Equal(t, []int{32}, chunks(), "alone, up to the budget")
	step()
	require.Equal(t, []int{32}, chunks(), "running first: the budget is used up again")
	step()
	require.Equal(t, []int{6, 10}, chunks(), "the rest of the budget goes to the next sequence")
	step()
	require.Equal(t, 1, a.Result().OutputTokens)
	require.Equal(t, e.Now(), b.Result().End)
	require.Equal(t, []int{1}, chunks(), "decode")
	drain(t, e)
	require.Equal(t, 70, a.Result().ComputedTokens)
	require.Equal(t, 5, e.Stats().Passes)
}

func TestFirstComeFirstServed(t *testing.T) {
	e := small(t, Config{KVTokens: 40, MaxBatchedTokens: 100})
	submit(t, e, "running", seqTokens(0, 20), 8)
	large := submit(t, e, "large", seqTokens(100, 30), 1)
	little := submit(t, e, "little", seqTokens(200, 4), 1)
	at, _ := e.NextStep()
	e.Step(at)
	require.Equal(t, 2, e.Load().Waiting, "a request that does not fit delays the next one")
	drain(t, e)
	require.LessOrEqual(t, large.Result().FirstToken, little.Result().FirstToken)
}

func TestMaxSequences(t *testing.T) {
	e := small(t, Config{KVTokens: 400, MaxSequences: 2})
	for i := range 5 {
		submit(t, e, "r", seqTokens(100*i, 8), 2)
	}
	at, _ := e.NextStep()
	e.Step(at)
	require.Equal(t, Load{Running: 2, Waiting: 3, UsedTokens: 20, TotalTokens: 400, MaxSequences: 2}, e.Load())
	drain(t, e)
	require.Equal(t, 5, e.Stats().Finished)
}

func TestHits(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second []uint32
		want          int
	}{
		{"the same, whole blocks: at most n-1", seqTokens(0, 16), seqTokens(0, 16), 12},
		{"the same, not whole blocks", seqTokens(0, 17), seqTokens(0, 17), 16},
		{"longer", seqTokens(0, 16), seqTokens(0, 40), 16},
		{"shorter", seqTokens(0, 40), seqTokens(0, 10), 8},
		{"less than a block", seqTokens(0, 40), seqTokens(0, 3), 0},
		{"other head", seqTokens(0, 16), append(seqTokens(90, 4), seqTokens(4, 12)...), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := small(t, Config{KVTokens: 400})
			submit(t, e, "a", c.first, 1)
			drain(t, e)
			s := submit(t, e, "b", c.second, 1)
			drain(t, e)
			require.Equal(t, c.want, s.Result().CachedTokens)
			require.Equal(t, len(c.second)-c.want, s.Result().ComputedTokens)
		})
	}
}

func TestOutputIsCached(t *testing.T) {
	e := small(t, Config{KVTokens: 400})
	prompt := seqTokens(0, 10)
	a := submit(t, e, "turn-1", prompt, 20)
	drain(t, e)
	next := prompt
	for i := range 20 {
		require.Equal(t, workload.Token(workload.OutputSeed("turn-1"), i), a.Token(i))
		next = append(next, a.Token(i))
	}
	b := submit(t, e, "turn-2", append(next, 1, 2, 3), 1)
	drain(t, e)
	// The KV of the last token was never computed, so 29 tokens are cached: seven blocks.
	require.Equal(t, 28, b.Result().CachedTokens)
}

func TestTailIsEvictedFirst(t *testing.T) {
	e := small(t, Config{KVTokens: 40})
	submit(t, e, "a", seqTokens(0, 32), 1)
	drain(t, e)
	submit(t, e, "b", seqTokens(100, 20), 1)
	drain(t, e)
	// Ten blocks: eight of a, two fresh. b needs five, so the three last of a are gone.
	s := submit(t, e, "a again", seqTokens(0, 32), 1)
	drain(t, e)
	require.Equal(t, 20, s.Result().CachedTokens)
}

func TestSaltAndBypass(t *testing.T) {
	e := small(t, Config{KVTokens: 400})
	prompt := seqTokens(0, 20)
	run := func(r Request) int {
		s, err := e.Submit(e.Now(), r)
		require.NoError(t, err)
		drain(t, e)
		return s.Result().CachedTokens
	}
	require.Equal(t, 0, run(FromTokens("a", prompt, 1, 4, 0)))
	require.Equal(t, 0, run(FromTokens("b", prompt, 1, 4, kvindex.SeedFor("", "", "tenant"))))
	require.Equal(t, 16, run(FromTokens("c", prompt, 1, 4, kvindex.SeedFor("", "", "tenant"))))
	bypass := FromTokens("d", prompt, 1, 4, 0)
	bypass.BypassCache = true
	require.Equal(t, 0, run(bypass))
	require.Equal(t, 16, run(FromTokens("e", prompt, 1, 4, 0)))
}

func TestPreemption(t *testing.T) {
	e := small(t, Config{KVTokens: 40})
	a := submit(t, e, "a", seqTokens(0, 8), 24)
	b := submit(t, e, "b", seqTokens(100, 8), 24)
	drain(t, e)
	require.Positive(t, b.Result().Preemptions)
	require.Zero(t, a.Result().Preemptions, "the last running is preempted, not the first")
	require.Equal(t, 24, a.Result().OutputTokens)
	require.Equal(t, 24, b.Result().OutputTokens)
	require.Greater(t, b.Result().ComputedTokens, 8, "computed again")
	require.Equal(t, b.Result().Preemptions, e.Stats().Preemptions)
	require.Less(t, a.Result().End, b.Result().End)
}

func TestAbort(t *testing.T) {
	e := small(t, Config{KVTokens: 40})
	a := submit(t, e, "a", seqTokens(0, 20), 10)
	b := submit(t, e, "b", seqTokens(100, 30), 10)
	at, _ := e.NextStep()
	e.Step(at)
	e.Abort(e.Now(), b)
	require.Zero(t, e.Load().Waiting)
	e.Abort(e.Now(), a)
	require.Equal(t, Load{TotalTokens: 40, MaxSequences: 1024}, e.Load(), "everything is free at once")
	drain(t, e)
	e.Abort(e.Now(), a)
	require.Equal(t, 2, e.Stats().Aborted)
	require.True(t, a.Result().Aborted)
	require.Equal(t, 1, a.Result().OutputTokens)
}

func TestSubmitRefuses(t *testing.T) {
	e := small(t, Config{KVTokens: 40, MaxModelLen: 32})
	for _, c := range []struct {
		name string
		r    Request
		want error
	}{
		{"empty prompt", FromTokens("", nil, 1, 4, 0), ErrInvalid},
		{"no output", FromTokens("", seqTokens(0, 4), 0, 4, 0), ErrInvalid},
		{"too long", FromTokens("", seqTokens(0, 30), 3, 4, 0), ErrTooLong},
		{"endless", FromTokens("", seqTokens(0, 30), 1<<62, 4, 0), ErrTooLong},
		{"other block size", FromTokens("", seqTokens(0, 30), 1, 8, 0), ErrInvalid},
	} {
		_, err := e.Submit(0, c.r)
		require.ErrorIs(t, err, c.want, c.name)
	}
	require.Zero(t, e.Stats().Submitted)
}
