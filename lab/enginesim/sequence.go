package enginesim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/kvindex"
	"github.com/warmpath/warmpath/lab/workload"
)

// Request is a prompt to run, as block hashes. FromWorkload and FromTokens make one.
type Request struct {
	// ID is for the caller; the engine does not look at it.
	ID string
	// PromptTokens is the length of the prompt, at least 1.
	PromptTokens int
	// OutputTokens is how many tokens to generate, at least 1.
	OutputTokens int
	// Hashes are the chained hashes of the prompt's full blocks. The engine keeps the slice and does not
	// change it.
	Hashes []uint64
	// Tail is the prompt's tokens after its last full block.
	Tail []uint32
	// Prompt is all tokens of the prompt, for a Listener that needs them; nil where none does. Adapter and CacheSalt
	// are what HashSeed was made of, for the same reader.
	Prompt             []uint32
	Adapter, CacheSalt string
	// OutputSeed makes the output: token i is workload.Token(OutputSeed, OutputFrom+i). OutputFrom is how many tokens of
	// that output end the prompt, which the request goes on with.
	OutputSeed uint64
	OutputFrom int
	// HashSeed hashes the blocks of output; 0 means workload.BaseHashSeed.
	HashSeed kvindex.Seed
	// BypassCache computes the whole prompt; its blocks are cached nevertheless.
	BypassCache bool
	// Hold keeps the blocks after the last token until Release, for another engine: the prefill leg of a request.
	Hold bool
	// Received is how many tokens of the prompt another engine has computed, from the first on: all for a decode leg, 0
	// for a request that is served whole. Once admitted, what is not cached here comes within Transfer, in proportion if
	// a part is cached; the rest is computed here, one token at least. Of a prompt that the other engine has in part,
	// less than recomputeBelow tokens do not come.
	Received int
	Transfer time.Duration
	// Data is for the caller.
	Data any
}

// FromWorkload makes the request that an engine with this block size runs for a request of a workload.
func FromWorkload(r *workload.Request, blockSize int) Request {
	return FromTokens(r.ID, r.Tokens(), r.OutputTokens, blockSize, 0)
}

// FromTokens makes a request of token ids; hashSeed is kvindex.SeedFor's, 0 that of neither adapter nor salt.
func FromTokens(id string, tokens []uint32, output, blockSize int, hashSeed kvindex.Seed) Request {
	hashSeed = cmp.Or(hashSeed, workload.BaseHashSeed)
	hashes := kvindex.AppendTokens(make([]uint64, 0, len(tokens)/blockSize), tokens, blockSize, hashSeed)
	seed := workload.OutputSeed(id)
	return Request{
		ID: id, PromptTokens: len(tokens), OutputTokens: output, Hashes: hashes,
		Tail: slices.Clone(tokens[len(hashes)*blockSize:]), OutputSeed: seed, OutputFrom: outputIn(tokens, seed),
		HashSeed: hashSeed,
	}
}

// outputIn returns how many tokens of the output with a seed end a prompt.
func outputIn(tokens []uint32, seed uint64) int {
	first := workload.Token(seed, 0)
	for at, t := range tokens {
		for i := 0; t == first && tokens[at+i] == workload.Token(seed, i); i++ {
			if at+i == len(tokens)-1 {
				return i + 1
			}
		}
	}
	return 0
}

func (r *Request) check(c *Config) error {
	switch {
	case r.PromptTokens < 1:
		return fmt.Errorf("%w: the prompt is empty", ErrInvalid)
	case r.OutputTokens < 1:
		return fmt.Errorf("%w: %d output tokens", ErrInvalid, r.OutputTokens)
	case r.PromptTokens > c.MaxModelLen || r.OutputTokens > c.MaxModelLen-r.PromptTokens:
		return fmt.Errorf("%w: %d prompt and %d output tokens, the most is %d", ErrTooLong, r.PromptTokens,
			r.OutputTokens, c.MaxModelLen)
	case r.Received < 0 || r.Received > r.PromptTokens:
		return fmt.Errorf("%w: %d of %d tokens of the prompt come", ErrInvalid, r.Received, r.PromptTokens)
	case len(r.Hashes) != r.PromptTokens/c.BlockSize || len(r.Tail) != r.PromptTokens%c.BlockSize:
		return fmt.Errorf("%w: %d hashes and %d more tokens are not %d tokens in blocks of %d",
			ErrInvalid, len(r.Hashes), len(r.Tail), r.PromptTokens, c.BlockSize)
	}
	return nil
}

// state of a Sequence.
type state uint8

const (
	waiting state = iota
	running
	finished
	aborted
)

// Sequence is a request inside an engine.
type Sequence struct {
	req       Request
	size      int // of a block, in tokens
	result    Result
	blocks    []int32  // pinned blocks, from the first token on
	outHashes []uint64 // hashes of the blocks after the prompt's full ones
	computed  int      // tokens whose KV is computed
	chunk     int      // tokens that the pass under way computes
	generated int
	found     int // leading blocks cached, or going to be, when it was submitted
	state     state
	decoding  bool // prefill is complete
	admitted  bool // has been admitted before

	arrives time.Duration // when its KV has come
}

// Result is what became of a request. Times are the engine's.
type Result struct {
	// Arrival, FirstToken and End are when it was submitted, gave its first token, and ended or was aborted.
	Arrival, FirstToken, End time.Duration
	// PromptTokens is the length of the prompt, CachedTokens how much of it was found in the cache when it
	// was first admitted.
	PromptTokens, CachedTokens int
	// ReceivedTokens is how much of the prompt came from another engine.
	ReceivedTokens int
	// ComputedTokens counts tokens computed in prefill, again after a preemption included.
	ComputedTokens int
	// OutputTokens is how many tokens it gave.
	OutputTokens int
	// Preemptions is how often it was preempted.
	Preemptions int
	// Aborted: it did not end by itself.
	Aborted bool
}

// TTFT is the time to the first token, 0 if there was none.
func (r *Result) TTFT() time.Duration { return max(r.FirstToken-r.Arrival, 0) }

// TPOT is the mean time per output token after the first, 0 if there was only one.
func (r *Result) TPOT() time.Duration {
	if r.OutputTokens < 2 {
		return 0
	}
	return (r.End - r.FirstToken) / time.Duration(r.OutputTokens-1)
}

// Request is what was submitted.
func (s *Sequence) Request() *Request { return &s.req }

// Result is what is known so far; final once the sequence has ended.
func (s *Sequence) Result() Result { return s.result }

// Token is token i of the output.
func (s *Sequence) Token(i int) uint32 { return workload.Token(s.req.OutputSeed, s.req.OutputFrom+i) }

// Tokens are those of the blocks that were stored. It is false if their prompt is known by its hashes only.
func (e *KVEvent) Tokens() (all []uint32, known bool) {
	s := e.Seq
	from, to := e.First*s.size, (e.First+len(e.Hashes))*s.size
	if from < s.req.PromptTokens {
		if s.req.Prompt == nil {
			return nil, false
		}
		all = slices.Clone(s.req.Prompt[from:min(to, s.req.PromptTokens)])
	}
	for i := from + len(all); i < to; i++ {
		all = append(all, s.Token(i-s.req.PromptTokens))
	}
	return all, true
}

// tokens is the length of prompt and output so far.
func (s *Sequence) tokens() int { return s.req.PromptTokens + s.generated }

// hash is the chained hash of block i, which is full. Blocks are asked for in order.
func (s *Sequence) hash(i int) uint64 {
	if i < len(s.req.Hashes) {
		return s.req.Hashes[i]
	}
	if j := i - len(s.req.Hashes); j < len(s.outHashes) {
		return s.outHashes[j]
	}
	seed := cmp.Or(s.req.HashSeed, workload.BaseHashSeed)
	tokens := make([]uint32, 0, s.size)
	if i == len(s.req.Hashes) {
		tokens = append(tokens, s.req.Tail...)
	}
	for at := i*s.size + len(tokens); at < (i+1)*s.size; at++ {
		tokens = append(tokens, s.Token(at-s.req.PromptTokens))
	}
	h := kvindex.AppendTokens(nil, tokens, s.size, seed)[0]
	if i > 0 {
		h = kvindex.Chain(s.hash(i-1), h)
	}
	s.outHashes = append(s.outHashes, h)
	return h
}
