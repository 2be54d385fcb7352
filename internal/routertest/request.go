package routertest

import (
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Request returns the i-th of a series of requests that differ in their keys.
// Of every four one has all keys, one a session, one a prompt and one none.
func Request(i int) *policy.Request {
	q := &policy.Request{}
	switch i % 4 {
	case 0:
		q.ID, q.Session = fmt.Sprintf("req-%d", i), fmt.Sprintf("sess_%04d", i)
		q.SetPrompt(prompt(i))
	case 1:
		q.Session = fmt.Sprintf("sess_%04d", i)
	case 2:
		q.SetPrompt(prompt(i))
	}
	return q
}

// prompt returns a prompt of 1,200 tokens, the first 600 shared by many.
func prompt(i int) policy.Prompt {
	tokens := make([]uint32, 1200)
	for j := range tokens {
		tokens[j] = uint32(j*7919 + i%3)
		if j >= len(tokens)/2 {
			tokens[j] += uint32(i) * 104729
		}
	}
	return policy.Prompt{Tokens: tokens}
}

// Tokens returns n token ids; those of different seeds share nothing.
func Tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*1_000_003 + i)
	}
	return out
}

// Prompt returns a request whose prompt is these tokens, one part after the other.
func Prompt(parts ...[]uint32) *policy.Request {
	q := new(policy.Request)
	q.SetPrompt(policy.Prompt{Tokens: slices.Concat(parts...)})
	return q
}

// BenchmarkSizes are the sizes of fleet that benchmarks of policies measure.
var BenchmarkSizes = []int{8, 64, 512, 1000, 10000}
