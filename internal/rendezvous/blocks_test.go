package rendezvous

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Vectors of libxxhash 0.8.1: full blocks as in kvindex, then what follows them.
func TestBlocksAndTail(t *testing.T) {
	for _, tt := range []struct {
		prompt policy.Prompt
		size   int
		want   []uint64
	}{
		{policy.Prompt{Text: "the quick brown fox"}, 8, []uint64{5367101597652270396, 8859486533825349813, 6703121180581195638}},
		{policy.Prompt{Text: "hi"}, 8, []uint64{9089513857973819151}},
		{policy.Prompt{Tokens: []uint32{1, 2, 3, 4, 5, 6}}, 4, []uint64{14643705804678351452, 15850496887946224198}},
		{policy.Prompt{Tokens: []uint32{1, 2, 3, 4}}, 4, []uint64{14643705804678351452}},
	} {
		g := Grain{Bytes: tt.size, Tokens: tt.size}
		var s Blocks
		s.Cut(tt.prompt, tt.prompt.Len(), g, 1337)
		assert.Equal(t, tt.want, s.Hashes)
		assert.Equal(t, s.Length/tt.size, s.Full())
	}
}

func TestCovered(t *testing.T) {
	s := Blocks{Size: 64, Length: 150, Unit: policy.BytesPerToken, Tokens: 38}
	assert.Equal(t, []int{0, 16, 32, 38}, []int{s.CoveredTokens(0), s.CoveredTokens(1), s.CoveredTokens(2), s.CoveredTokens(3)})
	assert.Zero(t, (&Blocks{Tokens: 40}).CoveredTokens(0), "a session whose prompt was dropped before")
	s = Blocks{Size: 16, Length: 40, Unit: 1, Tokens: 40}
	assert.Equal(t, []int{0, 16, 32, 40}, []int{s.CoveredTokens(0), s.CoveredTokens(1), s.CoveredTokens(2), s.CoveredTokens(3)})
}
