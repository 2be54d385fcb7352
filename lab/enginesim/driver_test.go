package enginesim

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func wait(t testing.TB, c *Call) Result {
	t.Helper()
	for have := 0; ; {
		n, done, err := c.Wait(t.Context(), have)
		require.NoError(t, err)
		if done {
			return c.Result()
		}
		require.Greater(t, n, have)
		have = n
	}
}

// The driver's figures are those of the engine in virtual time, and the clock agrees with them.
func TestDriverKeepsTime(t *testing.T) {
	for _, speed := range []float64{0.5, 1, 10} {
		t.Run(fmt.Sprint(speed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := small(t, Config{})
				want := submit(t, e, "a", seqTokens(0, 1000), 50)
				drain(t, e)

				d, err := NewDriver(Config{BlockSize: 4}, Pace{Speed: speed})
				require.NoError(t, err)
				defer d.Close()
				began := time.Now()
				c, err := d.Submit(FromTokens("a", seqTokens(0, 1000), 50, 4, 0))
				require.NoError(t, err)
				got := wait(t, c)
				require.Equal(t, want.Result(), got)
				require.InDelta(t, got.End.Seconds()/speed, time.Since(began).Seconds(), 1e-6)
				require.Equal(t, want.Token(7), c.Token(7))
			})
		})
	}
}

func TestDriverArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := NewDriver(Config{BlockSize: 4}, Pace{Speed: 4})
		require.NoError(t, err)
		defer d.Close()
		<-time.After(time.Second) // the clock of synctest: no real time passes
		c, err := d.Submit(FromTokens("a", seqTokens(0, 8), 1, 4, 0))
		require.NoError(t, err)
		require.Equal(t, 4*time.Second, wait(t, c).Arrival)
	})
}

func TestDriverVirtual(t *testing.T) {
	d, err := NewDriver(Config{BlockSize: 4}, Pace{Virtual: true})
	require.NoError(t, err)
	defer d.Close()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			c, err := d.Submit(FromTokens(fmt.Sprint(i), seqTokens(100*i, 50), 200, 4, 0))
			if err != nil {
				t.Error(err)
				return
			}
			if r := wait(t, c); r.OutputTokens != 200 || r.TTFT() <= 0 || r.TPOT() <= 0 {
				t.Errorf("%+v", r)
			}
		})
	}
	all.Wait()
	now, load, stats := d.Snapshot()
	require.Equal(t, 20, stats.Finished)
	require.Zero(t, load.UsedTokens)
	require.Greater(t, now, time.Second)
}

func TestDriverAbortAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, err := NewDriver(Config{BlockSize: 4}, Pace{})
		require.NoError(t, err)
		a, err := d.Submit(FromTokens("a", seqTokens(0, 8), 1000, 4, 0))
		require.NoError(t, err)
		b, err := d.Submit(FromTokens("b", seqTokens(0, 8), 1000, 4, 0))
		require.NoError(t, err)
		_, _, err = a.Wait(t.Context(), 0)
		require.NoError(t, err)

		a.Abort()
		n, done, err := a.Wait(t.Context(), 1000)
		require.NoError(t, err)
		require.True(t, done)
		require.True(t, a.Result().Aborted)
		require.Equal(t, n, a.Result().OutputTokens)
		a.Abort()

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, done, err = b.Wait(ctx, 1000)
		require.ErrorIs(t, err, context.Canceled)
		require.False(t, done)

		d.Close()
		_, done, err = b.Wait(t.Context(), 1000)
		require.ErrorIs(t, err, ErrClosed)
		require.True(t, done)
		_, err = d.Submit(FromTokens("c", seqTokens(0, 8), 1, 4, 0))
		require.ErrorIs(t, err, ErrClosed)
		d.Close()
	})
}

func TestDriverRefuses(t *testing.T) {
	_, err := NewDriver(Config{}, Pace{Speed: -1})
	require.ErrorContains(t, err, "Speed -1")
	_, err = NewDriver(Config{Preset: "x"}, Pace{})
	require.ErrorContains(t, err, "preset")
}
