package bpe

import (
	"slices"
	"strings"
	"unicode"
)

// A Special is a token that stands in the text as it is, and is never merged.
type Special struct {
	Text string
	ID   uint32
	// EatLeft and EatRight take the blanks before and behind it along.
	EatLeft, EatRight bool
	// Normalized is looked for in what the normaliser made of the text.
	Normalized bool
}

// specials finds special tokens.
type specials struct {
	byFirst [256][]Special // those that begin with a byte, the longest first
	firsts  string         // the bytes that one begins with
	longest int
}

func newSpecials(all []Special) *specials {
	s := &specials{}
	for _, t := range all {
		if t.Text == "" {
			continue
		}
		b := t.Text[0]
		if len(s.byFirst[b]) == 0 {
			s.firsts += string([]byte{b})
		}
		s.byFirst[b] = append(s.byFirst[b], t)
		s.longest = max(s.longest, len(t.Text))
	}
	for _, with := range s.byFirst {
		slices.SortStableFunc(with, func(a, b Special) int { return len(b.Text) - len(a.Text) })
	}
	return s
}

// find returns the next special token and where it is, with the blanks that it
// takes along; nil where there is none, and the end of the text.
func (s *specials) find(text string, from int) (t *Special, start, end int) {
	for i := from; i < len(text); i++ {
		if len(s.firsts) == 1 {
			k := strings.IndexByte(text[i:], s.firsts[0])
			if k < 0 {
				break
			}
			i += k
		}
		for j := range s.byFirst[text[i]] {
			t = &s.byFirst[text[i]][j]
			if strings.HasPrefix(text[i:], t.Text) {
				start, end = t.eat(text, from, i)
				return t, start, end
			}
		}
	}
	return nil, len(text), len(text)
}

func (t *Special) eat(text string, from, i int) (start, end int) {
	start, end = i, i+len(t.Text)
	if t.EatLeft {
		start = from + len(strings.TrimRightFunc(text[from:i], unicode.IsSpace))
	}
	if t.EatRight {
		end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
	}
	return start, end
}
