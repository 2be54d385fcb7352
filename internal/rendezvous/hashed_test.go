package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
)

// A prompt that comes hashed is the same prompt, tail or not.
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
		for _, tail := range []bool{false, true} {
			var whole, want, got Blocks
			tokens := prompt.Len()
			whole.Cut(prompt, tokens, grain, 1337, true)
			want.Cut(prompt, tokens, grain, 1337, tail)
			h := &policy.Hashed{Hashes: whole.Hashes, Size: whole.Size, Unit: whole.Unit, Length: whole.Length}
			require.NoError(t, h.Check())
			hashed := policy.Prompt{Hashed: h}
			require.False(t, hashed.Empty())
			require.Equal(t, tokens, hashed.Len())
			got.Cut(hashed, tokens, Grain{}, 0, tail)
			require.Equal(t, append([]uint64{}, want.Hashes...), append([]uint64{}, got.Hashes...))
			require.Equal(t, []int{want.Size, want.Length, want.Unit, want.Tokens}, []int{got.Size, got.Length, got.Unit, got.Tokens})
		}
	}
}
