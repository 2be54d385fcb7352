package huggingface

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/warmpath/warmpath/tokenizers/internal/bpe"
)

// builder gathers the parts of a file.
type builder struct {
	nfc        bool
	normalize  []rewrite
	byteLevel  bool
	pretend    rewrite // of a pre-tokenizer
	splitters  []*bpe.Splitter
	leading    []uint32
	trailing   []uint32
	vocabulary bpe.Vocabulary
	specials   []bpe.Special
}

// rewrite changes what is between added tokens; first is true for what the text
// begins with.
type rewrite func(text string, first bool) string

func (b *builder) normalizer(parts []part) error {
	for _, p := range parts {
		switch p.Type {
		case "NFC":
			if len(b.normalize) == 0 {
				b.nfc = true
				continue
			}
			b.normalize = append(b.normalize, func(text string, _ bool) string { return norm.NFC.String(text) })
		case "ByteLevel":
			b.byteLevel = true
		case "Prepend":
			b.normalize = append(b.normalize, func(text string, _ bool) string { return p.Prepend + text })
		case "Replace":
			if p.Pattern.String == nil {
				return unsupported("Replace with a regular expression")
			}
			b.normalize = append(b.normalize, func(text string, _ bool) string {
				return strings.ReplaceAll(text, *p.Pattern.String, p.Content)
			})
		default:
			return unsupported(p.Type)
		}
	}
	return nil
}

func (b *builder) preTokenizer(parts []part) (err error) {
	alone := len(parts) == 1
	for _, p := range parts {
		switch {
		case b.byteLevel && !alone:
			err = unsupported(p.Type + " behind ByteLevel")
		case p.Type == "Split":
			err = b.split(p)
		case p.Type == "Digits" && p.Individual:
			err = b.cutBy(`\p{N}`)
		case p.Type == "Digits":
			err = b.cutBy(`\p{N}+`)
		case p.Type == "ByteLevel":
			err = b.bytes(p, alone)
		case p.Type == "Metaspace" && alone:
			err = b.metaspace(p)
		case p.Type == "Metaspace":
			err = unsupported("Metaspace beside others")
		default:
			err = unsupported(p.Type)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) cutBy(pattern string) error {
	s, err := bpe.NewSplitter(pattern)
	if err != nil {
		return err
	}
	b.splitters = append(b.splitters, s)
	return nil
}

func (b *builder) split(p part) error {
	switch {
	case p.Pattern.Regex == nil && p.Pattern.String == nil:
		return errors.New("the Split has no pattern")
	case p.Pattern.String != nil && b.takenAway(*p.Pattern.String):
		return nil
	case p.Pattern.String != nil:
		return unsupported("Split at a text")
	case p.Behavior == "Isolated":
	case p.Behavior == "Removed" && p.Invert && bpe.IsWellKnown(*p.Pattern.Regex):
		// What does not match is left out, and there is no such thing.
	default:
		return unsupported(fmt.Sprintf("Split with behavior %s, invert %t", p.Behavior, p.Invert))
	}
	return b.cutBy(*p.Pattern.Regex)
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

func (b *builder) bytes(p part, alone bool) error {
	b.byteLevel = true
	if p.PrefixSpace != nil && *p.PrefixSpace {
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
	if p.UseRegex == nil || *p.UseRegex {
		return b.cutBy(bpe.GPT2)
	}
	return nil
}

func (b *builder) metaspace(p part) error {
	scheme := cmp.Or(p.Scheme, "always")
	if p.Scheme == "" && p.PrefixSpace != nil && !*p.PrefixSpace { // of older files
		scheme = "never"
	}
	if scheme != "always" && scheme != "first" && scheme != "never" {
		return unsupported("prepend_scheme " + scheme)
	}
	if p.Replacement != "" && p.Replacement != "▁" {
		return unsupported("Metaspace with replacement " + p.Replacement)
	}
	b.pretend = func(text string, first bool) string {
		text = strings.ReplaceAll(text, " ", "▁")
		if (scheme == "always" || scheme == "first" && first) && !strings.HasPrefix(text, "▁") {
			text = "▁" + text
		}
		return text
	}
	if p.Split == nil || *p.Split {
		return b.cutBy(`▁[^▁]*`)
	}
	return nil
}

// postProcessor reads what stands before and behind a single prompt.
func (b *builder) postProcessor(parts []part) error {
	to := &b.leading
	for _, p := range parts {
		if p.Type != "TemplateProcessing" && p.Type != "ByteLevel" { // which moves offsets only
			return unsupported(p.Type)
		}
		for _, x := range p.Single {
			if x.SpecialToken == nil {
				to = &b.trailing
				continue
			}
			ids, ok := p.Special[x.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%q is not in its special_tokens", x.SpecialToken.ID)
			}
			*to = append(*to, ids.IDs...)
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
