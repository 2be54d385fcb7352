package tokenize

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/internal/requestkey"
)

const (
	// mark is how many bytes of a text lie between two places at which what began like it is looked for.
	mark = 16
	// maxAlike bounds the prompts that end between the same two places of the same text.
	maxAlike = 32
	// textStays is how long a conversation that began as text stays text.
	textStays = time.Hour
)

// past remembers whole prompts by their hashes, so that a prompt that goes on from one of them is found by its text. It
// has two generations, as [cache].
type past struct {
	budget int64
	now    func() time.Time

	mu             sync.Mutex // guards the fields below; taken alone
	bytes          int64      // of the younger generation
	younger, older map[key][]said
	texts          time.Time // until when a prompt that went as text is remembered
}

// said is a prompt.
type said struct {
	whole  key
	length int
	text   time.Time // until when those that go on from it are text; zero = it had tokens
}

func newPast(budget int64, now func() time.Time) *past {
	return &past{budget: budget, now: now, younger: make(map[key][]said)}
}

// hashed begins the hash of a text for a model.
func hashed(model string) *xxh3.Hasher {
	var h xxh3.Hasher
	_, _ = h.WriteString(model)
	_, _ = h.Write([]byte{0})
	return &h
}

// add remembers a prompt that had tokens, or one that is text until then.
func (p *past) add(model, text string, until time.Time) {
	if p.budget < entryOverhead {
		return
	}
	h := hashed(model)
	_, _ = h.WriteString(text[:len(text)/mark*mark])
	at := h.Sum128()
	_, _ = h.WriteString(text[len(text)/mark*mark:])
	s := said{h.Sum128(), len(text), until}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes += entryOverhead; p.bytes > p.budget/2 {
		p.older, p.younger, p.bytes = p.younger, make(map[key][]said), entryOverhead
	}
	alike := slices.DeleteFunc(slices.Clone(p.younger[at]), func(o said) bool { return o.whole == s.whole })
	if len(alike) == maxAlike {
		alike = alike[1:]
	}
	p.younger[at] = append(alike, s)
	if until.After(p.texts) {
		p.texts = until
	}
}

// find returns the longest prompt that this text begins with.
func (p *past) find(model, text string) (longest said, ok bool) {
	h := hashed(model)
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := 0; ; at += mark {
		k := h.Sum128()
		for _, known := range [][]said{p.older[k], p.younger[k]} {
			for _, s := range known {
				if s.length < at || s.length > len(text) || !requestkey.IsTurnEnd(text, s.length) {
					continue
				}
				rest := *h
				_, _ = rest.WriteString(text[at:s.length])
				if rest.Sum128() == s.whole {
					longest, ok = s, true
				}
			}
		}
		if at+mark > len(text) {
			return longest, ok
		}
		_, _ = h.WriteString(text[at : at+mark])
	}
}

// began reports whether a prompt goes on from a shorter one that went as text, and remembers that it does so too.
func (p *past) began(model, text string) bool {
	now := p.now()
	p.mu.Lock()
	texts := p.texts
	p.mu.Unlock()
	if !now.Before(texts) {
		return false
	}
	s, ok := p.find(model, text)
	if !ok || s.length == len(text) || !now.Before(s.text) {
		return false
	}
	p.add(model, text, s.text)
	return true
}

// before returns the length of the prompt that this one goes on from, if it had tokens.
func (p *past) before(model, text string) int {
	s, ok := p.find(model, text)
	if !ok || !s.text.IsZero() {
		return 0
	}
	return s.length
}

// unfinished returns tokens with what stands for a text behind them; without tokens none.
func unfinished(all [][]uint32, text string) []uint32 {
	if len(all) == 0 {
		return nil
	}
	return standIn(slices.Concat(all...), text)
}

// standIn returns tokens and behind them a number for each four bytes of a text that has none. The numbers are above the
// ids of all vocabularies, but for the last. Blocks of them have the hashes that blocks of the text have.
func standIn(tokens []uint32, text string) []uint32 {
	all := append(make([]uint32, 0, len(tokens)+(len(text)+3)/4), tokens...)
	for ; text != ""; text = text[min(4, len(text)):] {
		var four [4]byte
		copy(four[:], text)
		all = append(all, binary.LittleEndian.Uint32(four[:]))
	}
	return all
}
