package bpe

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// alphabet has a character of every kind that a pattern distinguishes.
var alphabet = []string{
	"a", "b", "é", "ß", "A", "Q", "Ω", "ǅ", "ʰ", "漢", "字", "ا", "\u0301", "\u0903", "1", "2", "9", "٣", "½", "²",
	" ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u2028", "'", "'s", "'S", "'t", "'re", "'VE", "'ll", "'d", "'m",
	"/", ".", ",", "!", "€", "🙂", "_", "-", "<", "s", "t", "l", "\u200b", "\x00", "\u0085",
}

func randomText(r *rand.Rand, most int) string {
	var b strings.Builder
	for range r.IntN(most + 1) {
		b.WriteString(alphabet[r.IntN(len(alphabet))])
	}
	return b.String()
}

func pieces(t testing.TB, s *Splitter, text string) (all []string) {
	t.Helper()
	require.NoError(t, s.split(text, len(text), func(piece string) error {
		all = append(all, piece)
		return nil
	}))
	return all
}

// The hand-written scanners give the matches of the patterns.
func TestScannersAreTheirPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for pattern, s := range scanners {
		want, err := newRegexSplitter(pattern)
		require.NoError(t, err)
		got := &Splitter{name: pattern, scan: s}
		for range 4000 {
			text := randomText(r, 12)
			require.Equal(t, pieces(t, want, text), pieces(t, got, text), "%q with %s", text, pattern)
		}
	}
}

func FuzzScanners(f *testing.F) {
	f.Add("Hello, World's  \r\n 12345 ÀB'LL\u0301")
	type pair struct{ want, got *Splitter }
	var all []pair
	for pattern, s := range scanners {
		want, err := newRegexSplitter(pattern)
		require.NoError(f, err)
		all = append(all, pair{want, &Splitter{name: pattern, scan: s}})
	}
	f.Fuzz(func(t *testing.T, text string) {
		text = strings.ToValidUTF8(text, "?")
		for _, p := range all {
			require.Equal(t, pieces(t, p.want, text), pieces(t, p.got, text), "%s", p.want.name)
		}
	})
}
