package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/enginesim"
)

// Runs that share the hashes of their requests have exactly the results of runs with their own hashes.
func TestPrompts(t *testing.T) {
	rs := chats(t, 4)
	prompts := NewPrompts(rs)
	for _, block := range []int{16, 32, 16} {
		for _, name := range []string{"kv_aware", "dynamo_s16"} {
			c := small(name, 3, ShareNone)
			c.Engines = []enginesim.Config{{KVTokens: 40_000, BlockSize: block}}
			own := runOf(t, rs, c)
			shared, err := Run(t.Context(), prompts, c)
			require.NoError(t, err)
			require.Equal(t, own, shared, "%s in blocks of %d", name, block)
		}
	}
}
