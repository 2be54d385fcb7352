package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/warmpath/warmpath/balancer/fleet"
	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/server"
	"github.com/warmpath/warmpath/server/httpdoor"
)

// A chapter is one struct with its defaults.
type chapter struct {
	heading string
	value   any
	intro   string // in place of the struct's comment
}

// told are the chapters with more to say than their structs. Structs that their fields lead to, and that are not here, get a
// chapter under the field's name.
func told() []chapter {
	return []chapter{
		{"The file", server.DefaultConfig(), ""},
		{"http", httpdoor.DefaultConfig(), "The door for callers that speak HTTP, see [doors](doors.md). Read once."},
		{"tls", server.TLS{}, ""},
		{"A principal", server.Principal{}, ""},
		{"A deployment", server.Deployment{ResolveInterval: server.DefaultResolveInterval}, "Beside these it has the fields of the next section."},
		{
			"A deployment, as clients are sent it", policy.Config{}.WithDefaults(),
			"These are the fields of [a channel's config](config.md#the-channel): the server uses them, and sends them to the clients that watch. " +
				"What a policy, a dialect and a tokenizer take is told there.",
		},
		{"replica_tls", server.ReplicaTLS{}, ""},
		{"Who decides", policy.Adoption{}, "More fields of a deployment, told in [who decides](config.md#who-decides). Clients are sent them too."},
		{"central", policy.Central{}.WithDefaults(), ""},
		{"ejection", policy.Ejection{}.WithDefaults(), ""},
		{"health_check", server.DefaultHealthCheck(), ""},
		{"A replica", fleet.Replica{}, "As in [a fleet file](config.md#the-fleet-file)."},
	}
}

// chapters are those told, and those of all other structs that fields lead to.
func chapters() []chapter {
	all := told()
	known := make(map[reflect.Type]bool)
	for _, c := range all {
		known[reflect.TypeOf(c.value)] = true
	}
	for i := 0; i < len(all); i++ {
		v := reflect.ValueOf(all[i].value)
		for j := range v.NumField() {
			f := v.Type().Field(j)
			t := structOf(f.Type)
			if t == nil || known[t] {
				continue
			}
			known[t] = true
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			c := chapter{heading: cmp.Or(name, t.Name()), value: reflect.Zero(t).Interface()}
			if f.Type == t {
				c.value = v.Field(j).Interface()
			}
			all = append(all, c)
		}
	}
	return all
}

// structOf is the struct that a field of this type leads to; nil = none that has a chapter.
func structOf(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[policy.Selection]() {
		return nil
	}
	return t
}

// anchors are those of the chapters, by type.
func anchors() map[reflect.Type]string {
	all := make(map[reflect.Type]string)
	for _, c := range chapters() {
		all[reflect.TypeOf(c.value)] = strings.ReplaceAll(strings.ToLower(c.heading), " ", "-")
	}
	return all
}

const preface = `<!-- Written by "go generate ./server" from the comments in the Go sources. Do not edit. -->

# The look-aside server's config: every field

One YAML file, read strictly: what is unknown, comes twice or is out of its bounds is refused, with the name of the field.
` + "`warmpath serve --config FILE --check`" + ` says whether a file is good, the files that it names included. It is read again when it
changes. Durations are strings like ` + "`\"100ms\"`" + `. How to use it is told in [the look-aside server](look-aside.md).
`

// write returns the page of the module in root.
func write(root string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(preface)
	for _, c := range chapters() {
		if err := c.write(&b, root); err != nil {
			return nil, fmt.Errorf("%s: %w", c.heading, err)
		}
	}
	return b.Bytes(), nil
}

func (c chapter) write(b *bytes.Buffer, root string) error {
	t := reflect.TypeOf(c.value)
	comments, err := commentsOf(root, t)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(c.value)
	if err != nil {
		return err
	}
	var defaults map[string]json.RawMessage
	if err := json.Unmarshal(raw, &defaults); err != nil {
		return err
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n\n| field | type | default | |\n| --- | --- | --- | --- |\n", c.heading, cmp.Or(c.intro, comments.of("")))
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue // an embedded struct, which has a chapter of its own
		}
		text := comments.of(f.Name)
		if text == "" {
			return fmt.Errorf("the field %s has no comment", f.Name)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", name, kind(f.Type), fallback(f.Type, defaults[name], options), text)
	}
	return nil
}

// fallback is the default of a field.
func fallback(t reflect.Type, raw json.RawMessage, options string) string {
	switch {
	case options == "" && (string(raw) == `""` || string(raw) == "null"):
		return "required"
	case raw != nil && string(raw) != "null":
		return "`" + strings.ReplaceAll(string(raw), ",", ", ") + "`"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "`false`"
	case reflect.String:
		return "`\"\"`"
	case reflect.Int, reflect.Int64, reflect.Float64:
		return "`0`"
	}
	return "none"
}

// kind says what stands in a field.
func kind(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[policy.Duration]():
		return "duration"
	case reflect.TypeFor[policy.Selection]():
		return "`{NAME: {…}}`"
	case reflect.TypeFor[json.RawMessage]():
		return "object or list"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return kind(t.Elem())
	case reflect.Slice:
		return "list of " + kind(t.Elem())
	case reflect.Map:
		return "object, by name, of " + kind(t.Elem())
	case reflect.Struct:
		anchor := anchors()[t]
		return fmt.Sprintf("[%s](#%s)", strings.TrimPrefix(anchor, "a-"), anchor)
	case reflect.Bool:
		return "`true`, `false`"
	case reflect.Int, reflect.Int64:
		return "whole number"
	case reflect.Float64:
		return "number"
	}
	return t.Kind().String()
}
