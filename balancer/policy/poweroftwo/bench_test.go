package poweroftwo

import (
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
)

func build() policy.Policy { return with(Config{}) }

func with(c Config) policy.Policy {
	p, err := New(c)
	if err != nil {
		panic(err)
	}
	return p
}

func TestConform(t *testing.T) { policytest.Conform(t, build) }

func BenchmarkPick(b *testing.B) { policytest.Benchmark(b, build) }
