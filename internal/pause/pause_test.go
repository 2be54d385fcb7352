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
