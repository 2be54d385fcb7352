// Package bpe turns text into token ids by byte-pair encoding. It is the engine
// behind the readers of tokenizer.json files and of tiktoken's encodings.
//
// The rule. Special tokens are found first, the leftmost, of those the longest.
// What is between them is normalised, cut into pieces, and in each piece the two
// neighbours whose merge has the lowest rank become one, the leftmost of equals,
// until no two merge.
//
// Complexity. Linear in the text; a piece of n symbols costs n log n. The context is
// looked at every 16 thousand symbols. Pieces are matches of regular expressions. Those
// of well-known encodings take time in proportion to the text; in others the search for
// one match may take a second.
//
// Guarantees. An Encoder does not change: any number of goroutines may use it.
// What it cannot do as the original does is refused when it is built, not done
// nearly so.
//
// Sources. Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with
// Subword Units (2016); the file format of Hugging Face's tokenizers; OpenAI's
// tiktoken.
package bpe

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
	"weak"

	"golang.org/x/text/unicode/norm"

	"github.com/warmpath/warmpath/balancer/dialect"
	"github.com/warmpath/warmpath/internal/tokenize"
)

// Config is what an Encoder is made of. Only Model is needed.
type Config struct {
	Model *Model
	// Specials are looked for in the text before anything else is done with it.
	Specials []Special
	// NFC brings text into Unicode's normal form C.
	NFC bool
	// Rewrite changes what is between special tokens; first is true for what the
	// text begins with.
	Rewrite func(text string, first bool) string
	// Splitters cut it, each what the one before it has cut; none: it is one piece.
	Splitters []*Splitter
	// Before and After are put around every text.
	Before, After []uint32
}

// segmentBytes is the least length of a segment.
const segmentBytes = 4 << 10

var _ tokenize.Segmenter = (*Encoder)(nil)

// An Encoder turns text into token ids. Safe for use by many goroutines.
type Encoder struct {
	c       Config
	raw     *specials // found in the text itself
	late    *specials // found in what the normaliser made of it; nil = none
	whole   bool      // a special token takes blanks along, so a text is one segment
	atLines bool      // segments end at line ends, else behind special tokens
}

// NewEncoder returns an Encoder.
func NewEncoder(c Config) *Encoder {
	e := &Encoder{c: c}
	var raw, late []Special
	for _, s := range c.Specials {
		e.whole = e.whole || s.EatLeft || s.EatRight
		if s.Normalized && (c.NFC || c.Rewrite != nil) {
			late = append(late, s)
		} else {
			raw = append(raw, s)
		}
	}
	e.raw = newSpecials(raw)
	if len(late) > 0 {
		e.late = newSpecials(late)
	}
	e.atLines = c.Rewrite == nil && e.late == nil && len(c.Splitters) == 1 && IsWellKnown(c.Splitters[0].pattern) &&
		!slices.ContainsFunc(raw, func(s Special) bool { return strings.Contains(s.Text, "\n") })
	return e
}

// Cut implements [tokenize.Segmenter].
func (e *Encoder) Cut(text string, from int) int {
	i := from + segmentBytes
	switch {
	case e.whole:
		return len(text)
	case e.atLines:
		for i < len(text) {
			n := strings.IndexByte(text[i:], '\n')
			if n < 0 {
				break
			}
			if i += n + 1; e.beginsPiece(text, i) {
				return i
			}
		}
		return len(text)
	}
	end := from
	for end < i && end < len(text) {
		_, _, end = e.raw.find(text, end)
	}
	if end+e.raw.longest > len(text) { // a longer one could still come
		return len(text)
	}
	return end
}

// beginsPiece reports whether a line that begins at i begins a piece: it begins with a letter, number or sign that is no
// part of a special token, and the pattern is a well-known one. In some of these a slash follows a line end.
func (e *Encoder) beginsPiece(text string, i int) bool {
	r, _ := utf8.DecodeRuneInString(text[i:])
	sign := r > ' ' && r < utf8.RuneSelf && r != '/'
	return (sign || unicode.IsLetter(r) || unicode.IsNumber(r)) && len(e.raw.byFirst[text[i]]) == 0
}

// Around returns what is put before and behind every text.
func (e *Encoder) Around() (before, after []uint32) { return e.c.Before, e.c.After }

// Tokens implements [dialect.Tokenizer] for text.
func (e *Encoder) Tokens(ctx context.Context, in dialect.TokenizerInput) ([]uint32, error) {
	tokens, err := e.Encode(ctx, nil, in.Text, 0, len(in.Text))
	if err != nil || !in.Special {
		return tokens, err
	}
	return slices.Concat(e.c.Before, tokens, e.c.After), nil
}

// Encode implements [tokenize.Segmenter]. It fails if the context ends or the text is not UTF-8.
func (e *Encoder) Encode(ctx context.Context, dst []uint32, text string, from, to int) ([]uint32, error) {
	if !utf8.ValidString(text[from:to]) {
		return dst, tokenize.ErrNotText
	}
	w := &work{e: e, s: scratch{ctx: ctx}, dst: dst}
	for i := from; i < to; {
		t, start, end := e.raw.find(text[:min(len(text), to+e.raw.longest)], i)
		if start = min(start, to); start > i {
			behind := 0 // of the character that the last piece is cut by
			if start == to && e.atLines {
				_, behind = utf8.DecodeRuneInString(text[to:])
			}
			if err := w.between(text[i:start+behind], start-i, i == 0); err != nil {
				return dst, err
			}
		}
		if t == nil || start == to {
			break
		}
		w.dst = append(w.dst, t.ID)
		i = end
	}
	return w.dst, nil
}

// work is one call of Encode.
type work struct {
	e   *Encoder
	s   scratch
	dst []uint32
}

// between encodes what is between two special tokens, up to stop: a segment may end there. first is true for what the
// text begins with.
func (w *work) between(text string, stop int, first bool) (err error) {
	c := &w.e.c
	if c.NFC && !norm.NFC.IsNormalString(text[:stop]) {
		normal := norm.NFC.String(text[:stop])
		text, stop = normal+text[stop:], len(normal)
	}
	if c.Rewrite != nil {
		text = c.Rewrite(text, first)
		stop = len(text)
	}
	if w.e.late == nil {
		return w.pieces(text, stop, c.Splitters)
	}
	for i := 0; i < len(text); {
		t, from, to := w.e.late.find(text, i)
		if from > i {
			if err := w.pieces(text[i:from], from-i, c.Splitters); err != nil {
				return err
			}
		}
		if t != nil {
			w.dst = append(w.dst, t.ID)
		}
		i = to
	}
	return nil
}

// pieces cuts a text with the splitters that are left and encodes the pieces up to stop.
func (w *work) pieces(text string, stop int, splitters []*Splitter) (err error) {
	if len(splitters) == 0 {
		w.dst, err = w.e.c.Model.append(w.dst, text[:stop], &w.s)
		return err
	}
	return splitters[0].split(text, stop, func(piece string) error { return w.pieces(piece, len(piece), splitters[1:]) })
}

// InUse holds the Encoders that are in use, by what they are made of. The zero value is ready.
type InUse struct {
	mu    sync.Mutex // guards byKey; held while one is made, so that it is made once
	byKey map[string]weak.Pointer[Encoder]
}

// Open returns the Encoder of a key, if it is in use, or the one that build makes.
func (u *InUse) Open(k string, build func() (*Encoder, error)) (*Encoder, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if e := u.byKey[k].Value(); e != nil {
		return e, nil
	}
	e, err := build()
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(u.byKey, func(_ string, p weak.Pointer[Encoder]) bool { return p.Value() == nil })
	if u.byKey == nil {
		u.byKey = make(map[string]weak.Pointer[Encoder])
	}
	u.byKey[k] = weak.Make(e)
	return e, nil
}
