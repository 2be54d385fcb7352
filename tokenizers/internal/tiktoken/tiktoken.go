// Package tiktoken has OpenAI's encodings, for the field tiktoken of a channel's
// tokenizer: o200k_base (gpt-oss but for its special tokens, GPT-4o and later),
// cl100k_base, p50k_base, p50k_edit, r50k_base.
//
// The rule. The vocabularies are those of github.com/tiktoken-go/tokenizer; the
// encoding is package bpe's, which cuts texts in segments, and which cuts "\n \n"
// as tiktoken does: that library's v0.10.0 does not. As
// tiktoken's own encode_ordinary, it has no special tokens: there are none in text.
//
// Complexity. The program is 13 MB larger. An encoding takes a fraction of a second and
// up to 100 MB of memory, once in a process while it is in use.
//
// Source: https://github.com/openai/tiktoken.
package tiktoken

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/tiktoken-go/tokenizer/codec"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

func init() {
	dialect.RegisterTokenizer("tiktoken", func(name string) (dialect.Tokenizer, error) { return Open(name) })
}

type encoding struct {
	name    string
	load    func() *codec.Codec
	pattern string
	size    uint // no id is as large
}

var encodings = []encoding{
	{"o200k_base", codec.NewO200kBase, bpe.O200k, 200_019},
	{"cl100k_base", codec.NewCl100kBase, bpe.Cl100k, 100_277},
	{"p50k_base", codec.NewP50kBase, bpe.GPT2, 50_281},
	{"p50k_edit", codec.NewP50kEdit, bpe.GPT2, 50_284},
	{"r50k_base", codec.NewR50kBase, bpe.GPT2, 50_257},
}

var opened bpe.InUse

// Open returns an encoding. The error lists those there are.
func Open(name string) (*bpe.Encoder, error) {
	var names []string
	for _, enc := range encodings {
		if enc.name == name {
			return opened.Open(name, enc.build)
		}
		names = append(names, enc.name)
	}
	return nil, fmt.Errorf("%q is unknown; choose one of %s", name, strings.Join(names, ", "))
}

func (enc encoding) build() (*bpe.Encoder, error) {
	c := enc.load()
	tokens := make(map[string]uint32, enc.size)
	for id := range enc.size {
		if text, err := c.Decode([]uint{id}); err == nil { // some numbers are left free
			tokens[text] = uint32(id)
		}
	}
	m, err := bpe.NewModel(bpe.Vocabulary{Tokens: tokens, WholeFirst: true})
	s, bad := bpe.NewSplitter(enc.pattern)
	if err = cmp.Or(err, bad); err != nil {
		return nil, fmt.Errorf("%s: %w", enc.name, err)
	}
	return bpe.NewEncoder(bpe.Config{Model: m, Splitters: []*bpe.Splitter{s}}), nil
}
