package prefixaffinity

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
	"github.com/warmpath/warmpath/internal/router"
	"github.com/warmpath/warmpath/internal/routertest"
)

// The kit's functions under short names.
var (
	tokens = routertest.Tokens
	ask    = routertest.Prompt
	route  = routertest.Decide
	order  = routertest.Order
)

// with returns the default config, changed.
func with(change func(*Config)) Config {
	c := Config{}.WithDefaults()
	change(&c)
	return c
}

func newPolicy(t testing.TB, c Config) *affinity {
	t.Helper()
	p, err := build(c)
	require.NoError(t, err)
	return p
}

// newRouter returns a Router of the default policy over n replicas, r0, r1, ….
func newRouter(t testing.TB, n int) *router.Router {
	t.Helper()
	return policytest.NewRouter(t, newPolicy(t, Config{}.WithDefaults()).policy(), policytest.Fleet(n))
}

func askText(format string, args ...any) *policy.Request {
	q := new(policy.Request)
	q.SetPrompt(policy.Prompt{Text: fmt.Sprintf(format, args...)})
	return q
}

// keyOf returns the key that a fresh client uses for a request.
func keyOf(t testing.TB, q *policy.Request) uint64 {
	t.Helper()
	s := new(prepared)
	newPolicy(t, Config{}.WithDefaults()).read(s, q, 4)
	return s.Key
}
