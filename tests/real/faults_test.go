package real

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever happens to an engine under load, no call of a channel with the defaults fails, and each call has the output of
// an undisturbed run. When the engine is back it gets calls again.
func TestNoCallFailsWithAnEngine(t *testing.T) {
	trace := conversations(24, 3)
	want := outputs(t, play(t.Context(), trace, 8, viaEngine(plain(t, shared(t)))))
	for _, tt := range []struct {
		name   string
		strike func(e *engine)
		heal   func(ctx context.Context, e *engine) error
		moves  bool // calls that the engine has must go on elsewhere
	}{
		{"its server is killed", (*engine).killServer, restarted, true},
		{"its engine core is killed", (*engine).killCores, restarted, true},
		{"its server gets SIGTERM", (*engine).terminate, restarted, false},
		{"its engine core stands still for 20 s", (*engine).freeze, thawed, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			engines := shared(t)
			ask := viaEngine(dial(t, target(engines)))
			var struck *engine
			var began, moved atomic.Int64
			// Calls that the engine had may have ended when it is struck: then it is struck again.
			for strikes := 0; strikes == 0 || tt.moves && moved.Load() == 0 && strikes < 5; strikes++ {
				healed, first := make(chan error, 1), began.Load()
				var once sync.Once
				counted := func(ctx context.Context, q request) answer {
					if began.Add(1)-first > 40 {
						once.Do(func() {
							struck = busy(ctx, engines)
							tt.strike(struck)
							go func() { healed <- tt.heal(ctx, struck) }()
						})
					}
					a := ask(ctx, q)
					if a.Attempts > 1 {
						moved.Add(1)
					}
					return a
				}
				for done := false; !done; {
					require.Equal(t, want, outputs(t, play(t.Context(), trace, 8, counted)))
					select {
					case err := <-healed:
						require.NoError(t, err)
						done = true
					default:
					}
				}
			}
			t.Logf("%d calls, %d of them went on elsewhere", began.Load(), moved.Load())
			if tt.moves {
				require.Positive(t, moved.Load())
			}
			r, back := rand.New(rand.NewPCG(1, 1)), 0
			require.Eventually(t, func() bool {
				a := ask(t.Context(), request{prompt: tokens(r, 100), bound: 4})
				require.NoError(t, a.err)
				back++
				return a.Replica == struck.addr
			}, time.Minute, time.Millisecond)
			t.Logf("call %d with a new prompt went to the engine that is back", back)
		})
	}
}

// busy returns an engine that has calls.
func busy(ctx context.Context, engines []*engine) *engine {
	for ctx.Err() == nil {
		for _, e := range engines {
			if n, err := e.ongoing(ctx); err == nil && n > 0 {
				return e
			}
		}
	}
	return engines[0]
}

func restarted(ctx context.Context, e *engine) error { return e.restart(ctx) }

// thawed lets an engine go on that has stood still for a while.
func thawed(ctx context.Context, e *engine) error {
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
	}
	e.thaw()
	return nil
}
