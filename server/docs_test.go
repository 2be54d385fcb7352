package server

import (
	"cmp"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/cluster"
	"github.com/warmpath/warmpath/internal/httpendpoint"
)

// docs/server-config.md has every field of every struct that the config leads to, with its default. What a client's
// config and a fleet file have too is on docs/config.md, which tests/docs_test.go compares.
func TestServerConfigPage(t *testing.T) {
	raw, err := os.ReadFile("../docs/server-config.md")
	require.NoError(t, err)
	sections := make(map[string]string)
	for _, s := range strings.Split(string(raw), "\n## ")[1:] {
		heading, text, _ := strings.Cut(s, "\n")
		sections[heading] = text
	}
	chapters := map[string]any{
		"The file": Config{}.withDefaults(), "http": httpendpoint.Config{}.WithDefaults(),
		"tls": TLS{}, "A principal": Principal{}, "A deployment": Deployment{Config: policy.Config{}.WithDefaults()},
	}
	described := map[reflect.Type]bool{reflect.TypeFor[policy.Config](): true, reflect.TypeFor[policy.Attributes](): true}
	for heading, value := range chapters {
		described[reflect.TypeOf(value)] = true
		rows := regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(sections[heading], -1)
		var names, defaults []string
		for _, row := range rows {
			names, defaults = append(names, row[1]), append(defaults, strings.Trim(row[2], "`"))
		}
		fields, want := fieldsOf(t, value)
		require.Equal(t, fields, names, heading)
		for i, d := range want {
			if d != "" {
				require.Equal(t, d, strings.ReplaceAll(defaults[i], ", ", ","), "%s: %s", heading, names[i])
			}
		}
	}
	nats, _ := fieldsOf(t, cluster.NATS{})
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_.]+)` ").FindAllStringSubmatch(sections["cluster"], -1) {
		listed = append(listed, row[1])
	}
	require.Equal(t, nats, listed)
	described[reflect.TypeFor[cluster.Config]()] = true
	for _, value := range chapters {
		typ := reflect.TypeOf(value)
		for i := range typ.NumField() {
			f := typ.Field(i)
			for inner := f.Type; ; inner = inner.Elem() {
				if k := inner.Kind(); k != reflect.Pointer && k != reflect.Slice && k != reflect.Map {
					ours := inner.Kind() == reflect.Struct && strings.Contains(inner.PkgPath(), "warmpath")
					require.True(t, !ours || described[inner], "%v of %v.%s has no section", inner, typ, f.Name)
					break
				}
			}
		}
	}
}

// fieldsOf returns the names of a struct's fields in a config, and their defaults; "" = the page has it in words.
func fieldsOf(t *testing.T, value any) (names, defaults []string) {
	t.Helper()
	raw, err := json.Marshal(value)
	require.NoError(t, err)
	var set map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw, &set))
	typ := reflect.TypeOf(value)
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			continue // an embedded struct, which has a section of its own
		}
		usual := map[reflect.Kind]string{reflect.Bool: "false", reflect.String: `""`, reflect.Int: "0", reflect.Int64: "0", reflect.Float64: "0"}[f.Type.Kind()]
		if text := string(set[name]); text != "" && text != "null" && text != `""` {
			usual = text
		}
		if options == "" && usual == `""` {
			usual = "required"
		}
		names, defaults = append(names, name), append(defaults, cmp.Or(usual, ""))
	}
	return names, defaults
}
