package kvindex

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// chainSeed is Dynamo's XXH3_SEED: it chains blocks, and is the seed of a request without adapter and salt.
const chainSeed = 1337

// Seed separates prompts that must not share prefixes although their blocks are equal.
type Seed uint64

// SeedFor returns the seed for a model, an adapter (LoRA) and a cache salt; an empty string counts as absent.
// With an empty model it is the seed Dynamo uses.
func SeedFor(model, adapter, cacheSalt string) Seed {
	seed := uint64(chainSeed)
	for kind, name := range [...]string{adapter, cacheSalt, model} {
		if name != "" {
			seed += xxh3.HashStringSeed(name, uint64(kind))
		}
	}
	return Seed(seed)
}

// AppendTokens appends the chained hash of every full block of blockSize tokens to dst. Tokens behind the
// last full block are ignored; so is everything if blockSize < 1. It allocates only to grow dst, once.
func AppendTokens(dst []uint64, tokens []uint32, blockSize int, seed Seed) []uint64 {
	if blockSize < 1 || len(tokens) < blockSize {
		return dst
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens))
	if !littleEndian {
		bytes = encoded(tokens)
	}
	return appendBytes(dst, bytes, 4*blockSize, seed)
}

// AppendText appends the chained hash of every full block of blockBytes bytes of text to dst, under the
// same terms as [AppendTokens]. Blocks are bytes, not characters: a block may end inside a rune.
func AppendText(dst []uint64, text string, blockBytes int, seed Seed) []uint64 {
	if blockBytes < 1 || len(text) < blockBytes {
		return dst
	}
	return appendBytes(dst, unsafe.Slice(unsafe.StringData(text), len(text)), blockBytes, seed)
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func appendBytes(dst []uint64, b []byte, size int, seed Seed) []uint64 {
	n := len(b) / size
	dst = slices.Grow(dst, n)
	parent := HashBlock(b[:size], seed)
	dst = append(dst, parent)
	for i := 1; i < n; i++ {
		parent = Chain(parent, HashBlock(b[i*size:(i+1)*size], seed))
		dst = append(dst, parent)
	}
	return dst
}

// encoded is tokens as they are hashed, for machines whose memory order is another.
func encoded(tokens []uint32) []byte {
	b := make([]byte, 0, 4*len(tokens))
	for _, token := range tokens {
		b = binary.LittleEndian.AppendUint32(b, token)
	}
	return b
}

// HashBlock is the hash of one block by itself, and of a prompt's first: its text, or its tokens as
// little-endian uint32.
func HashBlock(block []byte, seed Seed) uint64 { return xxh3.HashSeed(block, uint64(seed)) }

// Chain is the hash of a block behind others: from that of the block before it, chained, and its own.
// With [HashBlock] it hashes prompts that come in pieces, as [AppendTokens] and [AppendText] do whole ones.
func Chain(parent, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:8], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], chainSeed)
}
