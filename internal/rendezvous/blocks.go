package rendezvous

import (
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
)

// short is how many blocks need no memory of their own.
const short = 8

// A Grain is the size of a block: bytes of text, or tokens where the prompt is
// token ids.
type Grain struct{ Bytes, Tokens int }

// GrainOf is the grain with blocks of so many tokens, and of the bytes that stand for them.
func GrainOf(tokens int) Grain { return Grain{Bytes: tokens * policy.BytesPerToken, Tokens: tokens} }

// Blocks are a prompt cut into blocks. They must not be copied: a short prompt's
// hashes stand inside.
type Blocks struct {
	Hashes []uint64 // chained, with what follows the last full block as the last
	Size   int      // bytes or tokens per block
	Length int      // of the prompt, in the same unit
	Unit   int      // bytes, or 1, per token
	Tokens int      // of the prompt

	few [short]uint64
}

// Cut cuts and hashes a prompt of so many tokens. What follows its last full block
// is a block of its own. A prompt that came hashed may be of any grain: blocks of another
// size are found where they end a superblock, and give the same order in every client.
func (b *Blocks) Cut(prompt policy.Prompt, tokens int, g Grain, seed kvindex.Seed) {
	b.Tokens = tokens
	if h := prompt.Hashed; h != nil {
		b.Hashes, b.Size, b.Length, b.Unit = h.Hashes, h.Size, h.Length, h.Unit
		return
	}
	b.Size, b.Length, b.Unit = g.Tokens, len(prompt.Tokens), 1
	if b.Length == 0 {
		b.Size, b.Length, b.Unit = g.Bytes, len(prompt.Text), policy.BytesPerToken
	}
	full := b.Full()
	b.Hashes = slices.Grow(b.few[:0], full+1)
	if from := full * b.Size; b.Unit == 1 {
		b.Hashes = kvindex.AppendTokens(b.Hashes, prompt.Tokens, b.Size, seed)
		b.Hashes = kvindex.AppendTokens(b.Hashes, prompt.Tokens[from:], b.Length-from, seed)
	} else {
		b.Hashes = kvindex.AppendText(b.Hashes, prompt.Text, b.Size, seed)
		b.Hashes = kvindex.AppendText(b.Hashes, prompt.Text[from:], b.Length-from, seed)
	}
	if len(b.Hashes) > full && full > 0 {
		b.Hashes[full] = kvindex.Chain(b.Hashes[full-1], b.Hashes[full])
	}
}

// Full returns how many full blocks the prompt has.
func (b *Blocks) Full() int { return b.Length / max(b.Size, 1) }

// Covered returns how much of the prompt so many blocks are, in the prompt's unit.
func (b *Blocks) Covered(depth int) int { return min(depth*b.Size, b.Length) }

// CoveredTokens returns how many tokens so many blocks are.
func (b *Blocks) CoveredTokens(depth int) int {
	covered := b.Covered(depth)
	if covered == b.Length && depth > 0 {
		return b.Tokens
	}
	return min(covered/max(b.Unit, 1), b.Tokens)
}

// TokensPerBlock returns how many tokens a block is, at least 1.
func (b *Blocks) TokensPerBlock() int { return max(b.Size/max(b.Unit, 1), 1) }

// Hashed returns the prompt as these blocks, which share their memory; nil where there are none.
func (b *Blocks) Hashed() *policy.Hashed {
	if len(b.Hashes) == 0 {
		return nil
	}
	return &policy.Hashed{Hashes: b.Hashes, Size: b.Size, Unit: b.Unit, Length: b.Covered(len(b.Hashes))}
}

// PerSuperblock returns how many blocks of a size, in a unit of so many per token, a
// superblock has; 0 if they do not divide it.
func PerSuperblock(size, unit int) int {
	if size < 1 || policy.SuperblockTokens*unit%size != 0 {
		return 0
	}
	return policy.SuperblockTokens * unit / size
}

// Superblocks appends the hashes that end a superblock, and returns how many blocks one
// has; 0 where blocks do not divide it.
func (b *Blocks) Superblocks(to []uint64) (hashes []uint64, per int) {
	if per = PerSuperblock(b.Size, b.Unit); per == 0 {
		return to, 0
	}
	for end := per; end <= b.Full(); end += per {
		to = append(to, b.Hashes[end-1])
	}
	return to, per
}
