// Package builtin registers the built-in policies. It is imported for its effect.
package builtin

import (
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
)

func init() {
	policy.Register(roundrobin.Name, roundrobin.New)
	policy.Register(poweroftwo.Name, poweroftwo.New)
	policy.Register(prefixaffinity.Name, prefixaffinity.New)
	policy.Register(consistenthash.Name, consistenthash.New)
	policy.Register(kvaware.Name, kvaware.New)
}
