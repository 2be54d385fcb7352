package workload

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// BaseHashSeed is the seed of block hashes for requests with neither adapter nor cache salt.
const BaseHashSeed = 1337

// HashSeed is the seed of block hashes for an adapter and a cache salt; empty means none. Requests that
// differ in either share no hash.
func HashSeed(adapter, salt string) uint64 {
	seed := uint64(BaseHashSeed)
	if adapter != "" {
		seed += xxh3.HashSeed([]byte(adapter), 0)
	}
	if salt != "" {
		seed += xxh3.HashSeed([]byte(salt), 1)
	}
	return seed
}

// LocalHash is the hash of one block's tokens, given as little-endian uint32.
func LocalHash(tokens []byte, seed uint64) uint64 { return xxh3.HashSeed(tokens, seed) }

// ChainHash is the hash of a prefix, from that of the prefix without its last block and that block's own.
func ChainHash(prefix, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], prefix)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], BaseHashSeed)
}

// chain hashes a stream of tokens block by block.
type chain struct {
	out  []uint64
	buf  []byte // the block being filled
	fill int    // bytes of it that are filled
	last uint64 // hash of the prefix so far
	some bool   // last is set
	seed uint64
}

func newChain(dst []uint64, blockSize int, seed uint64) chain {
	return chain{out: dst, buf: make([]byte, 4*blockSize), seed: seed}
}

func (c *chain) full() {
	h := LocalHash(c.buf, c.seed)
	if c.some {
		h = ChainHash(c.last, h)
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

func (c *chain) text(s string) {
	for len(s) > 0 {
		n := copy(c.buf[c.fill:], s)
		s, c.fill = s[n:], c.fill+n
		if c.fill == len(c.buf) {
			c.full()
		}
	}
	if odd := c.fill % 4; odd != 0 { // zero bytes pad the last token
		clear(c.buf[c.fill : c.fill+4-odd])
		c.fill += 4 - odd
		if c.fill == len(c.buf) {
			c.full()
		}
	}
}

func (c *chain) tokens(ts []uint32) {
	for _, t := range ts {
		binary.LittleEndian.PutUint32(c.buf[c.fill:], t)
		if c.fill += 4; c.fill == len(c.buf) {
			c.full()
		}
	}
}

// tail is what follows the last full block.
func (c *chain) tail() []uint32 {
	if c.fill == 0 {
		return nil
	}
	ts := make([]uint32, c.fill/4)
	for i := range ts {
		ts[i] = binary.LittleEndian.Uint32(c.buf[4*i:])
	}
	return ts
}

// HashTokens appends the chained hashes of the full blocks of a tokenised prompt to dst, and returns the
// tokens after the last full block.
func HashTokens(dst []uint64, tokens []uint32, blockSize int, seed uint64) (hashes []uint64, tail []uint32) {
	c := newChain(dst, blockSize, seed)
	c.tokens(tokens)
	return c.out, c.tail()
}

// HashText is HashTokens for text, four bytes to a token.
func HashText(dst []uint64, text string, blockSize int, seed uint64) (hashes []uint64, tail []uint32) {
	c := newChain(dst, blockSize, seed)
	c.text(text)
	return c.out, c.tail()
}
