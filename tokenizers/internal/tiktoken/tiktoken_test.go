package tiktoken

import (
	"context"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/tokenize"
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

func encode(t testing.TB, e *bpe.Encoder, text string) []uint32 {
	t.Helper()
	tokens, err := e.Encode(context.Background(), nil, text, 0, len(text))
	require.NoError(t, err)
	return tokens
}

// From OpenAI's cookbook, "How to count tokens with tiktoken".
func TestKnownVectors(t *testing.T) {
	for _, v := range []struct {
		encoding, text string
		want           []uint32
	}{
		{"cl100k_base", "tiktoken is great!", []uint32{83, 1609, 5963, 374, 2294, 0}},
		{"cl100k_base", "hello world", []uint32{15339, 1917}},
		{"cl100k_base", "antidisestablishmentarianism", []uint32{519, 85342, 34500, 479, 8997, 2191}},
		{"cl100k_base", "2 + 2 = 4", []uint32{17, 489, 220, 17, 284, 220, 19}},
		{"cl100k_base", "お誕生日おめでとう", []uint32{33334, 45918, 243, 21990, 9080, 33334, 62004, 16556, 78699}},
		{"o200k_base", "tiktoken is great!", []uint32{83, 8251, 2488, 382, 2212, 0}},
		{"o200k_base", "2 + 2 = 4", []uint32{17, 659, 220, 17, 314, 220, 19}},
		{"r50k_base", "hello world", []uint32{31373, 995}},
		{"o200k_base", "\n\n  \n", []uint32{154642}}, // one piece by the pattern, and a token
	} {
		e, err := Open(v.encoding)
		require.NoError(t, err)
		require.Equal(t, v.want, encode(t, e, v.text), "%s: %q", v.encoding, v.text)
	}
}

func TestUnknownEncoding(t *testing.T) {
	_, err := Open("o300k_base")
	require.ErrorContains(t, err, `"o300k_base" is unknown; choose one of o200k_base, cl100k_base`)
	_, err = tokenize.Open(tokenize.Config{From: "tiktoken:x"}, tokenize.Options{})
	require.ErrorContains(t, err, `tokenizer.from: "x" is unknown`)
}

func TestEncodingIsBuiltOnce(t *testing.T) {
	a, err := Open("r50k_base")
	require.NoError(t, err)
	b, err := Open("r50k_base")
	require.NoError(t, err)
	require.Same(t, a, b)
}

var alphabet = []string{
	"a", "e", "the", "The", " quick", "brown", "ing", "é", "ß", "A", "QU", "Ω", "漢", "字", "日本", "\u0301", "1", "42", "2026", "½",
	" ", "  ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u2003", "'", "'s", "'LL", "/", ".", ",", "!=", "€", "🙂", "_", "--", "func(", "{\n\t",
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", strings.Repeat("abcxyz", 20), strings.Repeat("=", 70),
}

func randomText(r *rand.Rand, most int) string {
	var b strings.Builder
	for range r.IntN(most + 1) {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

// mixed is text that the library cuts differently from its own patterns: line ends next to other blanks.
var mixed = regexp.MustCompile(`[\r\n][\t \x{00a0}\x{2003}]|[\t \x{00a0}\x{2003}][\r\n]`)

// The encoding of a text equals the library's, and decodes to the text.
func TestEqualsTheLibrary(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for _, enc := range encodings {
		e, err := Open(enc.name)
		require.NoError(t, err)
		library := enc.load()
		for range 400 {
			text := mixed.ReplaceAllString(randomText(r, 40), "-")
			want, _, err := library.Encode(text)
			require.NoError(t, err)
			got := encode(t, e, text)
			require.Len(t, got, len(want), "%q", text)
			for i := range want {
				require.EqualValues(t, want[i], got[i], "token %d of %q", i, text)
			}
			back, err := library.Decode(want)
			require.NoError(t, err)
			require.Equal(t, text, back)
		}
	}
}

// The tokens of a text are those of its segments.
func TestSegments(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	segments := 0
	for _, enc := range encodings[:3] {
		e, err := Open(enc.name)
		require.NoError(t, err)
		for range 20 {
			text := randomText(r, 16_000)
			var got []uint32
			for from, to := 0, 0; from < len(text); from = to {
				to = e.Cut(text, from)
				got, err = e.Encode(context.Background(), got, text, from, to)
				require.NoError(t, err)
				segments++
			}
			require.Equal(t, encode(t, e, text), got)
		}
	}
	require.Greater(t, segments, 500)
}

func prompt(tokens int) string {
	return strings.Repeat("The quick brown fox jumps over the lazy dog, and func main() { return 42 }\n", tokens/19)
}

func BenchmarkEncode8k(b *testing.B) {
	for _, name := range []string{"o200k_base", "cl100k_base"} {
		b.Run(name, func(b *testing.B) {
			e, err := Open(name)
			require.NoError(b, err)
			text := prompt(8192)
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n += len(encode(b, e, text))
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		if _, err := encodings[0].build(); err != nil {
			b.Fatal(err)
		}
	}
}
