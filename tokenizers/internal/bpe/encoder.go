package bpe

import (
	"context"
	"slices"
	"sync"
	"unicode/utf8"

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

// cutEvery is how far apart cuts are at least, in bytes.
const cutEvery = 256

var _ tokenize.Resumer = (*Encoder)(nil)

// An Encoder turns text into token ids. Safe for use by many goroutines.
type Encoder struct {
	c        Config
	raw      *specials // found in the text itself
	late     *specials // found in what the normaliser made of it; nil = none
	noCuts   bool      // something looks further than a cut allows for
	innerCut bool      // cuts between pieces too, not only at special tokens
	scratch  sync.Pool
}

// NewEncoder returns an Encoder.
func NewEncoder(c Config) *Encoder {
	e := &Encoder{c: c}
	e.scratch.New = func() any { return new(scratch) }
	var raw, late []Special
	for _, s := range c.Specials {
		e.noCuts = e.noCuts || s.EatLeft || s.EatRight
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
	e.innerCut = !e.noCuts && c.Rewrite == nil && e.late == nil && len(c.Splitters) == 1 && c.Splitters[0].scan != nil
	return e
}

// Around returns what is put before and behind every text.
func (e *Encoder) Around() (before, after []uint32) { return e.c.Before, e.c.After }

// Tokens implements [dialect.Tokenizer] for text.
func (e *Encoder) Tokens(ctx context.Context, in dialect.TokenizerInput) ([]uint32, error) {
	tokens, err := e.Encode(ctx, nil, in.Text, 0, nil)
	if err != nil || !in.Special {
		return tokens, err
	}
	return slices.Concat(e.c.Before, tokens, e.c.After), nil
}

// Encode appends the tokens of text[from:] to dst, without those around it; from is
// 0 or that of a Cut of a text which began alike. If cuts is not nil, those of the
// text are appended to it; their Tokens count from from. It fails if the context
// ends or the text is not UTF-8.
func (e *Encoder) Encode(ctx context.Context, dst []uint32, text string, from int, cuts *[]tokenize.Cut) ([]uint32, error) {
	if !utf8.ValidString(text) {
		return dst, tokenize.ErrNotText
	}
	if e.noCuts {
		cuts = nil
	}
	s := e.scratch.Get().(*scratch)
	s.ctx, s.done = ctx, 0
	defer e.keep(s)
	w := &work{e: e, s: s, text: text, dst: dst, base: len(dst), from: from, cuts: cuts}
	for at := from; at < len(text); {
		t, start, end := e.raw.find(text, at)
		if start > at {
			if err := w.between(at, start); err != nil {
				return dst, err
			}
		}
		if t == nil {
			break
		}
		w.dst = append(w.dst, t.ID)
		at = end
		w.cut(at, at)
	}
	return w.dst, nil
}

// keep puts a scratch away, unless a long piece has made it large.
func (e *Encoder) keep(s *scratch) {
	if s.ctx = nil; cap(s.ids) <= maxKept {
		e.scratch.Put(s)
	}
}

// work is one call of Encode.
type work struct {
	e       *Encoder
	s       *scratch
	text    string
	dst     []uint32
	base    int
	from    int
	cuts    *[]tokenize.Cut // nil = none are wanted
	lastCut int
}

// cut notes a place that may be a cut, where seen bytes were looked at so far.
func (w *work) cut(at, seen int) {
	if w.cuts == nil || at-w.lastCut < cutEvery || at <= w.from {
		return
	}
	// A special token that begins before that must be seen whole: it ends what the
	// scanner looks at.
	seen = max(seen, at) + w.e.raw.longest
	if w.e.c.NFC {
		// What follows could still combine with the last that was seen, or at the cut:
		// not across ASCII.
		if seen++; seen > len(w.text) || w.text[at] >= utf8.RuneSelf || w.text[seen-1] >= utf8.RuneSelf {
			return
		}
	}
	if seen > len(w.text) {
		return
	}
	w.lastCut = at
	*w.cuts = append(*w.cuts, tokenize.Cut{At: at, Tokens: len(w.dst) - w.base, Seen: seen})
}

// between encodes what is between two special tokens.
func (w *work) between(start, end int) error {
	c := &w.e.c
	text := w.text[start:end]
	same := true
	if c.NFC && !norm.NFC.IsNormalString(text) {
		var err error
		if text, err = w.normal(text); err != nil {
			return err
		}
		same = false
	}
	if c.Rewrite != nil {
		text, same = c.Rewrite(text, start == 0), false
	}
	if w.e.late == nil {
		return w.pieces(text, c.Splitters, start, same && w.e.innerCut)
	}
	for at := 0; at < len(text); {
		t, from, to := w.e.late.find(text, at)
		if from > at {
			if err := w.pieces(text[at:from], c.Splitters, 0, false); err != nil {
				return err
			}
		}
		if t != nil {
			w.dst = append(w.dst, t.ID)
		}
		at = to
	}
	return nil
}

// normal returns a text in normal form C.
func (w *work) normal(text string) (string, error) {
	var out []byte
	for len(text) > 0 {
		n := min(len(text), check)
		for n < len(text) && !utf8.RuneStart(text[n]) {
			n++
		}
		out = norm.NFC.AppendString(out, text[:n])
		if err := w.s.step(n); err != nil {
			return "", err
		}
		text = text[n:]
	}
	return string(out), nil
}

// pieces cuts a text with the splitters that are left and encodes the pieces. It
// begins at start of the whole text if cuts are wanted.
func (w *work) pieces(text string, splitters []*Splitter, start int, cuts bool) error {
	if len(splitters) == 0 {
		var err error
		w.dst, err = w.e.c.Model.append(w.dst, text, w.s)
		return err
	}
	return splitters[0].split(text, func(piece string, end, seen int) error {
		if err := w.pieces(piece, splitters[1:], 0, false); err != nil {
			return err
		}
		if cuts && end < len(text) {
			w.cut(start+end, start+seen)
		}
		return nil
	})
}
