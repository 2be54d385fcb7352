package huggingface

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

// model is a BPE model as a file has it.
type model struct {
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       []merge           `json:"merges"`
	Dropout      *float64          `json:"dropout"`
	Unknown      *string           `json:"unk_token"`
	Prefix       *string           `json:"continuing_subword_prefix"`
	Suffix       *string           `json:"end_of_word_suffix"`
	FuseUnknown  bool              `json:"fuse_unk"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
}

// merge is "left right" in older files, ["left", "right"] in newer ones.
type merge [2]string

// UnmarshalJSON implements [json.Unmarshaler].
func (m *merge) UnmarshalJSON(raw []byte) error {
	var parts []string
	if len(raw) > 0 && raw[0] == '[' {
		if err := json.Unmarshal(raw, &parts); err != nil {
			return err
		}
	} else {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		parts = strings.Split(s, " ")
	}
	if len(parts) != 2 {
		return fmt.Errorf("the merge %s is not two parts", raw)
	}
	*m = merge(parts)
	return nil
}

func (b *builder) model(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return errors.New("there is none")
	}
	var m model
	// A model of another type has a vocabulary of another shape: ask for the type first.
	var kind struct{ Type string }
	if json.Unmarshal(raw, &kind) == nil && kind.Type != "BPE" {
		return unsupported(cmp.Or(kind.Type, "a model without a type"))
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	given := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case len(m.Vocab) == 0:
		return errors.New("its vocab is empty")
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("dropout")
	case given(m.Prefix), given(m.Suffix):
		return unsupported("continuing_subword_prefix or end_of_word_suffix")
	}
	b.vocabulary = bpe.Vocabulary{
		Characters: !b.byteLevel, ByteFallback: m.ByteFallback, FuseUnknown: m.FuseUnknown, WholeFirst: m.IgnoreMerges,
		Tokens: m.Vocab, Merges: make([][2]string, len(m.Merges)),
	}
	if m.Unknown != nil && !b.byteLevel {
		b.vocabulary.Unknown = *m.Unknown
	}
	for i, merge := range m.Merges {
		b.vocabulary.Merges[i] = merge
	}
	if b.byteLevel {
		return b.toBytes()
	}
	return nil
}

// toBytes puts the bytes that they stand for in the place of the vocabulary's letters.
func (b *builder) toBytes() error {
	tokens := make(map[string]uint32, len(b.vocabulary.Tokens))
	for text, id := range b.vocabulary.Tokens {
		if bytes, ok := unletter(text); ok { // others cannot come up, like an added token with a blank
			tokens[bytes] = id
		}
	}
	b.vocabulary.Tokens = tokens
	for i, m := range b.vocabulary.Merges {
		left, okLeft := unletter(m[0])
		right, okRight := unletter(m[1])
		if !okLeft || !okRight {
			return fmt.Errorf("merge %d: %q and %q are not in ByteLevel's letters", i, m[0], m[1])
		}
		b.vocabulary.Merges[i] = [2]string{left, right}
	}
	return nil
}

// letters are what ByteLevel writes bytes as: printable ones as themselves, the others
// as the letters from U+0100 on.
var letters, byLetter = func() (letters [256]rune, byLetter map[rune]byte) {
	byLetter = make(map[rune]byte, 256)
	next := rune(0x100)
	for b := range 256 {
		r := rune(b)
		if printable := b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE; !printable {
			r = next
			next++
		}
		letters[b], byLetter[r] = r, byte(b)
	}
	return letters, byLetter
}()

// unletter returns the bytes that a token in ByteLevel's letters stands for.
func unletter(text string) (string, bool) {
	bytes := make([]byte, 0, len(text))
	for _, r := range text {
		b, ok := byLetter[r]
		if !ok {
			return "", false
		}
		bytes = append(bytes, b)
	}
	return string(bytes), true
}
