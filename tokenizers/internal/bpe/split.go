package bpe

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// Patterns of well-known encodings.
const (
	// GPT2 is that of GPT-2, and ByteLevel's own.
	GPT2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	// Cl100k is that of OpenAI's cl100k_base, in which blanks at the end are one piece.
	Cl100k = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+`
	// O200k is that of OpenAI's o200k_base, Llama 4 and gpt-oss.
	O200k = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`

	llama3 = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// qwen is that of Qwen 2 and 3.
	qwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	// tekken is Mistral's.
	tekken = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// wellKnown match all of any text, and cut it between a line end and a letter, number or sign behind that, whatever
// stands before and behind them.
var wellKnown = []string{GPT2, Cl100k, O200k, llama3, qwen, tekken}

// A Splitter cuts text in pieces. It does not change; any goroutine may use it.
type Splitter struct {
	pattern string
	regex   *regexp2.Regexp
}

// NewSplitter returns a Splitter for a pattern in the syntax of .NET and Oniguruma
// as far as they agree. Matches are pieces, and so is what is between them.
func NewSplitter(pattern string) (*Splitter, error) {
	re, err := regexp2.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	if !IsWellKnown(pattern) {
		re.MatchTimeout = matchTimeout
	}
	return &Splitter{pattern, re}, nil
}

// matchTimeout bounds the search for one match: a regular expression may try all ways there are. The well-known ones take
// time in proportion to the text.
const matchTimeout = time.Second

// IsWellKnown reports whether a pattern is that of a well-known encoding. Such a pattern matches all of any text: nothing
// is between its matches.
func IsWellKnown(pattern string) bool { return slices.Contains(wellKnown, pattern) }

// split calls piece for each piece of the text in turn, up to stop, where one ends. It takes one match after the other, so
// that piece can end it.
func (s *Splitter) split(text string, stop int, piece func(text string) error) (failed error) {
	runes := []rune(text)
	done, counted := 0, 0 // in bytes; in runes
	emit := func(upTo int) bool {
		end := done
		for ; counted < upTo; counted++ {
			end += utf8.RuneLen(runes[counted])
		}
		if end > done {
			failed = piece(text[done:end])
			done = end
		}
		return failed == nil && done < stop
	}
	err := s.regex.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		start, length, _ := m.GroupRange(0)
		return emit(start) && emit(start+length)
	})
	if err != nil { // it quotes the text, which must not be logged
		return fmt.Errorf("the pattern %q finds no next piece within %v", s.pattern, matchTimeout)
	}
	if failed == nil && done < stop {
		emit(len(runes))
	}
	return failed
}
