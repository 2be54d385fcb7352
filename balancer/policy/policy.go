// Package policy is what the author of a routing policy needs: [Policy], what it looks at ([Request], [View],
// [Replica]) and answers ([Decision]), and [Register]. It also has the [Config] that service configs, the look-aside
// server's YAML and `explain --config` share.
//
// An application registers a policy of its own before it dials. Its config is a plain struct with JSON names, whose
// zero value is the default config:
//
//	func init() { policy.Register("my_policy", New) }
//
//	func New(c Config) (policy.Policy, error) {
//		p := &mine{c}
//		return policy.Policy{Uses: policy.UsesSession, Choose: p.choose}, nil
//	}
//
// A config is refused as a whole, with an error that names the field, and never
// repaired: an unknown field, a wrong type, a value out of bounds, a policy that
// is not registered.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// A NamedConfig is the config of a policy as Go code writes it; Name is the policy's.
type NamedConfig interface{ Name() string }

// A factory builds a policy from its config, which may be empty.
type factory func(config json.RawMessage) (Policy, error)

// registry has the factories by name.
var registry sync.Map

// Register registers a policy by its name. build makes it from its config, which is read strictly, as by [Decode].
// It is called from any goroutine, once for each Router and for each check of a config; the policy of a check is closed
// at once. So build must be cheap, and start nothing that Close does not end. Its errors name the field.
//
// Register panics when the name is empty or taken, or build is nil: these are mistakes of the program. Call it from an
// init function. Safe for concurrent use.
func Register[C any](name string, build func(C) (Policy, error)) {
	if name == "" {
		panic("policy: Register with an empty name")
	}
	if build == nil {
		panic(fmt.Sprintf("policy: Register of %q without a function that builds it", name))
	}
	_, taken := registry.LoadOrStore(name, factory(func(raw json.RawMessage) (Policy, error) {
		var c C
		if err := Decode(raw, &c); err != nil {
			return Policy{}, err
		}
		return build(c)
	}))
	if taken {
		panic(fmt.Sprintf("policy: %q is registered already", name))
	}
}

// New builds the policy with this name. An error of its config names the field.
func New(name string, config json.RawMessage) (Policy, error) {
	f, ok := registry.Load(name)
	if !ok {
		return Policy{}, fmt.Errorf("policy: %q is unknown; choose one of %s", name, strings.Join(Names(), ", "))
	}
	p, err := f.(factory)(config)
	if err == nil && p.Choose == nil {
		err = errors.New("it has no Choose")
	}
	if err != nil {
		return Policy{}, fmt.Errorf("policy.%s: %w", name, err)
	}
	p.Name = name
	return p, nil
}

// Names returns the names of all policies, sorted.
func Names() []string {
	var names []string
	for name := range registry.Range {
		names = append(names, name.(string))
	}
	slices.Sort(names)
	return names
}
