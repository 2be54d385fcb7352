// Package rendezvous computes what clients that share nothing must agree on: which
// block of a prompt distinguishes it, and the order of the replicas for that block.
//
// # Rule
//
// [Blocks] cuts a prompt into blocks whose hashes are chained, and hashes what
// follows the last full block as a block of its own, so that a short question
// behind a long system prompt distinguishes too. [Popularity] finds the first block
// that is in at most 1/(N+min(N, 6)) of the requests lately seen here, or in at most [Few] of
// them: the key. [Scorer] puts the replicas in the order of the key, by rendezvous
// hashing: the rendezvous order, the same for any number of clients. A key in more
// than that would be too much for one replica that has others beside it. [Reuse]
// measures what the common order gains.
//
// # Complexity
//
// A hash per block and per replica. Finding the key looks at O(log blocks) counters.
//
// # Guarantees
//
// Clients with the same fleet have the same order for the same key, in any
// language that has XXH3. When one of N replicas comes or goes, about 1/N of the
// keys move and no others. Popularity is a fixed table; nothing here grows with the
// prompts ever seen, and nothing but hashes is kept.
//
// # Source
//
// Rendezvous hashing: Thaler and Ravishankar, 1998. Count-min sketch: Cormode and
// Muthukrishnan, 2005, with the conservative update of Estan and Varghese, 2002.
package rendezvous

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/internal/router/state"
)

// orderSeed is part of the contract between clients, as is the whole of Score.
const orderSeed = 1337

// below1 is the greatest float64 below 1.
const below1 = 1 - 1./(1<<53)

// A Scorer computes the scores of replicas for one key. It belongs to one goroutine.
type Scorer struct {
	buf []byte // the key, then an id
}

// SetKey sets the key of the scores that follow.
func (s *Scorer) SetKey(key uint64) {
	s.buf = binary.LittleEndian.AppendUint64(s.buf[:0], key)
}

// Score is XXH3-64, seed 1337, of the key's 8 bytes little-endian followed by the
// id. The highest score is first in the rendezvous order. A home weight w of the replica
// makes it u^(1/w), where u is the score as a number between 0 and 1.
func (s *Scorer) Score(r *policy.Replica) uint64 {
	s.buf = append(s.buf[:8], r.ID...)
	score := xxh3.HashSeed(s.buf, orderSeed)
	if w := r.HomeWeight(); w != 0 && w != 1 {
		score = uint64(min(math.Pow((float64(score>>11)+0.5)/(1<<53), 1/w), below1) * (1 << 64))
	}
	return score
}

// Scores appends the scores of the replicas for a prompt's key.
func (s *Scorer) Scores(to []uint64, p *Prompt, replicas []*policy.Replica) []uint64 {
	s.SetKey(p.Key)
	for _, r := range replicas {
		to = append(to, s.Score(r))
	}
	return to
}

// SessionKey is the key of a session.
func SessionKey(session string) uint64 {
	return xxh3.HashStringSeed(state.SessionKey(session), orderSeed)
}

// Before reports whether score a of replica r stands before score b of o in the
// rendezvous order. Equal scores go by id.
func Before(a uint64, r *policy.Replica, b uint64, o *policy.Replica) bool {
	return a > b || a == b && r.ID < o.ID
}

// A Place names a replica by its place in the fleet that was prepared for, with the number
// of blocks it holds. It has no pointer for the collector to follow.
type Place struct{ At, Depth int32 }

// First returns the first replicas by score, in order, in the memory of top: as many as fit
// there. Behind them an order is searched, not sorted.
func First(top []Place, replicas []*policy.Replica, scores []uint64) []Place {
	top = top[:0]
	for i, r := range replicas {
		at := len(top)
		if at < cap(top) {
			top = top[:at+1]
		} else if at--; Before(scores[top[at].At], replicas[top[at].At], scores[i], r) {
			continue
		}
		for ; at > 0 && Before(scores[i], r, scores[top[at-1].At], replicas[top[at-1].At]); at-- {
			top[at] = top[at-1]
		}
		top[at] = Place{At: int32(i)}
	}
	return top
}

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
	return min(b.tokens(covered), b.Tokens)
}

// TokensPerBlock returns how many tokens a block is, at least 1.
func (b *Blocks) TokensPerBlock() int {
	if b.Length < b.Size {
		return max(b.Size/max(b.Unit, 1), 1)
	}
	return max(b.tokens(b.Size), 1)
}

// tokens returns a length in tokens. Of text the whole prompt's length in both units tells how many bytes a token is.
func (b *Blocks) tokens(length int) int {
	if b.Unit <= 1 || b.Length <= 0 {
		return length
	}
	return int(int64(length) * int64(b.Tokens) / int64(b.Length))
}

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
