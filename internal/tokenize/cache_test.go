package tokenize

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func keyFor(i int) key { return key{Lo: uint64(i)} }

// Against a list: what is found is what was put, the least recently used go first, and
// the bytes are never above the budget.
func TestCache(t *testing.T) {
	const size = entryOverhead + 4*10
	c := newCache(5*size + size/2)
	r := rand.New(rand.NewPCG(1, 1))
	var model []int // most recently used first
	drop := func(i int) {
		for at, k := range model {
			if k == i {
				model = append(model[:at:at], model[at+1:]...)
			}
		}
	}
	for range 5000 {
		i := r.IntN(9)
		if r.IntN(2) == 0 {
			c.put(keyFor(i), make([]uint32, 10))
			drop(i)
			model = append([]int{i}, model...)
			model = model[:min(5, len(model))]
		} else {
			_, held := c.get(keyFor(i))
			has := len(model)
			drop(i)
			require.Equal(t, has > len(model), held)
			if held {
				model = append([]int{i}, model...)
			}
		}
		require.LessOrEqual(t, c.bytes, c.budget)
		require.Len(t, c.entries, len(model))
		require.EqualValues(t, len(model)*size, c.bytes)
	}
}

func TestACacheWithoutABudget(t *testing.T) {
	none := newCache(-1)
	none.put(keyFor(1), nil)
	_, ok := none.get(keyFor(1))
	require.False(t, ok)
}

func TestFlights(t *testing.T) {
	var f flights
	ctx := context.Background()
	entered, leave := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tokens, err := f.do(ctx, keyFor(1), func() ([]uint32, error) {
			close(entered)
			<-leave
			return []uint32{7}, nil
		})
		require.NoError(t, err)
		require.Equal(t, []uint32{7}, tokens)
	})
	<-entered
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err := f.do(ended, keyFor(1), nil)
	require.ErrorIs(t, err, context.Canceled, "a call that waits keeps its own deadline")
	wg.Go(func() {
		tokens, err := f.do(ctx, keyFor(1), func() ([]uint32, error) { return []uint32{7}, nil })
		require.NoError(t, err)
		require.Equal(t, []uint32{7}, tokens)
	})
	close(leave)
	wg.Wait()
	require.Empty(t, f.under)
}

// A call whose time is over does not end those that wait for it.
func TestFlightsGoOn(t *testing.T) {
	var f flights
	short, cancel := context.WithCancel(context.Background())
	entered := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := f.do(short, keyFor(1), func() ([]uint32, error) {
			close(entered)
			<-short.Done()
			return nil, short.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
	})
	<-entered
	wg.Go(func() {
		tokens, err := f.do(context.Background(), keyFor(1), func() ([]uint32, error) { return []uint32{1}, nil })
		require.NoError(t, err)
		require.Equal(t, []uint32{1}, tokens)
	})
	cancel()
	wg.Wait()
	broken := errors.New("broken")
	_, err := f.do(context.Background(), keyFor(1), func() ([]uint32, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	require.Panics(t, func() {
		_, _ = f.do(context.Background(), keyFor(1), func() ([]uint32, error) { panic("a bug") })
	})
	require.Empty(t, f.under, "nothing waits for work that panicked")
}
