package policytest

import (
	"cmp"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/rendezvous"
	"github.com/warmpath/warmpath/internal/router"
)

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

// Decide picks, releases at once, and returns what was decided.
func Decide(t testing.TB, r *router.Router, q *policy.Request) policy.Decision {
	t.Helper()
	b := Pick(t, r, q)
	b.Release()
	return b.Decision
}

// Order returns the ids of the replicas in the rendezvous order of a key, as package rendezvous defines it.
func Order(key uint64, replicas []*policy.Replica) []string {
	var s rendezvous.Scorer
	s.SetKey(key)
	scores := make(map[*policy.Replica]uint64)
	for _, r := range replicas {
		scores[r] = s.Score(r.ID)
	}
	sorted := slices.SortedFunc(slices.Values(replicas), func(a, b *policy.Replica) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a.ID, b.ID))
	})
	ids := make([]string, len(sorted))
	for i, r := range sorted {
		ids[i] = r.ID
	}
	return ids
}
