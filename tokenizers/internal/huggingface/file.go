// Package huggingface reads tokenizer.json files, for the field file of a channel's
// tokenizer.
//
// The rule. Byte-pair encodings are read, over bytes (GPT-2, Llama 3, Qwen, DeepSeek,
// Mistral's tekken, gpt-oss) and over characters (Llama 2, Mistral 7B, Gemma), with the parts
// of such files around them: added tokens, NFC, Prepend and Replace; Split, ByteLevel,
// Digits and Metaspace; TemplateProcessing. Any other part is refused by name: a file is
// tokenised as its model does, or not at all.
//
// Complexity. A file of 10 MB takes a fraction of a second and some 50 MB of memory,
// once in a process while it is in use, whatever the number of channels.
//
// Source: the file format of https://github.com/huggingface/tokenizers.
package huggingface

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

func init() {
	dialect.RegisterTokenizer("file", func(path string) (dialect.Tokenizer, error) { return Open(path) })
}

// maxFile bounds a tokenizer.json, in bytes.
const maxFile = 256 << 20

// opened are the files in use, each version by itself.
var opened bpe.InUse

// Open reads the file, or returns what it read before if that is still in use and
// the file has not changed.
func Open(path string) (*bpe.Encoder, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
	}
	return opened.Open(fmt.Sprintln(path, info.Size(), info.ModTime()), func() (*bpe.Encoder, error) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		e, err := Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return e, nil
	})
}

// document is a tokenizer.json, as far as it matters.
type document struct {
	AddedTokens   []addedToken    `json:"added_tokens"`
	Normalizer    *part           `json:"normalizer"`
	PreTokenizer  *part           `json:"pre_tokenizer"`
	PostProcessor *part           `json:"post_processor"`
	Model         json.RawMessage `json:"model"`
}

type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LeftStrip  bool   `json:"lstrip"`
	RightStrip bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// part is a step of any kind: its type, and the fields of those that are read.
type part struct {
	Type string
	// of a Sequence
	Normalizers, PreTokenizers, Processors []part
	// of Prepend, Replace and Split
	Prepend, Content, Behavior string
	Pattern                    struct{ String, Regex *string }
	Invert                     bool
	// of Digits
	Individual bool `json:"individual_digits"`
	// of ByteLevel and Metaspace
	PrefixSpace *bool `json:"add_prefix_space"`
	UseRegex    *bool `json:"use_regex"`
	Replacement string
	Scheme      string `json:"prepend_scheme"`
	Split       *bool
	// of TemplateProcessing
	Single  []struct{ SpecialToken *struct{ ID string } }
	Special map[string]struct{ IDs []uint32 } `json:"special_tokens"`
}

// steps returns what a part consists of; nothing where there is none.
func (p *part) steps() (all []part, err error) {
	switch {
	case p == nil:
		return nil, nil
	case p.Type == "":
		return nil, errors.New("it has no type")
	case p.Type != "Sequence":
		return []part{*p}, nil
	}
	for _, inner := range slices.Concat(p.Normalizers, p.PreTokenizers, p.Processors) {
		steps, err := inner.steps()
		if err != nil {
			return nil, err
		}
		all = append(all, steps...)
	}
	return all, nil
}

// read calls to with what a part consists of.
func (p *part) read(to func([]part) error) error {
	steps, err := p.steps()
	if err != nil {
		return err
	}
	return to(steps)
}

// Parse reads the text of a tokenizer.json.
func Parse(raw []byte) (*bpe.Encoder, error) {
	var d document
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, err
	}
	var b builder
	for _, x := range []struct {
		name string
		read func() error
	}{
		{"normalizer", func() error { return d.Normalizer.read(b.normalizer) }},
		{"pre_tokenizer", func() error { return d.PreTokenizer.read(b.preTokenizer) }},
		{"post_processor", func() error { return d.PostProcessor.read(b.postProcessor) }},
		{"model", func() error { return b.model(d.Model) }},
		{"added_tokens", func() error { return b.addedTokens(d.AddedTokens) }},
	} {
		if err := x.read(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	return b.build()
}

// ErrUnsupported means that a file asks for something that is not done here.
var ErrUnsupported = errors.New("not supported")

func unsupported(what string) error { return fmt.Errorf("%s is %w", what, ErrUnsupported) }
