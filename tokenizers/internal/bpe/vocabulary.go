package bpe

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"
)

// A Vocabulary is what a Model is built from.
type Vocabulary struct {
	// Tokens maps a token's text, as the bytes it stands for, to its id.
	Tokens map[string]uint32
	// Merges are the pairs that become one token, the earliest first. nil: any two
	// neighbours whose texts together are a token do, the lowest id first.
	Merges [][2]string
	// Characters starts from characters and not from bytes. One that is no token
	// becomes its bytes' tokens <0x00> to <0xFF> with ByteFallback, else Unknown.
	Characters   bool
	ByteFallback bool
	// Unknown is the token of a character that is none; "" = it is left out.
	// FuseUnknown makes one of several in a row.
	Unknown     string
	FuseUnknown bool
	// WholeFirst takes a piece that is a token as it is, without merging.
	WholeFirst bool
}

// A Model encodes pieces. It does not change; any goroutine may use it.
type Model struct {
	bytes   [256]uint32 // the token of each byte, or of <0xXX>
	runes   map[rune]uint32
	pairs   map[uint64]uint64 // left<<32 | right → rank<<32 | id of what they become
	whole   map[string]uint32 // pieces that are one token
	longest int               // of whole, in bytes
	byByte  bool              // bytes is complete
	unknown *uint32           // of a character that is no token; nil = it is left out
	fuse    bool              // one of several in a row
	char    bool              // merging starts from characters
}

// NewModel returns a Model; the error names what is missing in the vocabulary.
func NewModel(v Vocabulary) (*Model, error) {
	m := &Model{char: v.Characters}
	if err := m.setSymbols(v); err != nil {
		return nil, err
	}
	if err := m.setPairs(v); err != nil {
		return nil, err
	}
	m.setWhole(v)
	return m, nil
}

func (m *Model) setSymbols(v Vocabulary) error {
	if v.Unknown != "" {
		id, ok := v.Tokens[v.Unknown]
		if !ok {
			return fmt.Errorf("the unknown token %q is not in the vocabulary", v.Unknown)
		}
		m.unknown, m.fuse = &id, v.FuseUnknown
	}
	m.byByte = !v.Characters || v.ByteFallback
	for b := range m.bytes {
		text := string([]byte{byte(b)})
		if v.Characters {
			text = fmt.Sprintf("<0x%02X>", b)
		}
		id, ok := v.Tokens[text]
		if !ok && !v.Characters {
			return fmt.Errorf("the byte %#02x is not in the vocabulary", b)
		}
		m.bytes[b], m.byByte = id, m.byByte && ok
	}
	if !v.Characters {
		return nil
	}
	m.runes = make(map[rune]uint32)
	for text, id := range v.Tokens {
		if r, n := utf8.DecodeRuneInString(text); n > 0 && n == len(text) && r != utf8.RuneError {
			m.runes[r] = id
		}
	}
	return nil
}

func (m *Model) setPairs(v Vocabulary) error {
	if v.Merges == nil {
		return m.impliedPairs(v)
	}
	m.pairs = make(map[uint64]uint64, len(v.Merges))
	for rank, merge := range v.Merges {
		left, okLeft := v.Tokens[merge[0]]
		right, okRight := v.Tokens[merge[1]]
		id, ok := v.Tokens[merge[0]+merge[1]]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merge %d: %q, %q and both together must be in the vocabulary", rank, merge[0], merge[1])
		}
		if _, ok := m.pairs[uint64(left)<<32|uint64(right)]; !ok { // the first of equals counts
			m.pairs[uint64(left)<<32|uint64(right)] = uint64(rank)<<32 | uint64(id)
		}
	}
	return nil
}

// impliedPairs makes a pair of every way to cut a token in two tokens.
func (m *Model) impliedPairs(v Vocabulary) error {
	if v.Characters {
		return errors.New("a vocabulary of characters needs merges")
	}
	m.pairs = make(map[uint64]uint64, 2*len(v.Tokens))
	for text, id := range v.Tokens {
		for cut := 1; cut < len(text); cut++ {
			left, ok := v.Tokens[text[:cut]]
			if !ok {
				continue
			}
			if right, ok := v.Tokens[text[cut:]]; ok {
				m.pairs[uint64(left)<<32|uint64(right)] = uint64(id)<<32 | uint64(id)
			}
		}
	}
	return nil
}

// setWhole finds the tokens that a piece of the same text becomes at once.
func (m *Model) setWhole(v Vocabulary) {
	whole := make(map[string]uint32, len(v.Tokens))
	s := scratch{ctx: context.Background()}
	var ids []uint32
	for text, id := range v.Tokens {
		if !v.WholeFirst {
			if ids, _ = m.merged(ids[:0], text, &s); len(ids) != 1 || ids[0] != id {
				continue
			}
		}
		whole[text] = id
		m.longest = max(m.longest, len(text))
	}
	m.whole = whole
}

// noMerge stands for two that do not merge; it is larger than any rank.
const noMerge = ^uint64(0)

// pair returns rank<<32 | id of what two neighbours become.
func (m *Model) pair(left, right uint32) uint64 {
	if val, ok := m.pairs[uint64(left)<<32|uint64(right)]; ok {
		return val
	}
	return noMerge
}
