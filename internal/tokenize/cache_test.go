package tokenize

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/balancer/policy"
)

func keyFor(i int) key { return key{Lo: uint64(i)} }

// A found value is the stored one, the most recently used values are held, and the bytes are never above the
// budget.
func TestCache(t *testing.T) {
	const size = entryOverhead + 4*10
	const half = 5
	c := newCache(2*half*size + size)
	r := rand.New(rand.NewPCG(1, 1))
	var recent []int // most recently used first
	for range 5000 {
		i := r.IntN(40)
		tokens, held := c.get(keyFor(i))
		for _, k := range recent {
			require.True(t, held || k != i)
		}
		if held {
			require.EqualValues(t, i, tokens[0])
		} else {
			c.put(keyFor(i), append(make([]uint32, 0, 10), uint32(i)))
		}
		recent = append([]int{i}, recent...)[:min(half, len(recent)+1)]
		require.LessOrEqual(t, int64(len(c.younger)+len(c.older))*size, c.budget)
		require.EqualValues(t, len(c.younger)*size, c.bytes)
	}
}

func TestCacheWithoutABudget(t *testing.T) {
	none := newCache(-1)
	none.put(keyFor(1), nil)
	_, ok := none.get(keyFor(1))
	require.False(t, ok)
}

// One goroutine at a time works for a key. A call that waits keeps its own deadline, and the end of another call
// does not end it.
func TestEnter(t *testing.T) {
	c := newCache(0)
	ctx := context.Background()
	leave, err := c.enter(ctx, keyFor(1))
	require.NoError(t, err)
	other, err := c.enter(ctx, keyFor(2))
	require.NoError(t, err)
	other(nil)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.enter(ended, keyFor(1))
	require.ErrorIs(t, err, context.Canceled)
	var wg sync.WaitGroup
	inside := 0 // guarded by the key
	for range 4 {
		wg.Go(func() {
			leave, err := c.enter(ctx, keyFor(1))
			require.NoError(t, err)
			defer leave(nil)
			inside++
			require.Equal(t, 1, inside)
			inside--
		})
	}
	leave(nil)
	wg.Wait()
	require.Empty(t, c.work)
}

// tokenizerFunc is a tokenizer that is a function.
type tokenizerFunc func(ctx context.Context) ([]uint32, error)

func (f tokenizerFunc) Tokens(ctx context.Context, _ dialect.TokenizerInput) ([]uint32, error) {
	return f(ctx)
}

// Calls with one prompt end with the one that is refused while they wait: the engine gets one request. The end of
// another call's own context, or a panic in it, does not end the waiting calls.
func TestFlightsGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused, calls := errors.New("refused"), 0
		p := &Prompts{timeout: time.Second, cache: newCache(0), past: newPast(1<<20, time.Now), logger: slog.New(slog.DiscardHandler)}
		ask := func(ctx context.Context) error {
			_, err := p.Tokenize(ctx, &policy.Request{Prompt: policy.Prompt{Text: "one prompt"}})
			return err
		}
		p.tokenizer = tokenizerFunc(func(ctx context.Context) ([]uint32, error) {
			calls++
			select {
			case <-time.After(20 * time.Millisecond):
				return nil, refused
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		began := time.Now()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { require.ErrorIs(t, ask(t.Context()), refused) })
		}
		wg.Wait()
		require.Equal(t, 1, calls)
		require.Equal(t, 20*time.Millisecond, time.Since(began))
		require.ErrorIs(t, ask(t.Context()), refused)
		require.Equal(t, 2, calls, "later calls work on their own")

		short, cancel := context.WithCancel(t.Context())
		wg.Go(func() { require.ErrorIs(t, ask(short), context.Canceled) })
		synctest.Wait()
		wg.Go(func() { require.ErrorIs(t, ask(t.Context()), refused) })
		synctest.Wait()
		cancel()
		wg.Wait()
		require.Equal(t, 4, calls)

		p.tokenizer = tokenizerFunc(func(context.Context) ([]uint32, error) { panic("a bug") })
		require.Panics(t, func() { _ = ask(t.Context()) })
		require.Empty(t, p.cache.work, "nothing waits for work that panicked")
	})
}

// Calls with one prompt that wait for a tokenizer that hangs end one timeout after they came, however many wait.
func TestWaitIsOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := tokenizerFunc(func(ctx context.Context) ([]uint32, error) { <-ctx.Done(); return nil, ctx.Err() })
		p := &Prompts{tokenizer: hung, timeout: time.Second, cache: newCache(0), past: newPast(1<<20, time.Now), logger: slog.New(slog.DiscardHandler)}
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 10 * time.Millisecond) // in the bubble's time
				came := time.Now()
				_, err := p.Tokenize(t.Context(), &policy.Request{Prompt: policy.Prompt{Text: "one prompt"}})
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.LessOrEqual(t, time.Since(came), time.Second)
			})
		}
		wg.Wait()
		require.Equal(t, 1090*time.Millisecond, time.Since(began))
	})
}
