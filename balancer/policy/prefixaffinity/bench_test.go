package prefixaffinity

import (
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
)

// BenchmarkRouter measures whole picks through the Router.
func BenchmarkRouter(b *testing.B) {
	policytest.Benchmark(b, func() policy.Policy { return newPolicy(b, Config{}).policy() })
}
