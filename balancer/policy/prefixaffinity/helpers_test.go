package prefixaffinity

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
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
	var all []uint32
	for _, part := range parts {
		all = append(all, part...)
	}
	q.SetPrompt(routing.Prompt{Tokens: all})
	return q
}

func askText(format string, args ...any) *routing.Request {
	q := new(routing.Request)
	q.SetPrompt(routing.Prompt{Text: fmt.Sprintf(format, args...)})
	return q
}

// order returns the whole agreed order of a key.
func order(key uint64, replicas []*routing.Replica) []string {
	var s agreed.Scorer
	s.SetKey(key)
	scores := make(map[*routing.Replica]uint64)
	for _, r := range replicas {
		scores[r] = s.Score(r.ID)
	}
	sorted := slices.SortedFunc(slices.Values(replicas), func(a, b *routing.Replica) int {
		return cmp.Or(cmp.Compare(scores[b], scores[a]), cmp.Compare(a.ID, b.ID))
	})
	ids := make([]string, len(sorted))
	for i, r := range sorted {
		ids[i] = r.ID
	}
	return ids
}

// keyOf returns the key that a fresh client uses for a request.
func keyOf(t testing.TB, q *routing.Request) uint64 {
	t.Helper()
	s := newPolicy(t, DefaultConfig()).read(q, newRouter(t, 4).View())
	require.NotNil(t, s)
	return s.key
}

// route decides, books, and releases at once.
func route(t testing.TB, r *routing.Router, q *routing.Request) routing.Decision {
	t.Helper()
	b := policytest.Pick(t, r, q)
	b.Release()
	return b.Decision
}
