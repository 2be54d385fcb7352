package sharedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/routertest"
	"github.com/warmpath/warmpath/internal/sharedstore"
)

var ctx = context.Background()

func TestMemory(t *testing.T) {
	clock := routertest.NewClock()
	m := sharedstore.NewMemory(clock.Now)
	_, err := m.Get(ctx, "k")
	require.ErrorIs(t, err, policy.ErrNotFound)
	value := []byte("one")
	first, err := m.Set(ctx, "k", value, time.Minute)
	require.NoError(t, err)
	value[0] = 'X' // the caller's own
	e, err := m.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, policy.Entry{Value: []byte("one"), Version: first, TTL: time.Minute}, e)

	second, err := m.CompareAndSet(ctx, "k", first, []byte("two"), time.Second)
	require.NoError(t, err)
	require.Greater(t, second, first)
	for _, stale := range []uint64{first, 0, second + 1} {
		_, err = m.CompareAndSet(ctx, "k", stale, []byte("three"), 0)
		require.ErrorIs(t, err, policy.ErrConflict)
	}
	clock.Advance(time.Second)
	_, err = m.Get(ctx, "k")
	require.ErrorIs(t, err, policy.ErrNotFound, "its time is over")
	_, err = m.CompareAndSet(ctx, "k", second, nil, 0)
	require.ErrorIs(t, err, policy.ErrConflict)
	third, err := m.CompareAndSet(ctx, "k", 0, nil, 0)
	require.NoError(t, err)
	require.Greater(t, third, second, "no version comes twice")
	e, err = m.Get(ctx, "k")
	require.NoError(t, err)
	require.Equal(t, 24*time.Hour, e.TTL)

	require.NoError(t, m.Delete(ctx, "k"))
	require.NoError(t, m.Delete(ctx, "k"))
	clock.Advance(time.Hour)
	again := sharedstore.NewMemory(clock.Now)
	fresh, err := again.Set(ctx, "k", nil, 0)
	require.NoError(t, err)
	require.Greater(t, fresh, third, "not even after a restart")
}

// The store keeps 16 MiB; what was used least recently goes first.
func TestMemoryIsBounded(t *testing.T) {
	m := sharedstore.NewMemory(time.Now)
	there := func(i int) bool {
		_, err := m.Get(ctx, fmt.Sprint("large ", i))
		return err == nil
	}
	const maxValue = 64 << 10
	const fit = 16 << 20 / maxValue
	for i := range 3 * fit {
		_, err := m.Set(ctx, fmt.Sprint("large ", i), make([]byte, maxValue), 0)
		require.NoError(t, err)
		require.True(t, there(0), "it is used")
	}
	kept := 0
	for i := range 3 * fit {
		if there(i) {
			kept++
		}
	}
	require.InDelta(t, fit, kept, 2)
	require.True(t, there(3*fit-1))
	require.False(t, there(1))

	for _, key := range []string{"", strings.Repeat("k", 257)} {
		_, err := m.Set(ctx, key, nil, 0)
		require.ErrorIs(t, err, policy.ErrInvalid)
		_, err = m.Get(ctx, key)
		require.ErrorIs(t, err, policy.ErrNotFound)
	}
	_, err := m.Set(ctx, "k", make([]byte, maxValue+1), 0)
	require.ErrorIs(t, err, policy.ErrInvalid)
}

// Of concurrent increments none is lost.
func TestCompareAndSetLosesNothing(t *testing.T) {
	m := sharedstore.NewMemory(time.Now)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				for {
					e, err := m.Get(ctx, "n")
					if err != nil && !errors.Is(err, policy.ErrNotFound) {
						t.Error(err)
					}
					n, _ := strconv.Atoi(string(e.Value))
					if _, err := m.CompareAndSet(ctx, "n", e.Version, []byte(strconv.Itoa(n+1)), 0); err == nil {
						break
					}
				}
			}
		})
	}
	all.Wait()
	e, err := m.Get(ctx, "n")
	require.NoError(t, err)
	require.Equal(t, "800", string(e.Value))
}
