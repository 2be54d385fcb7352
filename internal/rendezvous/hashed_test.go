package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A prompt that arrives as hashes is the same prompt.
func TestHashedPromptsAreTheSame(t *testing.T) {
	grain := Grain{Bytes: 8, Tokens: 4}
	for _, prompt := range []policy.Prompt{
		{Tokens: []uint32{1, 2, 3, 4, 5, 6}},
		{Tokens: []uint32{1, 2, 3, 4}},
		{Tokens: []uint32{1}},
		{Tokens: make([]uint32, 4*20+1)},
		{Text: "the quick brown fox"},
		{Text: "hi"},
	} {
		var want, got Blocks
		tokens := prompt.Len()
		want.Cut(prompt, tokens, grain, 1337)
		h := &policy.Hashed{Hashes: want.Hashes, Size: want.Size, Unit: want.Unit, Length: want.Length}
		require.NoError(t, h.Check())
		hashed := policy.Prompt{Hashed: h}
		require.False(t, hashed.Empty())
		require.Equal(t, tokens, hashed.Len())
		got.Cut(hashed, tokens, Grain{}, 0)
		require.Equal(t, want.Hashes, got.Hashes)
		require.Equal(t, []int{want.Size, want.Length, want.Unit, want.Tokens}, []int{got.Size, got.Length, got.Unit, got.Tokens})
	}
}
