package kvaware

import (
	"cmp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/warmpath/warmpath/balancer/kvindex"
	"github.com/warmpath/warmpath/balancer/policy/agreed"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/balancer/routing"
)

// with returns the default config, changed.
func with(change func(*Config)) Config {
	c := DefaultConfig()
	change(&c)
	return c
}

func newPolicy(t testing.TB, c Config) *Policy {
	t.Helper()
	p, err := New(c)
	require.NoError(t, err)
	return p
}

// newRouter returns a Router of the default policy over n replicas, r0, r1, ….
func newRouter(t testing.TB, n int) *routing.Router {
	t.Helper()
	return policytest.NewRouter(t, newPolicy(t, DefaultConfig()), policytest.Fleet(n))
}

// tokens returns n token ids; those of different seeds share nothing.
func tokens(seed, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(seed*1_000_003 + i)
	}
	return out
}

// ask returns a request whose prompt is these tokens, one after the other.
func ask(parts ...[]uint32) *routing.Request {
	q := new(routing.Request)
	q.SetPrompt(routing.Prompt{Tokens: slices.Concat(parts...)})
	return q
}

// tell tells what a rank of a replica caches of a prompt, in the engine's blocks, or
// in superblocks of blocks of 16.
func tell(r *routing.Router, id string, rank int, tier routing.Tier, prompt []uint32, blockTokens int) {
	cut := min(blockTokens, 16)
	if blockTokens != routing.SuperblockTokens {
		cut = blockTokens
	}
	var stored []uint64
	for i, h := range kvindex.AppendTokens(nil, prompt, cut, kvindex.SeedFor("", "", "")) {
		if (i+1)*cut%blockTokens == 0 {
			stored = append(stored, h)
		}
	}
	r.CacheChanged([]routing.CacheChange{{Replica: id, Rank: rank, Tier: tier, BlockTokens: blockTokens, Stored: stored}})
}

// busy books a prompt of so many tokens on a replica.
func busy(t testing.TB, r *routing.Router, id string, tokens int) *routing.Booking {
	t.Helper()
	return policytest.Pick(t, r, &routing.Request{Pin: id, PromptTokens: tokens})
}

// places returns the whole agreed order of a request that is prepared.
func places(t testing.TB, r *routing.Router, q *routing.Request) []string {
	t.Helper()
	r.Prepare(t.Context(), q)
	var s agreed.Scorer
	s.SetKey(q.Prepared.(*prepared).key)
	sorted := slices.SortedFunc(slices.Values(r.View().Replicas()), func(a, b *routing.Replica) int {
		return cmp.Or(cmp.Compare(s.Score(b.ID), s.Score(a.ID)), cmp.Compare(a.ID, b.ID))
	})
	ids := make([]string, len(sorted))
	for i, rep := range sorted {
		ids[i] = rep.ID
	}
	return ids
}

// route decides, books, and releases at once.
func route(t testing.TB, r *routing.Router, q *routing.Request) routing.Decision {
	t.Helper()
	b := policytest.Pick(t, r, q)
	b.Release()
	return b.Decision
}
