package kubernetes

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/admission"
)

// prefix begins the names of labels and annotations that describe a pod's replica.
const prefix = "warmpath.dev/"

// declarable are the fields of a fleet file that a pod may declare, each behind those that it is checked with.
var declarable = []struct {
	name string
	set  func(a *policy.Attributes, value string) error
}{
	{"weight", func(a *policy.Attributes, value string) (err error) {
		a.Weight, err = strconv.ParseFloat(value, 64)
		return
	}},
	{"ranks", func(a *policy.Attributes, value string) (err error) { a.Ranks, err = strconv.Atoi(value); return }},
	{"models", func(a *policy.Attributes, value string) error { a.Models = names(value); return nil }},
	{"adapters", func(a *policy.Attributes, value string) error { a.Adapters = names(value); return nil }},
	{"role", func(a *policy.Attributes, value string) error { a.Role = value; return nil }},
	{"pair", func(a *policy.Attributes, value string) error { a.Pair = value; return nil }},
	{"kv_bootstrap", func(a *policy.Attributes, value string) error { a.KVBootstrap = value; return nil }},
	{"kv_engine_id", func(a *policy.Attributes, value string) error { a.KVEngineID = value; return nil }},
	{"kv_events", func(a *policy.Attributes, value string) error { a.KVEvents = value; return nil }},
	{"kv_events_replay", func(a *policy.Attributes, value string) error { a.KVEventsReplay = value; return nil }},
}

// names reads a list with commas.
func names(value string) []string {
	all := strings.Split(value, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// declare sets the fields of a that its pod declares with labels and annotations, like warmpath.dev/weight: "2". The
// annotation counts where both are there. What a replica that registers may not declare is left out, and is a complaint.
func declare(a *policy.Attributes, pod *metav1.ObjectMeta) (wrong []string) {
	values, kinds := map[string]string{}, map[string]string{}
	for kind, all := range map[string]map[string]string{"label": pod.Labels, "annotation": pod.Annotations} {
		for key, value := range all {
			name, ok := strings.CutPrefix(key, prefix)
			if ok && !(kind == "label" && kinds[name] != "") {
				values[name], kinds[name] = value, kind
			}
		}
	}
	complain := func(name string, err error) {
		wrong = append(wrong, fmt.Sprintf("pod %s/%s: %s %s%s: %q: %v",
			pod.Namespace, pod.Name, kinds[name], prefix, name, values[name], err))
	}
	for _, field := range declarable {
		value, ok := values[field.name]
		if !ok {
			continue
		}
		next := *a
		err := field.set(&next, value)
		if err == nil {
			err = admission.AdmitOwn(&next)
		}
		if err != nil {
			complain(field.name, err)
		} else {
			*a = next
		}
		delete(values, field.name)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		complain(name, errors.New("there is no such field"))
	}
	return wrong
}

// complaints are those that have been logged and still hold.
type complaints map[string]bool

// log logs those of now that did not hold before.
func (c *complaints) log(l *slog.Logger, now []string) {
	next := make(complaints, len(now))
	for _, text := range now {
		if !(*c)[text] && !next[text] {
			l.Warn("warmpath: what a pod declares is ignored", "reason", text)
		}
		next[text] = true
	}
	*c = next
}
