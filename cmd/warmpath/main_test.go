package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// asCommand makes the test's program act as the command: replay starts servers, and chaos starts engines, from their
// own executable.
const asCommand = "WARMPATH_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asReplica) != "" {
		echoes()
	}
	if at := os.Getenv(asFloor); at != "" {
		floor(at)
	}
	if os.Getenv(asCommand) != "" {
		main()
	}
	if err := os.Setenv(asCommand, "1"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// command runs the command in this process.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// strict decodes the only JSON value of a text and refuses unknown fields.
func strict(t *testing.T, text string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(v), text)
	_, err := d.Token()
	require.Equal(t, io.EOF, err, "one object and nothing else")
}

// file writes a file and returns its path.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestMistakes(t *testing.T) {
	trace := file(t, "trace", `{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}`)
	broken := file(t, "broken", `{"timestamp": 0, "input_length": 5}`)
	empty := file(t, "empty", "")
	config := file(t, "config.yaml", "policy: {consistent_hash: {num_fallback: 1}}")
	other := file(t, "other.yaml", "policy: {round_robin: {}}")
	none := file(t, "nobody.yaml", "replicas: []")
	twice := file(t, "twice.yaml", `replicas: [{id: a, address: "h:1"}, {id: a, address: "h:2"}]`)
	replay := func(args ...string) []string {
		return append([]string{"replay", "--trace", trace, "--format", "mooncake", "--target", "127.0.0.1:1"}, args...)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"chaos"}, []string{"--scenario"}},
		{[]string{"chaos", "--scenario", "flod"}, []string{"--scenario", "flod", "flood"}},
		{[]string{"chaos", "--scenario", "kill", "--policy", "robin"}, []string{"robin", "round_robin"}},
		{[]string{"chaos", "--scenario", "kill", "--clients", "0"}, []string{"--clients"}},
		{[]string{"engine", "--listen", "127.0.0.1:0", "--kv-events", "udp://*:1"}, []string{"--kv-events", "udp"}},
		{[]string{"engine", "--listen", "127.0.0.1:0", "--kv-events-replay", "tcp://*:1"}, []string{"--kv-events-replay", "--kv-events tcp://"}},
		{[]string{"engine", "--listen", "127.0.0.1:0", "--kv-events", "tcp://*:1", "--kv-events-replay", "tcp://a:1"}, []string{"--kv-events-replay", "tcp://*:PORT"}},
		{[]string{"bench"}, []string{"warmpath: ", `"bench"`, "demo, replay, explain, engine, version"}},
		{[]string{"--colour"}, []string{"--colour", "--help"}},
		{[]string{"demo", "--colour"}, []string{"warmpath demo: ", "--colour", "--replicas"}},
		{[]string{"demo", "now"}, []string{`"now"`, "--replicas"}},
		{[]string{"demo", "--replicas", "many"}, []string{"many", "--replicas"}},
		{[]string{"demo", "--replicas", "0"}, []string{"--replicas", "0", "1"}},
		{[]string{"demo", "--clients", "0"}, []string{"--clients"}},
		{[]string{"demo", "--duration", "0s"}, []string{"--duration"}},
		{[]string{"demo", "--load", "0"}, []string{"--load"}},
		{[]string{"demo", "--speed", "-1"}, []string{"--speed"}},
		{[]string{"demo", "--unshared", "1"}, []string{"--unshared"}},
		{[]string{"demo", "--workload", "talk"}, []string{"--workload", `"talk"`, "chat", "agents"}},
		{[]string{"demo", "--policies", "fair"}, []string{"--policies", `"fair"`, "round_robin", "consistent_hash"}},
		{[]string{"demo", "--policies", ""}, []string{"--policies", "round_robin"}},
		{[]string{"demo", "--policies", "round_robin,round_robin"}, []string{"--policies", "twice"}},
		{[]string{"demo", "--preset", "h200"}, []string{"--preset", `"h200"`, "h100-14b", "mocker"}},
		{[]string{"demo", "--preset", "mocker"}, []string{"--kv-tokens", "mocker"}},
		{[]string{"demo", "--kv-tokens", "2000", "--duration", "2s"}, []string{"--kv-tokens", "too long"}},
		{[]string{"demo", "--report", "/nowhere/to/be/found.html"}, []string{"--report", "/nowhere/to/be"}},
		{[]string{"demo", "--csv", "none/x.csv"}, []string{"--csv", "none"}},
		{[]string{"engine"}, []string{"--listen", "required"}},
		{[]string{"engine", "--listen", "here"}, []string{"--listen", `"here"`, "host:port"}},
		{[]string{"engine", "--listen", ":99999"}, []string{"--listen", "host:port"}},
		{[]string{"engine", "--listen", ":0", "--speed", "0"}, []string{"--speed"}},
		{[]string{"engine", "--listen", ":0", "--max-ongoing", "-1"}, []string{"--max-ongoing"}},
		{[]string{"engine", "--listen", ":0", "--role", "router"}, []string{"--role", `"router"`, "prefill, decode"}},
		{[]string{"engine", "--listen", ":0", "--role", "decode", "--kv-connector", "x"}, []string{"--kv-connector", "mooncake"}},
		{[]string{"replay"}, []string{"--trace", "required"}},
		{[]string{"replay", "--trace", trace, "--format", "csv", "--target", "h:1"}, []string{"--format", `"csv"`, "mooncake, text"}},
		{[]string{"replay", "--trace", "/nowhere", "--format", "text", "--target", "h:1"}, []string{"--trace", "/nowhere"}},
		{[]string{"replay", "--trace", broken, "--format", "mooncake", "--target", "h:1"}, []string{"--trace", "line 1", "output_length"}},
		{[]string{"replay", "--trace", empty, "--format", "mooncake", "--target", "h:1"}, []string{"--trace", "no requests"}},
		{[]string{"replay", "--trace", trace, "--format", "mooncake", "--target", "warmpath:///a:1,a:1"}, []string{"--target", "a:1", "already"}},
		{[]string{"replay", "--trace", trace, "--format", "mooncake", "--target", ""}, []string{"--target", "host:port"}},
		{[]string{"replay", "--trace", trace, "--format", "mooncake", "--target", "a:1,b:1,a:1"}, []string{"--target", "a:1", "already"}},
		{replay("--dialect", "http"), []string{"--dialect", `"http"`, "vllm, vllm-inference"}},
		{replay("--policies", "fair"), []string{"--policies", `"fair"`}},
		{replay("--clients", "0"), []string{"--clients"}},
		{replay("--limit", "-1"), []string{"--limit"}},
		{replay("--speed", "0"), []string{"--speed"}},
		{replay("--rate-scale", "NaN"), []string{"--rate-scale"}},
		{replay("--jitter", "-1s"), []string{"--jitter"}},
		{replay("--warm-up", "1h"), []string{"--warm-up"}},
		{[]string{"explain"}, []string{"--replicas", "--fleet"}},
		{[]string{"explain", "--replicas", "a", "--fleet", "f"}, []string{"--replicas", "--fleet"}},
		{[]string{"explain", "--replicas", "a,b,a"}, []string{"--replicas", `"a"`, "already"}},
		{[]string{"explain", "--replicas", "a=h:1,b=h:1"}, []string{"--replicas", "h:1", "already"}},
		{[]string{"explain", "--replicas", "a,,b"}, []string{"--replicas", "entry 2", "empty"}},
		{[]string{"explain", "--replicas", "a=h"}, []string{"--replicas", "host:port"}},
		{[]string{"explain", "--replicas", "a b"}, []string{"--replicas", "printable ASCII"}},
		{[]string{"explain", "--fleet", "/nowhere"}, []string{"--fleet", "/nowhere"}},
		{[]string{"explain", "--fleet", none}, []string{"--fleet", "no replicas"}},
		{[]string{"explain", "--fleet", twice}, []string{"--fleet", "replicas[1].id", `"a"`}},
		{[]string{"explain", "--replicas", "a", "--policy", "fair"}, []string{"--policy", `"fair"`, "round_robin"}},
		{[]string{"explain", "--replicas", "a", "--config", "/nowhere"}, []string{"--config", "/nowhere"}},
		{[]string{"explain", "--replicas", "a", "--config", config}, []string{"--config", "num_fallback"}},
		{[]string{"explain", "--replicas", "a", "--config", other, "--policy", "consistent_hash"}, []string{"--policy", "round_robin"}},
		{[]string{"explain", "--replicas", "a", "--prompt-file", "/nowhere"}, []string{"--prompt-file", "/nowhere"}},
		{[]string{"explain", "--replicas", "a", "--prompt-file", trace, "--prompt", "x"}, []string{"--prompt-file", "--prompt "}},
		{[]string{"version", "please"}, []string{`"please"`}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) { requireMistake(t, c.args, c.want) })
	}
}

// requireMistake runs a command with a usage error, which must be one line with these words.
func requireMistake(t *testing.T, args, want []string) {
	t.Helper()
	code, stdout, stderr := command(t, args...)
	require.Equal(t, exitUsage, code, stderr)
	require.Empty(t, stdout)
	require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	for _, s := range want {
		require.Contains(t, stderr, s)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"help"}} {
		code, stdout, stderr := command(t, args...)
		require.Equal(t, exitOK, code, stderr)
		for _, name := range []string{"demo", "replay", "explain", "engine", "version"} {
			require.Contains(t, stdout, name)
		}
	}
	code, stdout, _ := command(t, "version")
	require.Equal(t, exitOK, code)
	require.Regexp(t, `^warmpath \S+ go1\S+\n$`, stdout)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"demo"}, {"demo", "--json"}} {
		var out, err bytes.Buffer
		require.Equal(t, exitInterrupted, run(ctx, args, &out, &err))
		require.Empty(t, out.String())
		require.Contains(t, err.String(), "interrupted")
	}
}
