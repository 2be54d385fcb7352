// Package peers compares warmpath's index and scoring with those of other projects: the same prompts, the same
// blocks, the same replicas, in one run. It is a separate module because of its dependencies. docs/performance.md
// describes the comparison and its limits.
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
	blockBytes  = 64 // the same block for indexes over text
	depth       = 512
	replicas    = 8

	// capacity is the number of blocks that every index keeps for a replica, the default of the inference extension.
	// At 16 tokens a block it is 500,000 tokens.
	capacity = 31_250
)

// A prompt is the same content as token ids and as text, four bytes a token, so that 16 tokens and 64 bytes are the
// same block.
type prompt struct {
	tokens []uint32
	text   string
}

// newPrompt returns a prompt of a number of full blocks.
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

// then returns a prompt followed by another.
func (p prompt) then(q prompt) prompt {
	return prompt{append(p.tokens[:len(p.tokens):len(p.tokens)], q.tokens...), p.text + q.text}
}

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) }

func replicaName(i int) string { return fmt.Sprintf("r%d", i) }

// A holding is the number of leading blocks of a prompt that a replica holds.
type holding struct{ replica, blocks int }

// A layout is the holdings of the prompt in a query.
type layout struct {
	name  string
	holds []holding // in the order in which they are added
}

// layouts are the measured layouts.
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
		{"whole", whole},   // all blocks on every replica
		{"stairs", stairs}, // an eighth on the first, two on the second, and so on
		{"pieces", pieces}, // all blocks on every replica, added two at a time
		{"miss", nil},      // no block on any replica
	}
}

// An adder is an index that gets the contents of replicas.
type adder interface {
	// add adds the blocks of a prompt, from one on, to the contents of a replica.
	add(replica int, p prompt, from int)
}

// A peer is an index that finds how many leading blocks of a prompt every replica holds.
type peer interface {
	adder
	depths(p prompt) [replicas]int
}

// arrange adds other prompts, a quarter of the capacity, and then the layout.
func arrange(x adder, l layout, asked prompt) {
	rnd := seeded(2)
	for i := range replicas * capacity / depth / 4 {
		x.add(i%replicas, newPrompt(rnd, depth), 0)
	}
	added := [replicas]int{}
	for _, h := range l.holds {
		x.add(h.replica, asked.first(h.blocks), added[h.replica])
		added[h.replica] = h.blocks
	}
}
