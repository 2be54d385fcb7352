package tokenize

import (
	"context"
	"slices"

	"github.com/zeebo/xxh3"
)

// blockBytes is how much text is between two places from which encoding may be taken
// up again.
const blockBytes = 4 << 10

// stepsOf returns the keys of a text: of its first block, its first two and so on, and
// of all of it.
func stepsOf(text string, special bool) []key {
	ks := make([]key, 0, len(text)/blockBytes+1)
	var h xxh3.Hasher
	kind := "-"
	if special {
		kind = "+"
	}
	_, _ = h.WriteString(kind)
	for len(text) >= blockBytes {
		_, _ = h.WriteString(text[:blockBytes])
		ks = append(ks, h.Sum128())
		text = text[blockBytes:]
	}
	_, _ = h.WriteString(text)
	_, _ = h.WriteString("\xFF") // no text has it, so no block's end has the key of a whole text
	return append(ks, h.Sum128())
}

// resumed returns the tokens of a text: those that are remembered for how it begins,
// and the rest encoded anew.
func (p *Prompts) resumed(ctx context.Context, text string, special bool) ([]uint32, error) {
	ks := stepsOf(text, special)
	known := p.cache.get(ks...)
	if len(known) == len(ks) {
		return join(known, nil), nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.flights.do(ctx, ks[len(ks)-1], func() ([]uint32, error) {
		rest, err := p.encode(ctx, text, special, ks, known)
		if err != nil {
			return nil, err
		}
		return join(known, rest), nil
	})
}

// join puts together what is remembered of a text and the rest.
func join(known []*entry, rest []uint32) []uint32 {
	switch {
	case len(known) == 0:
		return rest
	case len(known) == 1 && len(rest) == 0:
		return known[0].tokens
	}
	n := len(rest)
	for _, e := range known {
		n += len(e.tokens)
	}
	all := make([]uint32, 0, n)
	for _, e := range known {
		all = append(all, e.tokens...)
	}
	return append(all, rest...)
}

// encode returns the tokens behind those that are known, and remembers them.
func (p *Prompts) encode(ctx context.Context, text string, special bool, ks []key, known []*entry) ([]uint32, error) {
	var before, after []uint32
	if special {
		before, after = p.resumer.Around()
	}
	from := 0
	if n := len(known); n > 0 {
		from, before = known[n-1].at, nil
	}
	rest := make([]uint32, 0, len(before)+(len(text)-from)/3+len(after))
	rest = append(rest, before...)
	var cuts []Cut
	rest, err := p.resumer.Encode(ctx, rest, text, from, &cuts)
	if err != nil {
		return nil, err
	}
	rest = append(rest, after...)
	p.remember(text, ks[len(known):], len(known), from, len(before), rest, cuts)
	return rest, nil
}

// remember puts away the tokens of each step that was not known: from the last cut of
// the one before to its own last, and for the whole text to the end. first is the
// number of the steps before, which reach up to from in the text; lead of the tokens
// stand before it.
func (p *Prompts) remember(text string, ks []key, first, from, lead int, tokens []uint32, cuts []Cut) {
	news := make([]*entry, 0, len(ks))
	done, at := 0, from
	for i, k := range ks[:len(ks)-1] {
		end := (first + i + 1) * blockBytes
		upTo := max(done, lead)
		for len(cuts) > 0 && cuts[0].At <= end {
			if cuts[0].Seen <= end {
				upTo, at = lead+cuts[0].Tokens, cuts[0].At
			}
			cuts = cuts[1:]
		}
		news = append(news, &entry{key: k, at: at, tokens: slices.Clone(tokens[done:upTo])})
		done = upTo
	}
	news = append(news, &entry{key: ks[len(ks)-1], at: len(text), tokens: slices.Clone(tokens[done:])})
	for _, e := range slices.Backward(news) { // the first is of use to most, and so forgotten last
		p.cache.put(e)
	}
}
