package resolver

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/balancer/policy"
)

// tolerate returns a service config without what this version does not know of the object "warmpath", so that a server
// may be newer than its clients: fields, and modes. The config of a policy is left as it is. ignored names what was
// taken out.
func tolerate(config string) (reduced string, ignored []string) {
	var whole map[string]json.RawMessage
	var choices []map[string]json.RawMessage
	if json.Unmarshal([]byte(config), &whole) != nil || json.Unmarshal(whole["loadBalancingConfig"], &choices) != nil {
		return config, nil
	}
	for _, choice := range choices {
		if raw, ok := choice["warmpath"]; ok {
			choice["warmpath"], ignored = known(raw, reflect.TypeFor[policy.Config](), "")
		}
	}
	if len(ignored) == 0 {
		return config, nil
	}
	var err error
	if whole["loadBalancingConfig"], err = json.Marshal(choices); err != nil {
		return config, nil
	}
	text, err := json.Marshal(whole)
	if err != nil {
		return config, nil
	}
	return string(text), ignored
}

// known returns an object with the fields of a struct only.
func known(raw json.RawMessage, of reflect.Type, prefix string) (kept json.RawMessage, ignored []string) {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return raw, nil
	}
	fields := make(map[string]reflect.Type)
	for _, f := range reflect.VisibleFields(of) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			fields[name] = f.Type
		}
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		t, ok := fields[name]
		switch {
		case !ok || name == "mode" && !knownMode(object[name]):
			delete(object, name)
			ignored = append(ignored, prefix+name)
		case t == reflect.TypeFor[policy.Central](), t == reflect.TypeFor[policy.Ejection]():
			var inside []string
			object[name], inside = known(object[name], t, name+".")
			ignored = append(ignored, inside...)
		}
	}
	kept, err := json.Marshal(object)
	if err != nil {
		return raw, nil
	}
	return kept, ignored
}

func knownMode(raw json.RawMessage) bool {
	var mode string
	return json.Unmarshal(raw, &mode) == nil && (mode == "" || mode == policy.Broadcast || mode == policy.InCentral)
}
