package workload

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// Vectors fix the functions that generator, engine and clients share: changing one changes every recorded
// result.
func TestVectors(t *testing.T) {
	// From Dynamo's router; see the reference on block hashing.
	for i, want := range []uint64{14643705804678351452, 16777012769546811212, 483935686894639516} {
		var b []byte
		for k := range uint32(4) {
			b = binary.LittleEndian.AppendUint32(b, uint32(4*i)+k+1)
		}
		require.Equal(t, want, kvindex.HashBlock(b, BaseHashSeed))
	}
	require.EqualValues(t, 1337, BaseHashSeed)
	require.Equal(t, "7191609466758406115 8805835045881768233 727860584780012460 bmcj mnkb\n",
		fmt.Sprintln(BlockSeed(0), OutputSeed("r"), OutputSeed("r#1"), TokenText(Token(1, 0)), TokenText(Token(1, 1))))
}

func TestTokens(t *testing.T) {
	for _, from := range []int{0, 1, 2, 7} {
		for n := range 9 {
			for i, token := range appendTokens(nil, 42, from, n) {
				require.Equal(t, Token(42, from+i), token, "from %d, token %d", from, i)
			}
		}
	}
	for i := range 1000 {
		for _, c := range TokenText(Token(7, i)) {
			require.True(t, c >= 'a' && c <= 'p')
		}
	}
	require.Equal(t, []uint32{'a' | 'b'<<8 | 'c'<<16 | 'd'<<24, 'e'}, TextTokens("abcde"))
}

func TestOutputSeed(t *testing.T) {
	require.Equal(t, copySeed(OutputSeed("r"), 3), OutputSeed("r#3"))
	seen := map[uint64]string{}
	for _, id := range []string{"", "r", "r#", "r#0", "r#1", "r#2", "r#x", "r#-1", "r#1#1"} {
		s := OutputSeed(id)
		require.NotContains(t, seen, s, "%q and %q", id, seen[s])
		seen[s] = id
	}
}

// A prompt has the same hashes as segments and as text.
func TestHashesAgree(t *testing.T) {
	r := Request{PromptTokens: 103, Segments: []Segment{{Seed: 1, Len: 50}, {Seed: 2, From: 3, Len: 33}, {Seed: 3, Len: 20}}}
	for _, size := range []int{1, 4, 16, 64, 200} {
		for _, seed := range []kvindex.Seed{BaseHashSeed, kvindex.SeedFor("", "lora", "salt")} {
			hashes, tail := r.Hashes(nil, size, seed)
			require.Len(t, hashes, 103/size)
			require.Len(t, tail, 103%size)
			text := Request{Text: textOf(&r), PromptTokens: r.PromptTokens}
			same, sameTail := text.Hashes(nil, size, seed)
			require.Equal(t, hashes, same)
			require.Equal(t, tail, sameTail)
			require.Equal(t, hashes[:103*4/(4*size)], kvindex.AppendText(nil, text.Text, 4*size, seed), "as clients hash it")
		}
	}
	require.Equal(t, r.Tokens(), TextTokens(textOf(&r)))
	base, _ := r.Hashes(nil, 16, BaseHashSeed)
	salted, _ := r.Hashes(nil, 16, kvindex.SeedFor("", "", "salt"))
	adapted, _ := r.Hashes(nil, 16, kvindex.SeedFor("", "salt", ""))
	for i := range base {
		require.NotEqual(t, base[i], salted[i])
		require.NotEqual(t, salted[i], adapted[i])
	}
}

func BenchmarkHashes(b *testing.B) {
	r := Request{PromptTokens: 12 * 1024, Segments: make([]Segment, 24)}
	for i := range r.Segments {
		r.Segments[i] = Segment{Seed: BlockSeed(uint64(i)), Len: TraceBlock}
	}
	dst := make([]uint64, 0, 1024)
	b.ReportAllocs()
	b.SetBytes(4 * 12 * 1024)
	for b.Loop() {
		r.Hashes(dst, 16, BaseHashSeed)
	}
}

// textOf is a prompt as text.
func textOf(r *Request) string {
	if r.Text != "" {
		return r.Text
	}
	var b strings.Builder
	for _, s := range r.Segments {
		for i := range int(s.Len) {
			b.WriteString(TokenText(Token(s.Seed, int(s.From)+i)))
		}
	}
	return b.String()
}
