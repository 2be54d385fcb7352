package workload

import (
	"encoding/binary"
	"slices"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// BaseHashSeed is the seed of block hashes for requests with neither adapter nor cache salt.
var BaseHashSeed = kvindex.SeedFor("", "", "")

// chain hashes a stream of tokens block by block.
type chain struct {
	out  []uint64
	buf  []byte // the block being filled
	fill int    // bytes of it that are filled
	last uint64 // hash of the prefix so far
	some bool   // last is set
	seed kvindex.Seed
}

func newChain(dst []uint64, blockSize int, seed kvindex.Seed) chain {
	return chain{out: dst, buf: make([]byte, 4*blockSize), seed: seed}
}

func (c *chain) full() {
	h := kvindex.HashBlock(c.buf, c.seed)
	if c.some {
		h = kvindex.Chain(c.last, h)
	}
	c.out = append(c.out, h)
	c.last, c.some, c.fill = h, true, 0
}

func (c *chain) segment(s Segment) {
	from, left := int(s.From), int(s.Len)
	for left > 0 {
		n := min(left, (len(c.buf)-c.fill)/4)
		putTokens(c.buf[c.fill:], s.Seed, from, n)
		from, left, c.fill = from+n, left-n, c.fill+4*n
		if c.fill == len(c.buf) {
			c.full()
		}
	}
}

// tail is what follows the last full block.
func (c *chain) tail() []uint32 {
	ts := make([]uint32, c.fill/4)
	for i := range ts {
		ts[i] = binary.LittleEndian.Uint32(c.buf[4*i:])
	}
	return ts
}

// HashTokens appends the chained hashes of the full blocks of a tokenised prompt to dst, and returns the
// tokens after the last full block.
func HashTokens(dst []uint64, tokens []uint32, blockSize int, seed kvindex.Seed) (hashes []uint64, tail []uint32) {
	return kvindex.AppendTokens(dst, tokens, blockSize, seed), slices.Clone(tokens[len(tokens)/blockSize*blockSize:])
}

// HashText is HashTokens for text, four bytes to a token.
func HashText(dst []uint64, text string, blockSize int, seed kvindex.Seed) (hashes []uint64, tail []uint32) {
	block := TextBytesPerToken * blockSize
	if odd := len(text) % block; odd > block-TextBytesPerToken { // zero bytes pad the last token, and end a block
		text += "\x00\x00\x00"[:block-odd]
	}
	return kvindex.AppendText(dst, text, block, seed), TextTokens(text[len(text)/block*block:])
}
