package workload

import (
	"slices"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// BaseHashSeed is the seed of block hashes for requests with neither adapter nor cache salt.
var BaseHashSeed = kvindex.SeedFor("", "", "")

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
