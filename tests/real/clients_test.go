package real

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Eight clients of a look-aside server that share each conversation find as much cached as one client without a server
// that has all calls: less two points at most if the server decides, less five if the clients do, each of which sees an
// eighth of the calls.
func TestManyClientsFindWhatOneFinds(t *testing.T) {
	trace := conversations(36, 4)
	var want [][][]uint32
	share := func(clients int, deployment ...string) (cached float64) {
		t.Run(fmt.Sprint(clients, " clients ", deployment), func(t *testing.T) {
			asks := []generate{viaEngine(dial(t, target(shared(t))))}
			if clients > 0 {
				addr := serve(t, shared(t), deployment...)
				asks = nil
				for range clients {
					asks = append(asks, viaEngine(dial(t, "warmpath://"+addr+"/chat")))
				}
			}
			var calls atomic.Uint64
			played := play(t.Context(), trace, 8, func(ctx context.Context, q request) answer {
				return asks[calls.Add(1)%uint64(len(asks))](ctx, q)
			})
			got := outputs(t, played)
			if want == nil {
				want = got
			}
			require.Equal(t, want, got)
			cached = cachedOf(t, played)
			t.Logf("%.1f %% cached, by reason %v", 100*cached, byReason(played))
		})
		return cached
	}
	one := share(0) // without a server
	require.Greater(t, share(8, "mode: central", "central_deadline: 10s"), one-0.02)
	require.Greater(t, share(8, "mode: central", "central_deadline: 10s", "kv_events: grpc:vllm"), one-0.02)
	require.Greater(t, share(8), one-0.05)
	require.Greater(t, share(8, "kv_events: grpc:vllm"), one-0.05)
}

// byReason counts calls by the reason of their decision.
func byReason(played [][]answer) map[policy.Reason]int {
	n := make(map[policy.Reason]int)
	for _, c := range played {
		for _, a := range c {
			n[a.Reason]++
		}
	}
	return n
}
