package huggingface

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

// builder gathers the parts of a file. They are read in the order of the fields.
type builder struct {
	nfc        bool
	normalize  []rewrite
	byteLevel  bool
	pretend    rewrite // of a pre-tokenizer
	splitters  []*bpe.Splitter
	before     bool // the prompt is still to come in the template
	leading    []uint32
	trailing   []uint32
	vocabulary bpe.Vocabulary
	specials   []bpe.Special
}

// rewrite changes what is between added tokens; first is true for what the text
// begins with.
type rewrite func(text string, first bool) string

// list is a Sequence of any kind.
type list struct {
	Normalizers   []json.RawMessage `json:"normalizers"`
	PreTokenizers []json.RawMessage `json:"pretokenizers"`
	Processors    []json.RawMessage `json:"processors"`
}

// pattern is a text or a regular expression.
type pattern struct {
	String *string
	Regex  *string
}

func (b *builder) normalizer(raw json.RawMessage) error {
	kind, err := typeOf(raw)
	if err != nil {
		return err
	}
	switch kind {
	case "":
	case "NFC":
		if len(b.normalize) == 0 {
			b.nfc = true
			return nil
		}
		b.normalize = append(b.normalize, func(text string, _ bool) string { return norm.NFC.String(text) })
	case "ByteLevel":
		b.byteLevel = true
	case "Prepend":
		var p struct{ Prepend string }
		if err := json.Unmarshal(raw, &p); err != nil {
			return err
		}
		b.normalize = append(b.normalize, func(text string, _ bool) string { return p.Prepend + text })
	case "Replace":
		return b.replace(raw)
	case "Sequence":
		var l list
		if err := json.Unmarshal(raw, &l); err != nil {
			return err
		}
		for _, part := range l.Normalizers {
			if err := b.normalizer(part); err != nil {
				return err
			}
		}
	default:
		return unsupported(kind)
	}
	return nil
}

func (b *builder) replace(raw json.RawMessage) error {
	var r struct {
		Pattern pattern
		Content string
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return err
	}
	if r.Pattern.String == nil {
		return unsupported("Replace with a regular expression")
	}
	old := *r.Pattern.String
	b.normalize = append(b.normalize, func(text string, _ bool) string { return strings.ReplaceAll(text, old, r.Content) })
	return nil
}

func (b *builder) preTokenizer(raw json.RawMessage) error {
	kind, err := typeOf(raw)
	if err != nil || kind == "" {
		return err
	}
	if kind != "Sequence" {
		return b.pre(kind, raw, true)
	}
	var l list
	if err := json.Unmarshal(raw, &l); err != nil {
		return err
	}
	for i, part := range l.PreTokenizers {
		kind, err := typeOf(part)
		if err != nil {
			return err
		}
		if b.byteLevel {
			return unsupported(kind + " behind ByteLevel")
		}
		if err := b.pre(kind, part, i == 0 && len(l.PreTokenizers) == 1); err != nil {
			return err
		}
	}
	return nil
}

// pre reads one pre-tokenizer; alone is true if there is no other.
func (b *builder) pre(kind string, raw json.RawMessage, alone bool) error {
	switch kind {
	case "Split":
		return b.split(raw)
	case "Digits":
		var d struct {
			Individual bool `json:"individual_digits"`
		}
		if err := json.Unmarshal(raw, &d); err != nil {
			return err
		}
		if d.Individual {
			return b.cutBy(`\p{N}`)
		}
		return b.cutBy(`\p{N}+`)
	case "ByteLevel":
		return b.bytes(raw, alone)
	case "Metaspace":
		if !alone {
			return unsupported("Metaspace beside others")
		}
		return b.metaspace(raw)
	}
	return unsupported(kind)
}

func (b *builder) cutBy(pattern string) error {
	s, err := bpe.NewSplitter(pattern)
	if err != nil {
		return err
	}
	b.splitters = append(b.splitters, s)
	return nil
}

func (b *builder) split(raw json.RawMessage) error {
	var s struct {
		Pattern  pattern
		Behavior string
		Invert   bool
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	switch {
	case s.Pattern.Regex == nil && s.Pattern.String == nil:
		return errors.New("the Split has no pattern")
	case s.Pattern.String != nil && b.takenAway(*s.Pattern.String):
		return nil
	case s.Pattern.String != nil:
		return unsupported("Split at a text")
	case s.Behavior == "Isolated":
	case s.Behavior == "Removed" && s.Invert && bpe.CoversAll(*s.Pattern.Regex):
		// What does not match is left out, and there is no such thing.
	default:
		return unsupported(fmt.Sprintf("Split with behavior %s, invert %t", s.Behavior, s.Invert))
	}
	return b.cutBy(*s.Pattern.Regex)
}

// takenAway reports whether no text has s any more once it is normalised, as Gemma's
// has no blanks.
func (b *builder) takenAway(s string) bool {
	probe := "a" + s + s + "a"
	for _, f := range b.normalize {
		probe = f(probe, false)
	}
	return len(s) == 1 && !strings.Contains(probe, s)
}

func (b *builder) bytes(raw json.RawMessage, alone bool) error {
	l := struct {
		AddPrefixSpace bool  `json:"add_prefix_space"`
		UseRegex       *bool `json:"use_regex"`
	}{}
	if err := json.Unmarshal(raw, &l); err != nil {
		return err
	}
	b.byteLevel = true
	if l.AddPrefixSpace {
		if !alone {
			return unsupported("ByteLevel with add_prefix_space beside others")
		}
		b.pretend = func(text string, _ bool) string {
			if strings.HasPrefix(text, " ") {
				return text
			}
			return " " + text
		}
	}
	if l.UseRegex == nil || *l.UseRegex {
		b.splitters = append(b.splitters, bpe.GPT2())
	}
	return nil
}

func (b *builder) metaspace(raw json.RawMessage) error {
	m := struct {
		Replacement string
		Scheme      string `json:"prepend_scheme"`
		Prefix      *bool  `json:"add_prefix_space"` // of older files
		Split       *bool
	}{Replacement: "▁"}
	if err := json.Unmarshal(raw, &m); err != nil {
		return err
	}
	if m.Scheme == "" {
		m.Scheme = "always"
		if m.Prefix != nil && !*m.Prefix {
			m.Scheme = "never"
		}
	}
	if m.Scheme != "always" && m.Scheme != "first" && m.Scheme != "never" {
		return unsupported("prepend_scheme " + m.Scheme)
	}
	if m.Replacement != "▁" {
		return unsupported("Metaspace with replacement " + m.Replacement)
	}
	b.pretend = func(text string, first bool) string {
		text = strings.ReplaceAll(text, " ", "▁")
		if (m.Scheme == "always" || m.Scheme == "first" && first) && !strings.HasPrefix(text, "▁") {
			text = "▁" + text
		}
		return text
	}
	if m.Split == nil || *m.Split {
		return b.cutBy(`▁[^▁]*`)
	}
	return nil
}

// template is one element of a TemplateProcessing.
type template struct {
	SpecialToken *struct{ ID string }
	Sequence     *struct{ ID string }
}

func (b *builder) postProcessor(raw json.RawMessage) error {
	kind, err := typeOf(raw)
	if err != nil {
		return err
	}
	switch kind {
	case "", "ByteLevel": // the latter moves offsets only
		return nil
	case "Sequence":
		var l list
		if err := json.Unmarshal(raw, &l); err != nil {
			return err
		}
		for _, part := range l.Processors {
			if err := b.postProcessor(part); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		return b.around(raw)
	}
	return unsupported(kind)
}

// around reads what stands before and behind a single prompt.
func (b *builder) around(raw json.RawMessage) error {
	var t struct {
		Single  []template
		Special map[string]struct{ IDs []uint32 } `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return err
	}
	for _, part := range t.Single {
		if part.SpecialToken == nil {
			b.before = false
			continue
		}
		ids, ok := t.Special[part.SpecialToken.ID]
		switch {
		case !ok:
			return fmt.Errorf("%q is not in its special_tokens", part.SpecialToken.ID)
		case b.before:
			b.leading = append(b.leading, ids.IDs...)
		default:
			b.trailing = append(b.trailing, ids.IDs...)
		}
	}
	return nil
}

func (b *builder) addedTokens(all []addedToken) error {
	for _, t := range all {
		if t.SingleWord {
			return fmt.Errorf("%q: %w", t.Content, unsupported("single_word"))
		}
		b.specials = append(b.specials, bpe.Special{
			Text: t.Content, ID: t.ID, EatLeft: t.LeftStrip, EatRight: t.RightStrip,
			Normalized: t.Normalized && (b.nfc || len(b.normalize) > 0),
		})
	}
	return nil
}

func (b *builder) build() (*bpe.Encoder, error) {
	m, err := bpe.NewModel(b.vocabulary)
	if err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	c := bpe.Config{
		Model: m, Specials: b.specials, NFC: b.nfc, Splitters: b.splitters, Before: b.leading, After: b.trailing,
	}
	steps := b.normalize
	if b.pretend != nil {
		for _, s := range b.specials {
			if s.Normalized {
				return nil, fmt.Errorf("added_tokens: %q: %w", s.Text, unsupported("normalized with this pre_tokenizer"))
			}
		}
		steps = append(steps[:len(steps):len(steps)], b.pretend)
	}
	if len(steps) > 0 {
		c.Rewrite = func(text string, first bool) string {
			for _, f := range steps {
				text = f(text, first)
			}
			return text
		}
	}
	return bpe.NewEncoder(c), nil
}
