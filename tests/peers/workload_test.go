// Package peers measures warmpath's index and scoring beside those of other projects: the same
// prompts, the same blocks, the same replicas, in one run. It is a module of its own because of
// what they need. What is compared, and what that does not say, is in docs/performance.md.
//
//	go test -run '^$' -bench . -benchmem   # every contender by itself
//	go test -run TestRatios -v             # best of short rounds, contender after contender
package peers

import (
	"fmt"
	"math/rand/v2"
)

const (
	blockTokens = 16
	blockBytes  = 64 // the same block for those who read text
	depth       = 512
	replicas    = 8

	// capacity is how many blocks every index keeps of a replica: the default of the inference
	// extension. At 16 tokens a block it is 500,000 tokens.
	capacity = 31_250
)

// A prompt is the same content as token ids and as text, four bytes a token, so that 16 tokens and
// 64 bytes are the same block.
type prompt struct {
	tokens []uint32
	text   string
}

// newPrompt returns a prompt of so many full blocks.
func newPrompt(rnd *rand.Rand, blocks int) prompt {
	p := prompt{tokens: make([]uint32, blocks*blockTokens)}
	text := make([]byte, 0, blocks*blockBytes)
	for i := range p.tokens {
		token := rnd.Uint32N(1 << 16)
		p.tokens[i] = token
		for shift := 0; shift < 16; shift += 4 {
			text = append(text, 'a'+byte(token>>shift&15))
		}
	}
	p.text = string(text)
	return p
}

// first returns the first blocks of a prompt.
func (p prompt) first(blocks int) prompt {
	return prompt{p.tokens[:blocks*blockTokens], p.text[:blocks*blockBytes]}
}

// then returns a prompt that goes on with another.
func (p prompt) then(q prompt) prompt {
	return prompt{append(p.tokens[:len(p.tokens):len(p.tokens)], q.tokens...), p.text + q.text}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func replicaName(i int) string { return fmt.Sprintf("r%d", i) }

// A holding is how many leading blocks of a prompt a replica is given.
type holding struct{ replica, blocks int }

// A layout is who holds how much of the prompt that is asked for.
type layout struct {
	name  string
	holds []holding // in the order in which they are told
}

// layouts are those that are measured.
func layouts() []layout {
	var whole, stairs, pieces []holding
	for r := range replicas {
		whole = append(whole, holding{r, depth})
		stairs = append(stairs, holding{r, depth * (r + 1) / replicas})
		for end := 2; end <= depth; end += 2 {
			pieces = append(pieces, holding{r, end})
		}
	}
	return []layout{
		{"whole", whole},   // all of it on every replica
		{"stairs", stairs}, // an eighth on the first, two on the second, and so on
		{"pieces", pieces}, // all of it on every replica, told two blocks at a time
		{"miss", nil},      // nobody has any of it
	}
}

// A learner is told what replicas hold.
type learner interface {
	// add tells that a replica holds the blocks of a prompt from one on.
	add(replica int, p prompt, from int)
}

// A peer is an index that can be asked how many leading blocks of a prompt every replica holds.
type peer interface {
	learner
	depths(p prompt) [replicas]int
}

// arrange tells a learner the layout, and before it other prompts: a quarter of what it keeps.
func arrange(x learner, l layout, asked prompt) {
	rnd := seeded(2)
	for i := range replicas * capacity / depth / 4 {
		x.add(i%replicas, newPrompt(rnd, depth), 0)
	}
	told := [replicas]int{}
	for _, h := range l.holds {
		x.add(h.replica, asked.first(h.blocks), told[h.replica])
		told[h.replica] = h.blocks
	}
}
