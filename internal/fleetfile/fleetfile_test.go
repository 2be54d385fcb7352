package fleetfile

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/warmpath/warmpath/balancer/policy"
	"github.com/warmpath/warmpath/internal/fleet"
)

const full = `
replicas:
- id: a
  address: "10.0.0.1:50051"
  server_name: a.example
  zone: z1
  node: n1
  weight: 1.5
  max_ongoing_requests: 64
  models: [m]
  adapters: [x, z]
  kv_events: "tcp://10.0.0.1:5557"
  kv_events_replay: "tcp://10.0.0.1:6557"
  ranks: 4
  draining: true
  role: prefill
  pair: r7/tp4/nixl
  kv_bootstrap: "10.0.0.1:9000"
  kv_engine_id: e1
- address: "[2001:db8::1]:50051"
`

var fullFleet = []policy.Attributes{
	{
		ID: "a", Address: "10.0.0.1:50051", ServerName: "a.example", Zone: "z1", Node: "n1", Weight: 1.5,
		MaxOngoing: 64, Models: []string{"m"}, Adapters: []string{"x", "z"},
		KVEvents: "tcp://10.0.0.1:5557", KVEventsReplay: "tcp://10.0.0.1:6557", Ranks: 4, Draining: true,
		Role: policy.RolePrefill, Pair: "r7/tp4/nixl", KVBootstrap: "10.0.0.1:9000", KVEngineID: "e1",
	},
	{ID: "[2001:db8::1]:50051", Address: "[2001:db8::1]:50051"},
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []policy.Attributes
	}{
		{"every field", full, fullFleet},
		{"flow style", `replicas: [{id: a, address: "a:1"}]`, []policy.Attributes{{ID: "a", Address: "a:1"}}},
		{"json", `{"replicas":[{"address":"a:1","weight":0}]}`, []policy.Attributes{{ID: "a:1", Address: "a:1"}}},
		{"empty", "replicas: []\n", []policy.Attributes{}},
		{"null is absent", `replicas: [{address: "a:1", weight: null, id: ~}]`, []policy.Attributes{{ID: "a:1", Address: "a:1"}}},
		{"one marked document", "# c\n%YAML 1.1\n---\nreplicas: [{address: 'a:1'}]\n...\n", []policy.Attributes{{ID: "a:1", Address: "a:1"}}},
		{"anchors", "replicas:\n- {<<: &d {zone: z}, address: 'a:1'}\n- {<<: *d, address: 'b:1'}\n",
			[]policy.Attributes{{ID: "a:1", Address: "a:1", Zone: "z"}, {ID: "b:1", Address: "b:1", Zone: "z"}}},
		{"same host, other port", `replicas: [{address: "a:1"}, {address: "a:2"}]`,
			[]policy.Attributes{{ID: "a:1", Address: "a:1"}, {ID: "a:2", Address: "a:2"}}},
		{"server names", `replicas: [{address: "a:1", server_name: "x:443"}, {address: "b:1", server_name: "[::1]:1"}, {address: "c:1", server_name: "[::1]"}]`,
			[]policy.Attributes{{ID: "a:1", Address: "a:1", ServerName: "x:443"}, {ID: "b:1", Address: "b:1", ServerName: "[::1]:1"}, {ID: "c:1", Address: "c:1", ServerName: "[::1]"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text))
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
}

func TestParseRefuses(t *testing.T) {
	one := func(entry string) string { return "replicas:\n- {address: 'a:1'}\n- {" + entry + "}\n" }
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "replicas: missing"},
		{"comments only", "# nothing\n", "replicas: missing"},
		{"null", "replicas:\n", "replicas: missing"},
		{"a list", "- {address: 'a:1'}", "is a list, not an object"},
		{"a word", "replicas", "is a string, not an object"},
		{"not a list", "replicas: {address: 'a:1'}", "replicas: it is an object, not a list"},
		{"unknown at the top", "replicas: []\nreplica: []", `unknown field "replica"`},
		{"top-level case", "Replicas: []", `unknown field "Replicas"`},
		{"unknown field", one("adress: 'b:1'"), `replicas[1]: unknown field "adress"`},
		{"field case", one("Address: 'b:1'"), `replicas[1]: unknown field "Address"`},
		{"repeated field", one("address: 'b:1', address: 'c:1'"), `"address" already set`},
		{"entry is a word", "replicas: ['a:1']", "replicas[0]: it is a string, not an object"},
		{"entry is null", "replicas: [~]", "replicas[0].address: missing"},
		{"broken yaml", "replicas: [", "yaml: line 1"},
		{"second document", "replicas: []\n---\nreplicas: []\n", "line 2: a second document"},
		{"no address", one("id: b"), "replicas[1].address: missing; want host:port"},
		{"no port", one("address: b"), `replicas[1].address: "b" is not host:port (missing port in address)`},
		{"no host", one("address: ':1'"), `replicas[1].address: "" is neither the name of a host nor`},
		{"port 0", one("address: 'b:0'"), `replicas[1].address: port "0" is not a number from 1 to 65535`},
		{"port too high", one("address: 'b:65536'"), `replicas[1].address: port "65536"`},
		{"named port", one("address: 'b:http'"), `replicas[1].address: port "http"`},
		{"bare IPv6", one("address: '::1:50051'"), "replicas[1].address: \"::1:50051\" is not host:port (too many colons"},
		{"bad IPv6", one("address: '[::g]:1'"), `replicas[1].address: "::g" is neither`},
		{"zone with a newline", one(`address: "[fe80::1%a\n]:1"`), `replicas[1].address: "fe80::1%a\n" is neither`},
		{"list as address", one("address: 'b:1,c:1'"), "replicas[1].address:"},
		{"scheme in address", one("address: 'dns:///b:1'"), "replicas[1].address:"},
		{"host with a blank", one("address: 'b c:1'"), `replicas[1].address: "b c" is neither`},
		{"host not ASCII", one("address: 'bücher:1'"), `replicas[1].address: "bücher" is neither`},
		{"duplicate address", one("id: b, address: 'A:01'"), "replicas[1].address: A:01 is already the address of replicas[0]"},
		{"duplicate IPv6", "replicas: [{address: '[::1]:1'}, {address: '[0:0::1]:1'}]", "is already the address of replicas[0]"},
		{"duplicate id", "replicas: [{id: r, address: 'a:1'}, {id: r, address: 'b:1'}]", `replicas[1].id: "r" is already the id of replicas[0]`},
		{"id is another's address", one("id: 'a:1', address: 'b:1'"), `replicas[1].id: "a:1" is already`},
		{"id with a blank", one("id: 'b b', address: 'b:1'"), `replicas[1].id: "b b" has something else`},
		{"long id", one("id: " + strings.Repeat("x", 257) + ", address: 'b:1'"), "replicas[1].id: longer than 256 bytes"},
		{"id is a number", one("id: 7, address: 'b:1'"), "replicas[1].id: it is a number, not a string"},
		{"adapter is a y", one("adapters: [x, y], address: 'b:1'"), "replicas[1].adapters[1]: it is true or false, not a string"},
		{"zone is a no", one("zone: no, address: 'b:1'"), "replicas[1].zone: it is true or false, not a string"},
		{"weight below 0", one("weight: -0.5, address: 'b:1'"), "replicas[1].weight: -0.5 is not"},
		{"weight infinite", one("weight: .inf, address: 'b:1'"), "weight must be finite"},
		{"weight not a number", one("weight: .nan, address: 'b:1'"), "weight must be finite"},
		{"weight a word", one("weight: heavy, address: 'b:1'"), "replicas[1].weight: it is a string, not a number"},
		{"ranks below 0", one("ranks: -1, address: 'b:1'"), "replicas[1].ranks: -1 is not between 0 and 1024"},
		{"too many ranks", one("ranks: 1025, address: 'b:1'"), "replicas[1].ranks: 1025 is not"},
		{"kv_events", one("kv_events: 'udp://x:1', address: 'b:1'"), `replicas[1].kv_events: "udp://x:1": want tcp://host:port`},
		{"kv_events without a port for each rank", one("kv_events: 'tcp://x:65535', ranks: 2, address: 'b:1'"), "replicas[1].kv_events: \"tcp://x:65535\": x:65535 leaves no room for 2 ranks"},
		{"kv_events_replay", one("kv_events: 'grpc:vllm', kv_events_replay: 'tcp://x:1', address: 'b:1'"), `replicas[1].kv_events_replay: "tcp://x:1": want`},
		{"replay of nothing", one("kv_events_replay: 'tcp://b:1', address: 'b:1'"), "replicas[1].kv_events_replay: there is no kv_events"},
		{"role", one("role: encode, address: 'b:1'"), `replicas[1].role: "encode" is unknown; want prefill, decode or both`},
		{"pair", one("pair: 'r7 tp4', address: 'b:1'"), `replicas[1].pair: "r7 tp4" has something else`},
		{"kv_bootstrap", one("kv_bootstrap: 'b', address: 'b:1'"), `replicas[1].kv_bootstrap: "b" is not host:port`},
		{"kv_engine_id", one("kv_engine_id: 'ü', address: 'b:1'"), "replicas[1].kv_engine_id:"},
		{"capacity below 0", one("max_ongoing_requests: -1, address: 'b:1'"), "replicas[1].max_ongoing_requests: -1 is less than 0"},
		{"capacity a fraction", one("max_ongoing_requests: 1.5, address: 'b:1'"), "replicas[1].max_ongoing_requests: it is a number 1.5, not a whole number"},
		{"models a word", one("models: m, address: 'b:1'"), "replicas[1].models: it is a string, not a list"},
		{"model empty", one("models: [m, ''], address: 'b:1'"), "replicas[1].models: name 2 is empty"},
		{"adapter empty", one("adapters: [''], address: 'b:1'"), "replicas[1].adapters: name 1 is empty"},
		{"draining a word", one("draining: 'maybe', address: 'b:1'"), "replicas[1].draining: it is a string, not true or false"},
		{"server name list", one("server_name: 'a,b', address: 'b:1'"), `replicas[1].server_name: "a,b" is neither host nor host:port`},
		{"server name bare IPv6", one("server_name: '::1', address: 'b:1'"), `replicas[1].server_name: "::1" is neither host nor host:port; an IPv6 address needs brackets`},
		{"server name zone", one("server_name: '[fe80::1%eth0]:1', address: 'b:1'"), "replicas[1].server_name:"},
		{"server name port", one("server_name: 'b:x', address: 'b:1'"), `replicas[1].server_name: "b:x" is neither`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text))
			require.ErrorContains(t, err, tt.want)
			assert.NotContains(t, err.Error(), "\n")
			assert.Nil(t, got)
		})
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	_, err := Load(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, path)

	require.NoError(t, os.WriteFile(path, []byte(full), 0o600))
	got, err := Load(path)
	require.NoError(t, err)
	assert.Equal(t, fullFleet, got)

	require.NoError(t, os.WriteFile(path, []byte("replicas: [{}]"), 0o600))
	_, err = Load(path)
	assert.EqualError(t, err, path+": replicas[0].address: missing; want host:port")

	_, err = Load(t.TempDir())
	assert.ErrorContains(t, err, "not a regular file")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(`{"replicas":[{"address":"a:1"}]}`))
	f.Add([]byte("replicas: [&a {address: 'a:1'}, *a]"))
	f.Add([]byte("---\nreplicas: []\n---\n"))
	f.Add([]byte("replicas: [{address: '[fe80::1%e]:1', weight: 1e308}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		replicas, err := Parse(data)
		if err != nil {
			require.Nil(t, replicas)
			require.NotEmpty(t, err.Error())
			return
		}
		ids := map[string]bool{}
		for _, r := range replicas {
			require.NoError(t, fleet.Settle(&r))
			require.False(t, ids[r.ID] || r.ID == "")
			require.False(t, math.IsInf(r.Weight, 0) || math.IsNaN(r.Weight) || r.Weight < 0 || r.MaxOngoing < 0)
			ids[r.ID] = true
		}
		// The fleet is the same after it is written and read again.
		text, err := yaml.Marshal(map[string]any{"replicas": replicas})
		require.NoError(t, err)
		again, err := Parse(text)
		require.NoError(t, err)
		require.Len(t, again, len(replicas))
		for i := range replicas {
			require.True(t, replicas[i].Equal(again[i]))
			require.Equal(t, replicas[i].ServerName, again[i].ServerName)
		}
	})
}
