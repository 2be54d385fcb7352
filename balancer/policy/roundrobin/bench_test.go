package roundrobin

import (
	"testing"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policytest"
)

func build() policy.Policy { return newRotation().policy() }

func TestConform(t *testing.T) { policytest.Conform(t, build) }

func BenchmarkPick(b *testing.B) { policytest.Benchmark(b, build) }
