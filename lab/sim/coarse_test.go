package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/enginesim"
	"github.com/warmpath/warmpath/lab/workload"
)

// A server that follows KV events sends superblocks of 512 tokens. Prompts that are shorter, and what follows the last
// full superblock, are found as well as without them.
func TestSuperblocksTakeNothingAway(t *testing.T) {
	const sessions, atOnce, turns = 40, 8, 5
	var rs []workload.Request
	for i := range sessions * turns {
		turn, s := i/atOnce%turns, i/(atOnce*turns)*atOnce+i%atOnce
		id := fmt.Sprintf("%d", s)
		q := workload.Request{
			ID: fmt.Sprintf("%d.%d", s, turn), Session: id, Turn: turn, OutputTokens: 8,
			At: time.Duration(i) * time.Second,
		}
		add := func(seed uint64, tokens int32) {
			q.Segments = append(q.Segments, workload.Segment{Seed: seed, Len: tokens})
			q.PromptTokens += int(tokens)
		}
		add(uint64(1+s%4), 200)
		for part := range turn + 1 {
			add(uint64(1000+100*s+part), int32(200+20*(s%5)))
		}
		rs = append(rs, q)
	}
	for _, clients := range []int{1, 8} {
		cached := map[Share]float64{}
		for _, share := range []Share{ShareLoad, ShareBroadcast} {
			c := small("kv_aware", clients, share)
			c.Replicas, c.AtOnce, c.NoEvents, c.WarmUp = 3, atOnce, true, 0
			c.Engines = []enginesim.Config{{KVTokens: 96_000, BlockSize: 32}}
			cached[share] = runOf(t, rs, c).CachedTokenRatio
		}
		require.Greater(t, cached[ShareBroadcast], cached[ShareLoad]-0.01, "%d clients", clients)
	}
}
