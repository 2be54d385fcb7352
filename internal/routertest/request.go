package routertest

import (
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/balancer/policy"
)

// Request returns the i-th of a series of requests that differ in their keys.
// Of every four one has all keys, one a session, one a prompt and one none.
func Request(i int) *policy.Request {
	q := new(policy.Request)
	if i%2 == 0 {
		q = Prompt(Tokens(i%3, 600), Tokens(3+i, 600)) // the first half is shared by many
	}
	if i%4 == 0 {
		q.ID = fmt.Sprintf("req-%d", i)
	}
	if i%4 < 2 {
		q.Session = fmt.Sprintf("sess_%04d", i)
	}
	return q
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
