package real

import (
	"context"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/client"
)

var transferLine = regexp.MustCompile(`Num successful transfers=(\d+)`)

// transfers are how many KV transfers an engine says that it has received. It says so once a second.
func (e *engine) transfers(t testing.TB) (n int) {
	t.Helper()
	log, err := os.ReadFile(e.log)
	require.NoError(t, err)
	for _, m := range transferLine.FindAllStringSubmatch(string(log), -1) {
		more, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		n += more
	}
	return n
}

// Split between a prefill and two decode replicas, calls have the outputs of the unsplit run, and the KV moves over NIXL.
// If the prefill replica or a decode replica is killed, no call fails.
func TestPrefillAndDecodeApart(t *testing.T) {
	engines := launch(t, 3, setup{nixl: "kv_both"})
	r := rand.New(rand.NewPCG(5, 5))
	trace := make([]conversation, 36) // long documents: a short prompt is not worth the transfer
	for i := range trace {
		trace[i].turns = [][]uint32{tokens(r, 3000)}
	}
	want := outputs(t, play(t.Context(), trace, 12, viaEngine(plain(t, engines[1:2]))))
	require.Zero(t, engines[1].transfers(t))
	for i, tt := range []struct {
		name string
		lost int // index of the engine that is killed; -1 = none
	}{
		{"all replicas live", -1},
		{"the prefill replica is killed", 0},
		{"a decode replica is killed", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, e := range engines {
				if !e.healthy(t.Context()) {
					require.NoError(t, e.restart(t.Context()))
				}
				require.NoError(t, e.flush(t.Context()))
			}
			before := engines[1].transfers(t) + engines[2].transfers(t)
			fleet := fleetFile(t, engines, func(i int, _ *engine) string {
				return map[bool]string{true: "role: prefill", false: "role: decode"}[i == 0] + ", pair: nixl"
			})
			ask := viaEngine(dial(t, fleet))
			for _, e := range engines { // until all are connected
				a := ask(client.WithPin(t.Context(), e.addr), request{prompt: tokens(rand.New(rand.NewPCG(6, 6)), 40), bound: 1})
				require.NoError(t, a.err)
			}
			var began atomic.Int64
			played := play(t.Context(), trace, 12, func(ctx context.Context, q request) answer {
				if began.Add(1) == 24 && tt.lost >= 0 {
					engines[tt.lost].killServer()
				}
				return ask(ctx, q)
			})
			require.Equal(t, want, outputs(t, played))
			split := 0
			for _, c := range played {
				for _, a := range c {
					if a.Prefill != "" {
						split++
						require.Equal(t, engines[0].addr, a.Prefill)
					}
				}
			}
			t.Logf("%d of %d calls were split", split, began.Load())
			require.Positive(t, split)
			if i == 0 {
				require.Eventually(t, func() bool {
					return engines[1].transfers(t)+engines[2].transfers(t)-before >= split
				}, time.Minute, 100*time.Millisecond, "%d transfers for %d calls", engines[1].transfers(t)+engines[2].transfers(t)-before, split)
			}
		})
	}
}
