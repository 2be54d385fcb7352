package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		assert.NoError(t, For(ctx, 0))
		assert.NoError(t, For(ctx, -time.Second))
		assert.Zero(t, time.Since(begin))
		assert.NoError(t, For(ctx, 20*time.Second))
		assert.Equal(t, 20*time.Second, time.Since(begin))
		assert.ErrorIs(t, For(ctx, time.Hour), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(begin), "it ends with the context")
		assert.ErrorIs(t, For(ctx, 0), context.DeadlineExceeded)
		assert.ErrorIs(t, For(ctx, time.Hour), context.DeadlineExceeded)
		assert.Equal(t, time.Minute, time.Since(begin))
	})
}

// A loop that takes longer than the period goes on at once, and loses what it missed.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := false
		stop := Run(func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
		})
		stop()
		assert.True(t, ended, "stop waits")
		stop() // twice
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, at := time.Now(), []time.Duration{}
		ctx, cancel := context.WithTimeout(t.Context(), 6500*time.Millisecond)
		defer cancel()
		for now := range Every(ctx, time.Second) {
			at = append(at, now.Sub(begin))
			if len(at) == 2 {
				time.Sleep(2500 * time.Millisecond)
			}
		}
		assert.Equal(t, []time.Duration{0, 1e9, 2e9, 4e9, 5e9, 6e9}, at)
		assert.Equal(t, 6500*time.Millisecond, time.Since(begin))
		for range Every(ctx, time.Second) {
			assert.Fail(t, "the context has ended")
		}
		for range Every(t.Context(), time.Second) {
			break
		}
	})
}
