package load

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

func TestUncached(t *testing.T) {
	q, d := &policy.Request{PromptTokens: 1000}, &policy.Decision{MatchedTokens: 300}
	for want, u := range map[float64]policy.Usage{
		700: policy.NoUsage,
		750: {PromptTokens: 2000, CachedTokens: 500}, // the replica's tokens are half of ours
		900: {PromptTokens: -1, CachedTokens: 100},
		0:   {PromptTokens: 10, CachedTokens: 20},
	} {
		require.Equal(t, want, uncached(q, d, &u))
	}
}
