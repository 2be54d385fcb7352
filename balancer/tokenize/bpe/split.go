package bpe

import (
	"fmt"

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
	return &Splitter{name: pattern, regex: re}, nil
}

// CoversAll reports whether a pattern is known to match all of any text, so that
// nothing is between its matches.
func CoversAll(pattern string) bool { return scanners[pattern] != nil }

// GPT2 is the split that ByteLevel does by itself.
func GPT2() *Splitter { return &Splitter{name: "gpt2", scan: gpt2{}} }

// split calls piece for each piece of the text in turn. seen is how far a scanner
// looked; it is past the end for a regular expression, which does not say.
func (s *Splitter) split(text string, piece func(text string, end, seen int) error) error {
	if s.scan != nil {
		far := 0
		for i := 0; i < len(text); {
			end, seen := s.scan.scan(text, i)
			far = max(far, seen)
			if err := piece(text[i:end], end, far); err != nil {
				return err
			}
			i = end
		}
		return nil
	}
	matches, err := s.regex.FindAllStringIndex(text, -1)
	if err != nil {
		return fmt.Errorf("the pattern %q: %w", s.name, err)
	}
	done := 0
	emit := func(end int) error {
		if end == done {
			return nil
		}
		part := text[done:end]
		done = end
		return piece(part, end, len(text)+1)
	}
	for _, m := range matches {
		if err := emit(m[0]); err != nil {
			return err
		}
		if err := emit(m[1]); err != nil {
			return err
		}
	}
	return emit(len(text))
}
