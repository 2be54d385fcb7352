package workload

import (
	"time"

	"github.com/warmpath/warmpath/internal/kvindex"
)

// BaseHashSeed is the seed of block hashes for requests with neither adapter nor cache salt.
var BaseHashSeed = kvindex.SeedFor("", "", "")

// Segment is Len tokens of the stream Seed, beginning with token From.
type Segment struct {
	Seed      uint64
	From, Len int32
}

// Request is one request of a workload. The prompt is Text if that is not empty, else Segments.
type Request struct {
	// ID is unique in the workload and, over the wire, the request id that the engine's output follows.
	ID string
	// Session names the conversation; empty where the workload has none.
	Session string
	// Parent names the conversation that it was forked from; empty = none.
	Parent string
	// Turn is the place in the conversation, from 0.
	Turn int
	// At is the arrival since the start of the workload.
	At time.Duration
	// Segments is the prompt, in order. Turns of a conversation share memory: do not change it.
	Segments []Segment
	// Text is the prompt where the trace has real text.
	Text string
	// PromptTokens is the length of the prompt.
	PromptTokens int
	// OutputTokens is how many tokens to generate, at least 1.
	OutputTokens int
	// Prefix is the number of the shared prefix that the prompt begins with, or -1.
	Prefix int
}

// Hashes appends the chained block hashes of the prompt to dst, and returns the tokens after the last full
// block.
func (r *Request) Hashes(dst []uint64, blockSize int, seed kvindex.Seed) (hashes []uint64, tail []uint32) {
	tokens := r.Tokens()
	return kvindex.AppendTokens(dst, tokens, blockSize, seed), tokens[len(tokens)/blockSize*blockSize:]
}

// Tokens is the prompt as token ids.
func (r *Request) Tokens() []uint32 { return r.AppendTokens(make([]uint32, 0, r.PromptTokens)) }

// TokensBelow is the prompt as token ids of a model with a vocabulary of this size; 0 = any ids. Equal tokens stay
// equal, and prompts that differ differ still, but for a chance of one in the size of the vocabulary for each token.
func (r *Request) TokensBelow(vocabulary uint32) []uint32 {
	tokens := r.Tokens()
	if vocabulary > 0 {
		for i, t := range tokens {
			tokens[i] = uint32(mix(uint64(t)) % uint64(vocabulary))
		}
	}
	return tokens
}

// AppendTokens appends the prompt as token ids to dst.
func (r *Request) AppendTokens(dst []uint32) []uint32 {
	if r.Text != "" {
		return append(dst, TextTokens(r.Text)...)
	}
	for _, s := range r.Segments {
		dst = appendTokens(dst, s.Seed, int(s.From), int(s.Len))
	}
	return dst
}
