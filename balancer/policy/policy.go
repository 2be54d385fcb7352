// Package policy is what the author of a routing policy needs: the [Policy] interface, what a policy looks at
// ([Request], [View], [Replica]) and answers ([Decision]), and [Register]. It also holds the one shape of config that
// service configs, the look-aside server's YAML and `explain --config` share.
//
// An application registers a policy of its own before it dials:
//
//	func init() {
//		policy.Register("my_policy", func(raw json.RawMessage) (policy.Policy, error) {
//			c := myDefaults()
//			if err := policy.Decode(raw, &c); err != nil {
//				return nil, err
//			}
//			return newMyPolicy(c)
//		})
//	}
//
// A config is refused as a whole, with an error that names the field, and never
// repaired: an unknown field, a wrong type, a value out of bounds, a policy that
// is not registered.
package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// A Factory builds a policy from its config, which may be empty. It is called from
// any goroutine: once for each Router, and each time that a config is checked, where
// what it returns is closed at once. So it is cheap and begins nothing that Close does not end.
type Factory func(config json.RawMessage) (Policy, error)

var registry = struct {
	sync.RWMutex // taken alone; no factory runs under it
	byName       map[string]Factory
}{byName: make(map[string]Factory)}

// Register makes a policy known by name. It panics when the name is empty or
// taken, or the factory nil: these are mistakes of the program. Safe for
// concurrent use; policies are best registered from an init function.
func Register(name string, f Factory) {
	if name == "" {
		panic("policy: Register with an empty name")
	}
	if f == nil {
		panic(fmt.Sprintf("policy: Register of %q without a factory", name))
	}
	registry.Lock()
	defer registry.Unlock()
	if registry.byName[name] != nil {
		panic(fmt.Sprintf("policy: %q is registered already", name))
	}
	registry.byName[name] = f
}

// New builds the policy with this name. An error of its config names the field.
func New(name string, config json.RawMessage) (Policy, error) {
	registry.RLock()
	f := registry.byName[name]
	registry.RUnlock()
	if f == nil {
		return Policy{}, fmt.Errorf("policy: %q is unknown; choose one of %s", name, strings.Join(Names(), ", "))
	}
	p, err := f(config)
	if err != nil {
		return Policy{}, fmt.Errorf("policy.%s: %w", name, err)
	}
	if p.Choose == nil {
		return Policy{}, fmt.Errorf("policy.%s: it has no Choose", name)
	}
	p.Name = name
	return p, nil
}

// Names returns the names of all policies, sorted.
func Names() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.byName))
}
