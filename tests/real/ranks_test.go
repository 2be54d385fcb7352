package real

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/warmpath/warmpath/client"
)

// rankKey is of the context's place for the rank that a call is sent with.
type rankKey struct{}

// ranksSent notes the rank in the metadata of each attempt.
type ranksSent struct{}

func (ranksSent) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (ranksSent) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (ranksSent) HandleConn(context.Context, stats.ConnStats)                       {}
func (ranksSent) HandleRPC(ctx context.Context, s stats.RPCStats) {
	at, ours := ctx.Value(rankKey{}).(*string)
	if out, ok := s.(*stats.OutHeader); ok && ours {
		*at = strings.Join(out.Header.Get("x-data-parallel-rank"), ",")
	}
}

// The data-parallel rank that a policy chooses is the one that computes the prompt, so its cache is the one that was
// counted on.
func TestChosenRankServes(t *testing.T) {
	engines := launch(t, 2, setup{ranks: 2})
	followers := make(map[string]*follower)
	for _, e := range engines {
		followers[e.addr] = follow(t, e)
	}
	fleet := fleetFile(t, engines, func(int, *engine) string { return "ranks: 2" })
	for name, options := range map[string][]grpc.DialOption{
		"predicted caches": nil,
		"KV events":        {client.WithConfig(`{"kv_events":"grpc:vllm"}`)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, e := range engines {
				require.NoError(t, e.flush(t.Context()))
			}
			send := viaEngine(dial(t, fleet, append(options, grpc.WithStatsHandler(ranksSent{}))...))
			var mu sync.Mutex // guards used
			used := make(map[string]int)
			ask := func(ctx context.Context, q request) answer {
				var rank string
				a := send(context.WithValue(ctx, rankKey{}, &rank), q)
				assert.NoError(t, a.err)
				var served int32
				assert.Eventually(t, func() (ok bool) {
					served, ok = followers[a.Replica].rankOf(a)
					return ok
				}, time.Minute, time.Millisecond, "the events of a call at %s, rank %s", a.Replica, rank)
				assert.Equal(t, strconv.Itoa(int(served)), rank, "%+v", a.Decision)
				mu.Lock()
				defer mu.Unlock()
				used[a.Replica+" "+rank]++
				return a
			}
			played := play(t.Context(), conversations(24, 11), 8, ask)
			t.Logf("%.1f %% cached, calls by rank: %v", 100*cachedOf(t, played), used)
			require.Greater(t, len(used), 2)
			require.Greater(t, cachedOf(t, played), 0.7)
		})
	}
}
