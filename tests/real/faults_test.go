package real

import (
	"context"
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
	for i, tt := range []struct {
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
			e := engines[i%len(engines)]
			t.Cleanup(e.thaw)
			ask := viaEngine(dial(t, target(engines)))
			var began, busy atomic.Int64
			struck, healed := make(chan struct{}), make(chan error, 1)
			counted := func(ctx context.Context, q request) answer {
				if began.Add(1) == 40 {
					go func() {
						for busy.Load() == 0 && e.running() { // until calls are under way there
							loads, err := e.loads(ctx)
							if err != nil {
								break
							}
							for _, l := range loads {
								busy.Add(int64(l.GetNumRunningReqs()))
							}
						}
						tt.strike(e)
						close(struck)
						healed <- tt.heal(ctx, e)
					}()
				}
				return ask(ctx, q)
			}
			var played [][]answer
			for done := false; !done; {
				select {
				case err := <-healed:
					require.NoError(t, err)
					done = true // the run that follows has three engines
				default:
				}
				run := play(t.Context(), trace, 8, counted)
				require.Equal(t, want, outputs(t, run))
				played = append(played, run...)
			}
			<-struck
			require.Positive(t, busy.Load())
			moved := 0
			for _, c := range played {
				for _, a := range c {
					if a.Attempts > 1 {
						moved++
					}
				}
			}
			t.Logf("%d calls, %d of them moved", began.Load(), moved)
			if tt.moves {
				require.Positive(t, moved)
			}
			last, at := played[len(played)-len(trace):], make(map[string]int)
			for _, c := range last {
				for _, a := range c {
					at[a.Replica]++
				}
			}
			require.Positive(t, at[e.addr], "calls of the last run by replica: %v", at)
		})
	}
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
