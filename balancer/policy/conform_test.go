package policy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/policytest"
)

// Every built-in policy, by its name and without a config, keeps the rules for all policies.
func TestBuiltinsConform(t *testing.T) {
	for _, name := range []string{roundrobin.Name, poweroftwo.Name, consistenthash.Name, prefixaffinity.Name, kvaware.Name} {
		t.Run(name, func(t *testing.T) {
			policytest.Conform(t, func() policy.Policy {
				p, err := policy.New(name, nil)
				require.NoError(t, err)
				return p
			})
		})
	}
}
