package policy

import (
	"encoding/json"

	"github.com/warmpath/warmpath/balancer/policy/consistenthash"
	"github.com/warmpath/warmpath/balancer/policy/kvaware"
	"github.com/warmpath/warmpath/balancer/policy/poweroftwo"
	"github.com/warmpath/warmpath/balancer/policy/prefixaffinity"
	"github.com/warmpath/warmpath/balancer/policy/roundrobin"
	"github.com/warmpath/warmpath/balancer/routing"
)

func init() {
	builtin(roundrobin.Name, roundrobin.DefaultConfig, roundrobin.New)
	builtin(poweroftwo.Name, poweroftwo.DefaultConfig, poweroftwo.New)
	builtin(prefixaffinity.Name, prefixaffinity.DefaultConfig, prefixaffinity.New)
	builtin(consistenthash.Name, consistenthash.DefaultConfig, consistenthash.New)
	builtin(kvaware.Name, kvaware.DefaultConfig, kvaware.New)
}

// builtin registers a policy whose config is a plain struct.
func builtin[C any, P routing.Policy](name string, defaults func() C, build func(C) (P, error)) {
	Register(name, func(raw json.RawMessage) (routing.Policy, error) {
		c := defaults()
		if err := Decode(raw, &c); err != nil {
			return nil, err
		}
		p, err := build(c)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}
