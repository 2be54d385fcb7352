// Package builtin registers the built-in policies. It is imported for its effect.
package builtin

import (
	"encoding/json"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
)

func init() {
	register(roundrobin.Name, roundrobin.DefaultConfig, roundrobin.New)
	register(poweroftwo.Name, poweroftwo.DefaultConfig, poweroftwo.New)
	register(prefixaffinity.Name, prefixaffinity.DefaultConfig, prefixaffinity.New)
	register(consistenthash.Name, consistenthash.DefaultConfig, consistenthash.New)
	register(kvaware.Name, kvaware.DefaultConfig, kvaware.New)
}

// register registers a policy whose config is a plain struct.
func register[C any](name string, defaults func() C, build func(C) (policy.Policy, error)) {
	policy.Register(name, func(raw json.RawMessage) (policy.Policy, error) {
		c := defaults()
		if err := policy.Decode(raw, &c); err != nil {
			return policy.Policy{}, err
		}
		return build(c)
	})
}
