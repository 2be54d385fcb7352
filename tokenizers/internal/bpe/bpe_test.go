package bpe

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/tokenize"
)

// words is a vocabulary of all bytes, and of random merges over a few letters.
func words(r *rand.Rand, letters string, merges int) Vocabulary {
	v := Vocabulary{Tokens: map[string]uint32{}}
	var parts []string
	for b := range 256 {
		v.Tokens[string([]byte{byte(b)})] = uint32(b)
	}
	for _, l := range []byte(letters) {
		parts = append(parts, string([]byte{l}))
	}
	for len(v.Merges) < merges {
		left, right := parts[r.IntN(len(parts))], parts[r.IntN(len(parts))]
		if _, ok := v.Tokens[left+right]; ok || len(left+right) > 12 {
			continue
		}
		v.Tokens[left+right] = uint32(len(v.Tokens))
		v.Merges = append(v.Merges, [2]string{left, right})
		parts = append(parts, left+right)
	}
	return v
}

// naive is byte-pair encoding by its definition: of all pairs the one with the lowest rank, the leftmost of
// equals, repeatedly.
func naive(v Vocabulary, text string) []uint32 {
	var parts []string
	for i := range len(text) {
		parts = append(parts, text[i:i+1])
	}
	ranks := make(map[[2]string]int)
	for rank, m := range v.Merges {
		if _, ok := ranks[m]; !ok {
			ranks[m] = rank
		}
	}
	for {
		best, at := len(v.Merges), -1
		for i := range len(parts) - 1 {
			if rank, ok := ranks[[2]string{parts[i], parts[i+1]}]; ok && rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			break
		}
		parts = append(append(parts[:at:at], parts[at]+parts[at+1]), parts[at+2:]...)
	}
	ids := make([]uint32, len(parts))
	for i, p := range parts {
		ids[i] = v.Tokens[p]
	}
	return ids
}

func TestMergesFollowTheDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for range 30 {
		v := words(r, "abc", 40)
		m, err := NewModel(v)
		require.NoError(t, err)
		e := NewEncoder(Config{Model: m})
		for range 60 {
			var b strings.Builder
			for range r.IntN(200) {
				b.WriteByte("aaabbbc"[r.IntN(7)])
			}
			require.Equal(t, append([]uint32{}, naive(v, b.String())...), append([]uint32{}, encode(t, e, b.String())...), "%q", b.String())
		}
	}
}

func TestInvalidVocabularies(t *testing.T) {
	full := words(rand.New(rand.NewPCG(1, 1)), "ab", 1)
	without := words(rand.New(rand.NewPCG(1, 1)), "ab", 1)
	delete(without.Tokens, "\x07")
	for want, v := range map[string]Vocabulary{
		"the byte 0x07 is not in the vocabulary":  without,
		"merge 0: \"x\", \"yz\"":                  {Tokens: full.Tokens, Merges: [][2]string{{"x", "yz"}}},
		"the unknown token \"<unk>\" is not in":   {Tokens: full.Tokens, Unknown: "<unk>"},
		"a vocabulary of characters needs merges": {Tokens: full.Tokens, Characters: true},
		"both together must be in the vocabulary": {Tokens: full.Tokens, Merges: [][2]string{{"x", "y"}}},
	} {
		_, err := NewModel(v)
		require.ErrorContains(t, err, want)
	}
}

func TestCharacters(t *testing.T) {
	v := Vocabulary{
		Characters: true, Unknown: "<unk>", FuseUnknown: true,
		Tokens: map[string]uint32{"<unk>": 0, "é": 1, "a": 2, "éa": 3},
		Merges: [][2]string{{"é", "a"}},
	}
	encode := func() func(string) []uint32 {
		m, err := NewModel(v)
		require.NoError(t, err)
		e := NewEncoder(Config{Model: m})
		return func(text string) []uint32 { return encode(t, e, text) }
	}
	require.Equal(t, []uint32{3, 0, 2}, encode()("éaxyza"))
	v.FuseUnknown = false
	require.Equal(t, []uint32{3, 0, 0, 0, 2}, encode()("éaxyza"))
	v.Unknown = ""
	require.Equal(t, []uint32{3, 2}, encode()("éaxyza"))
	v.ByteFallback = true
	for b := range 256 {
		v.Tokens["<0x"+strings.ToUpper(string("0123456789abcdef"[b>>4])+string("0123456789abcdef"[b&15]))+">"] = uint32(1000 + b)
	}
	require.Equal(t, []uint32{3, 1000 + 0xE6, 1000 + 0xBC, 1000 + 0xA2, 2}, encode()("éa漢a"))
}

func encoder(t testing.TB, c Config) *Encoder {
	t.Helper()
	if c.Model == nil {
		v := words(rand.New(rand.NewPCG(9, 9)), "abst' 12", 60)
		m, err := NewModel(v)
		require.NoError(t, err)
		c.Model = m
	}
	return NewEncoder(c)
}

func splitter(t testing.TB, pattern string) *Splitter {
	t.Helper()
	s, err := NewSplitter(pattern)
	require.NoError(t, err)
	return s
}

func encode(t testing.TB, e *Encoder, text string) []uint32 {
	t.Helper()
	ids, err := e.Encode(context.Background(), nil, text, 0, len(text))
	require.NoError(t, err)
	return ids
}

func TestSpecials(t *testing.T) {
	e := encoder(t, Config{Splitters: []*Splitter{splitter(t, GPT2)}, Specials: []Special{
		{Text: "<|a", ID: 900}, {Text: "<|a|>", ID: 901}, {Text: "|>", ID: 902}, {Text: "", ID: 1},
	}})
	require.Equal(t, []uint32{901}, encode(t, e, "<|a|>"))
	require.Equal(t, []uint32{900, 'x', 902}, encode(t, e, "<|ax|>"))
	require.Empty(t, encode(t, e, ""))
	e = encoder(t, Config{Specials: []Special{{Text: "<e>", ID: 900, EatLeft: true, EatRight: true}}})
	require.Equal(t, []uint32{'x', 900, 'y'}, encode(t, e, "x \u2003\t<e> \n y"))
}

func TestTextsThatAreNotEncoded(t *testing.T) {
	e := encoder(t, Config{})
	_, err := e.Encode(context.Background(), nil, "\xff", 0, 1)
	require.ErrorIs(t, err, tokenize.ErrNotText)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = encoder(t, Config{Splitters: []*Splitter{splitter(t, GPT2)}}).Encode(ctx, nil, strings.Repeat("word ", 1<<14), 0, 5<<14)
	require.ErrorIs(t, err, context.Canceled)
}

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

// The tokens of a text are those of its segments, and a segment ends at the same position in every longer text:
// with special tokens that are cut in two, combining letters, and every well-known pattern.
func TestSegments(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	tokens := []Special{{Text: "<|sep|>", ID: 900}, {Text: "<|sep|>longer", ID: 901}, {Text: "  ", ID: 902}}
	odd := append([]string{"<|sep|>", "<|sep|>long", "longer", "<|se", "p|>", "e\u0301", "\u0338", "\u1100\u1161", "\u0338", "\u0301", "\n"}, alphabet...)
	text := func(parts int) string {
		var b strings.Builder
		for range parts {
			b.WriteString(odd[r.IntN(len(odd))])
		}
		return b.String()
	}
	ends := 0
	for _, pattern := range wellKnown {
		s := splitter(t, pattern)
		for _, c := range []Config{
			{Splitters: []*Splitter{s}},
			{Splitters: []*Splitter{s}, Specials: tokens[:2]},
			{Splitters: []*Splitter{s}, Specials: tokens, NFC: true},
			{Splitters: []*Splitter{s}, Specials: append([]Special{{Text: "\nb", ID: 903}}, tokens...)},
			{Splitters: []*Splitter{s, s}, Specials: tokens[:2]},
			{Specials: tokens[:2], Rewrite: func(s string, first bool) string {
				if first {
					return "t" + s
				}
				return s
			}},
			{Splitters: []*Splitter{s}, Specials: []Special{{Text: "<|sep|>", ID: 900, EatRight: true}}},
		} {
			e := encoder(t, c)
			for range 4 {
				all := text(8000)
				for n := 0; n < len(all); n += 1 + r.IntN(len(all)) {
					one := strings.ToValidUTF8(all[:n], "")
					want := encode(t, e, one)
					var got []uint32
					for from, to := 0, 0; from < len(one); from = to {
						to = e.Cut(one, from)
						var err error
						got, err = e.Encode(context.Background(), got, one, from, to)
						require.NoError(t, err)
						if to < len(one) {
							ends++
							require.Equal(t, to, e.Cut(all, from))
						}
					}
					require.Equal(t, want, got)
				}
			}
		}
	}
	require.Greater(t, ends, 400)
}

// However short segments are, the tokens are those of the text: at every position where one could end.
func TestEveryPositionOfACut(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, pattern := range wellKnown {
		s := splitter(t, pattern)
		for _, nfc := range []bool{false, true} {
			e := encoder(t, Config{Splitters: []*Splitter{s}, Specials: []Special{{Text: "<|s|>", ID: 900}}, NFC: nfc})
			for range 1000 {
				text := randomText(r, 10) + "\n" + randomText(r, 4)
				for i := range len(text) {
					if i == 0 || text[i-1] != '\n' || !e.beginsPiece(text, i) {
						continue
					}
					got, err := e.Encode(context.Background(), nil, text, 0, i)
					require.NoError(t, err)
					got, err = e.Encode(context.Background(), got, text, i, len(text))
					require.NoError(t, err)
					require.Equal(t, encode(t, e, text), got, "%q at %d with %s", text, i, pattern)
				}
			}
		}
	}
}

// lookedAt is a context that ends after a number of checks.
type lookedAt struct {
	context.Context
	looks, last int
}

func (c *lookedAt) Err() error {
	if c.looks++; c.looks >= c.last {
		return context.DeadlineExceeded
	}
	return nil
}

// Issue 12.33: the context is checked inside one piece, of letters that merge, whatever cuts the text: at least
// once in 64 KiB of it, and no work follows its end.
func TestDeadlineInsideOnePiece(t *testing.T) {
	const size = 1 << 18
	for name, splitters := range map[string][]*Splitter{"words": {splitter(t, GPT2)}, "whole": nil} {
		for _, letter := range []string{"a", "ж", "e\u0301"} {
			text := strings.Repeat(letter, size/len(letter))
			e := encoder(t, Config{Splitters: splitters, NFC: true})
			ctx := &lookedAt{Context: context.Background(), last: size}
			_, err := e.Encode(ctx, nil, text, 0, len(text))
			require.NoError(t, err)
			require.GreaterOrEqual(t, ctx.looks, size/(64<<10), "%s: %s", name, letter)
			for _, last := range []int{1, ctx.looks / 2, ctx.looks} {
				ended := &lookedAt{Context: context.Background(), last: last}
				_, err = e.Encode(ended, nil, text, 0, len(text))
				require.ErrorIs(t, err, context.DeadlineExceeded, "%s: %s", name, letter)
				require.Equal(t, last, ended.looks)
			}
		}
	}
}

// Issue 12.33: a pattern that backtracks without bound is stopped, with an error that does not quote the prompt.
func TestPatternThatBacktracks(t *testing.T) {
	e := encoder(t, Config{Splitters: []*Splitter{splitter(t, `(a+)+b`)}})
	_, err := e.Encode(context.Background(), nil, strings.Repeat("a", 1000), 0, 1000)
	require.ErrorContains(t, err, "finds no next piece")
	require.NotContains(t, err.Error(), "aaaa")
}

// Issue 12.33: a piece that is twice as long takes about twice the time.
func TestPieceCostsAboutItsLength(t *testing.T) {
	e := encoder(t, Config{})
	took := func(n int) time.Duration {
		text, best := strings.Repeat("ab", n/2), time.Hour
		for range 3 {
			began := time.Now()
			encode(t, e, text)
			best = min(best, time.Since(began))
		}
		return best
	}
	require.Less(t, took(1<<18), 1000*took(1<<12), "64 times the length: 64 times, and not 4,096 times")
}
