package huggingface

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/tokenize"
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
	"github.com/warmpath/warmpath/tokenizers/internal/tiktoken"
)

func tokens(t testing.TB, e *bpe.Encoder, text string) []uint32 {
	t.Helper()
	ids, err := e.Tokens(context.Background(), dialect.TokenizerInput{Text: text, Special: true})
	require.NoError(t, err)
	return ids
}

func TestBytes(t *testing.T) {
	e, err := Open("testdata/bytes.json")
	require.NoError(t, err)
	const begin, turn, end = 267, 268, 269
	for text, want := range map[string][]uint32{
		"":                         {begin},
		"hello world":              {begin, 259, 264},
		"hello  world":             {begin, 259, ' ', 264},
		"HELLo 12":                 {begin, 'H', 'E', 'L', 'L', 'o', ' ', '1', '2'}, // digits one by one: no merge across pieces
		"<|turn|>hello<|end|>\n\n": {begin, turn, 259, end, 265},
		"e\u0301":                  {begin, 0xC3, 0xA9}, // é in normal form C
		"<|turn|":                  {begin, '<', '|', 't', 'u', 'r', 'n', '|'},
		"hell\u00a0":               {begin, 258, 0xC2, 0xA0},
	} {
		require.Equal(t, want, tokens(t, e, text), "%q", text)
	}
	ids, err := e.Tokens(context.Background(), dialect.TokenizerInput{Text: "hello"})
	require.NoError(t, err)
	require.Equal(t, []uint32{259}, ids)
}

func TestCharacters(t *testing.T) {
	e, err := Open("testdata/characters.json")
	require.NoError(t, err)
	for text, want := range map[string][]uint32{
		"hello":        {1, 271, 2},
		"hello  world": {1, 271, 259, 273, 265, 262, 266, 2},
		"hé":           {1, 259, 260, 3 + 0xC3, 3 + 0xA9, 2},
		"hello</s>he":  {1, 271, 2, 259, 267, 2}, // what follows a token is prefixed too
	} {
		require.Equal(t, want, tokens(t, e, text), "%q", text)
	}
}

// llamaLike makes a tokenizer.json from a vocabulary of tiktoken like Llama 3's: every way to cut a token in two
// is a merge.
func llamaLike(t testing.TB, c *codec.Codec, size uint, pattern string) []byte {
	t.Helper()
	write := func(bytes string) string {
		var b strings.Builder
		for i := range len(bytes) {
			b.WriteRune(letters[bytes[i]])
		}
		return b.String()
	}
	vocab := make(map[string]uint32)
	ids := make(map[string]uint)
	var texts []string
	for id := range size {
		if text, err := c.Decode([]uint{id}); err == nil {
			vocab[write(text)], ids[text] = uint32(id), id
			texts = append(texts, text)
		}
	}
	var merges []string
	for _, text := range texts {
		for cut := 1; cut < len(text); cut++ {
			_, left := ids[text[:cut]]
			if _, right := ids[text[cut:]]; left && right {
				merges = append(merges, write(text[:cut])+" "+write(text[cut:]))
			}
		}
	}
	raw, err := json.Marshal(map[string]any{
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]string{"Regex": pattern}, "behavior": "Isolated"},
			map[string]any{"type": "ByteLevel", "use_regex": false},
		}},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": true},
	})
	require.NoError(t, err)
	return raw
}

const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// A file made from a vocabulary of tiktoken gives tiktoken's tokens: a model of ranks and one of merges agree, and
// both decode to the text.
func TestFileMadeFromTiktoken(t *testing.T) {
	library := codec.NewR50kBase()
	e, err := Parse(llamaLike(t, library, 50257, gpt2))
	require.NoError(t, err)
	want, err := tiktoken.Open("r50k_base")
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(7, 7))
	parts := []string{"the", " quick", "Fox", "日本", "é", "\u0301", "🙂", "2026", " ", "\n", "\t\t", "'s", "!=", "aaaaaaaaaaaaaaaaaaaaaaaa", strings.Repeat("na", 60)}
	for range 500 {
		var b strings.Builder
		for range r.IntN(30) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		got := tokens(t, e, b.String())
		require.Equal(t, tokens(t, want, b.String()), got, "%q", b.String())
		ids := make([]uint, len(got))
		for i, id := range got {
			ids[i] = uint(id)
		}
		back, err := library.Decode(ids)
		require.NoError(t, err)
		require.Equal(t, b.String(), back)
	}
}

// small returns the hand-made file with one part replaced.
func small(t testing.TB, part, value string) []byte {
	t.Helper()
	raw, err := os.ReadFile("testdata/bytes.json")
	require.NoError(t, err)
	var doc map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &doc))
	doc[part] = json.RawMessage(value)
	raw, err = json.Marshal(doc)
	require.NoError(t, err)
	return raw
}

func TestRefusedFiles(t *testing.T) {
	for _, v := range []struct{ part, value, want string }{
		{"normalizer", `{"type":"Lowercase"}`, "normalizer: Lowercase is not supported"},
		{"normalizer", `{"type":"Replace","pattern":{"Regex":"a"},"content":"b"}`, "Replace with a regular expression"},
		{"normalizer", `{}`, "normalizer: it has no type"},
		{"pre_tokenizer", `{"type":"BertPreTokenizer"}`, "pre_tokenizer: BertPreTokenizer is not supported"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"}`, "the pattern"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"Regex":"a"},"behavior":"MergedWithNext"}`, "behavior MergedWithNext"},
		{"pre_tokenizer", `{"type":"Split","behavior":"Isolated"}`, "Split has no pattern"},
		{"pre_tokenizer", `{"type":"Split","pattern":{"String":" "},"behavior":"Isolated"}`, "Split at a text"},
		{"pre_tokenizer", `{"type":"Metaspace","prepend_scheme":"later"}`, "prepend_scheme later"},
		{"pre_tokenizer", `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]}`, "Digits behind ByteLevel"},
		{"post_processor", `{"type":"BertProcessing"}`, "post_processor: BertProcessing is not supported"},
		{"post_processor", `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x"}}]}`, `"x" is not in its special_tokens`},
		{"model", `{"type":"WordPiece","vocab":{}}`, "model: WordPiece is not supported"},
		{"model", `{"type":"Unigram","vocab":[["a",0.5]]}`, "model: Unigram is not supported"},
		{"model", `null`, "model: there is none"},
		{"model", `{"type":"BPE","vocab":{}}`, "its vocab is empty"},
		{"model", `{"type":"BPE","vocab":{"a":1},"dropout":0.1}`, "dropout"},
		{"model", `{"type":"BPE","vocab":{"a":1},"end_of_word_suffix":"</w>"}`, "end_of_word_suffix"},
		{"model", `{"type":"BPE","vocab":{"a":1},"merges":["ab"]}`, "not two parts"},
		{"model", `{"type":"BPE","vocab":{"a":1},"merges":[["a"]]}`, "not two parts"},
		{"model", `{"type":"BPE","vocab":{"a":1},"merges":[["a","\n"]]}`, "not in ByteLevel's letters"},
		{"model", `{"type":"BPE","vocab":{"a":1},"merges":[]}`, "is not in the vocabulary"},
		{"added_tokens", `[{"id":1,"content":"x","single_word":true}]`, "single_word"},
	} {
		_, err := Parse(small(t, v.part, v.value))
		require.ErrorContains(t, err, v.want, "%s: %s", v.part, v.value)
	}
	_, err := Parse([]byte("[]"))
	require.Error(t, err)
	_, err = tokenize.Open(tokenize.Config{From: "testdata/none.json"}, tokenize.Options{})
	require.ErrorContains(t, err, "tokenizer.from: stat testdata/none.json")
}

func TestFileIsReadOnceUntilItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	require.NoError(t, os.WriteFile(path, small(t, "normalizer", "null"), 0o600))
	a, err := Open(path)
	require.NoError(t, err)
	b, err := Open(path)
	require.NoError(t, err)
	require.Same(t, a, b)
	require.NoError(t, os.WriteFile(path, small(t, "normalizer", `{"type":"NFC"}`), 0o600))
	c, err := Open(path)
	require.NoError(t, err)
	require.NotSame(t, a, c)
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/bytes.json", "testdata/characters.json"} {
		raw, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(raw, "hello <|turn|> é")
	}
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":1,"▁":2},"merges":[]},"pre_tokenizer":{"type":"Metaspace"}}`), "a a")
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		if e, err := Parse(raw); err == nil {
			_, _ = e.Tokens(context.Background(), dialect.TokenizerInput{Text: text})
		}
	})
}

func BenchmarkParse(b *testing.B) {
	raw := llamaLike(b, codec.NewCl100kBase(), 100_277, gpt2)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := Parse(raw); err != nil {
			b.Fatal(err)
		}
	}
}
