package client

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/channel"
)

type aKey struct{}

// A lifetime behaves as what context.WithCancel returns.
func TestLifetime(t *testing.T) {
	for name, start := range map[string]func(context.Context) (context.Context, func()){
		"lifetime": func(parent context.Context) (context.Context, func()) {
			l := &lifetime{}
			l.start(parent)
			return l, l.cancel
		},
		"under a call": func(parent context.Context) (context.Context, func()) {
			l := &lifetime{}
			l.start(parent)
			return channel.NewHandle(nil, nil).NewCall(l, "/m", nil, false), l.cancel
		},
		"package context": func(parent context.Context) (context.Context, func()) { return context.WithCancel(parent) },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := start(context.WithValue(context.Background(), aKey{}, "value"))
			require.Equal(t, "value", ctx.Value(aKey{}))
			require.NoError(t, ctx.Err())
			stopped, stop := context.WithCancel(ctx)
			stop()
			require.Error(t, stopped.Err())
			first, cancelFirst := context.WithCancel(ctx)
			defer cancelFirst()
			second, cancelSecond := context.WithCancel(context.WithValue(ctx, aKey{}, "other"))
			defer cancelSecond()
			third, cancelThird := context.WithCancel(ctx)
			cancelThird()
			<-third.Done()
			told := make(chan struct{})
			context.AfterFunc(ctx, func() { close(told) })
			require.NoError(t, first.Err())
			cancel()
			cancel()
			<-ctx.Done()
			<-first.Done()
			<-second.Done()
			<-told
			require.Equal(t, context.Canceled, ctx.Err())
			require.Equal(t, context.Canceled, first.Err())
			require.Equal(t, context.Canceled, context.Cause(second))
			late, cancelLate := context.WithCancel(ctx)
			defer cancelLate()
			<-late.Done()
		})
	}
}
