package bpe

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2/v2"
)

// A Splitter cuts text in pieces. It does not change; any goroutine may use it.
type Splitter struct {
	name  string
	scan  scanner
	regex *regexp2.Regexp
}

// NewSplitter returns a Splitter for a pattern in the syntax of .NET and Oniguruma
// as far as they agree. Matches are pieces, and so is what is between them.
func NewSplitter(pattern string) (*Splitter, error) {
	if s := scanners[pattern]; s != nil {
		return &Splitter{name: pattern, scan: s}, nil
	}
	return newRegexSplitter(pattern)
}

func newRegexSplitter(pattern string) (*Splitter, error) {
	re, err := regexp2.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	re.MatchTimeout = matchTimeout
	return &Splitter{name: pattern, regex: re}, nil
}

// matchTimeout bounds the search for one match: a regular expression may try all ways there are.
const matchTimeout = time.Second

// CoversAll reports whether a pattern matches all of any text, so that
// nothing is between its matches.
func CoversAll(pattern string) bool { return scanners[pattern] != nil }

// GPT2 is the split that ByteLevel does by itself.
func GPT2() *Splitter { return &Splitter{name: "gpt2", scan: gpt2{}} }

// split calls piece for each piece of the text in turn, up to stop, where one ends.
func (s *Splitter) split(text string, stop int, piece func(text string) error) error {
	if s.scan == nil {
		return s.splitRegex(text[:stop], piece)
	}
	for i := 0; i < stop; {
		end := s.scan.scan(text, i)
		if err := piece(text[i:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// splitRegex takes one match after the other, so that piece can end it.
func (s *Splitter) splitRegex(text string, piece func(text string) error) (failed error) {
	runes := []rune(text)
	done, counted := 0, 0 // in bytes; in runes
	emit := func(upTo int) bool {
		end := done
		for ; counted < upTo; counted++ {
			end += utf8.RuneLen(runes[counted])
		}
		if end == done {
			return true
		}
		failed = piece(text[done:end])
		done = end
		return failed == nil
	}
	err := s.regex.FindRunesMatches(runes, 0, func(m regexp2.MatchView) bool {
		start, length, _ := m.GroupRange(0)
		return emit(start) && emit(start+length)
	})
	if err != nil { // it quotes the text, which must not be logged
		return fmt.Errorf("the pattern %q finds no next piece within %v", s.name, matchTimeout)
	}
	if failed == nil {
		emit(len(runes))
	}
	return failed
}
