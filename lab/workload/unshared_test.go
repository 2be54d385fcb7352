package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUnshared(t *testing.T) {
	in := `{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [0, 1]}
{"timestamp": 1, "input_length": 1536, "output_length": 1, "hash_ids": [0, 1, 2]}
{"timestamp": 2, "input_length": 1536, "output_length": 1, "hash_ids": [5, 1, 2]}`
	rs, err := Load(strings.NewReader(in), "mooncake")
	require.NoError(t, err)
	require.Equal(t, 6./8, Unshared(rs, 0), "a block is shared with all before it")
	require.Equal(t, 4./6, Unshared(rs, 1))
	require.Zero(t, Unshared(nil, 0))
	text := strings.Repeat("x", 128)
	require.Equal(t, 33./65, Unshared([]Request{
		{Text: text, PromptTokens: 32}, {Text: text + "abcd", PromptTokens: 33},
	}, 0))
}

// chat alone shares three quarters of its tokens; with one-offs the requested part is new, at all times.
func TestOneOffs(t *testing.T) {
	spec := Spec{Name: "chat", Rate: 5, Duration: 20 * time.Minute, Seed: 4}
	plain, err := Generate(spec)
	require.NoError(t, err)
	require.InDelta(t, 0.25, Unshared(plain, 0), 0.02)
	spec.Unshared = 0.4
	rs, err := Generate(spec)
	require.NoError(t, err)
	require.InDelta(t, 0.41, Unshared(rs, 0), 0.01)
	checkAnswers(t, rs)
	for _, share := range []float64{0.3, 0.6, 0.9} {
		n := int(share * float64(len(rs)))
		require.GreaterOrEqual(t, Unshared(rs[:n+len(rs)/10], n), 0.38, "from request %d", n)
	}
	conversations := 0
	for _, r := range rs {
		if r.Session != "" {
			conversations++
		}
		require.Less(t, r.At, spec.Duration)
	}
	require.Equal(t, len(plain), conversations, "they are added, not put in their place")
	again, err := Generate(spec)
	require.NoError(t, err)
	require.Equal(t, rs, again)

	spec.Name = "nothing-shared"
	rs, err = Generate(spec)
	require.NoError(t, err)
	require.Equal(t, 1., Unshared(rs, 0))
	spec.Unshared = 1
	_, err = Generate(spec)
	require.ErrorContains(t, err, "unshared")
}
