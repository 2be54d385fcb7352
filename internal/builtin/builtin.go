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
	register(roundrobin.Name, roundrobin.New)
	register(poweroftwo.Name, poweroftwo.New)
	register(prefixaffinity.Name, prefixaffinity.New)
	register(consistenthash.Name, consistenthash.New)
	register(kvaware.Name, kvaware.New)
}

// register registers a policy whose config is a plain struct.
func register[C any](name string, build func(C) (policy.Policy, error)) {
	policy.Register(name, func(raw json.RawMessage) (policy.Policy, error) {
		var c C
		if err := policy.Decode(raw, &c); err != nil {
			return policy.Policy{}, err
		}
		return build(c)
	})
}
