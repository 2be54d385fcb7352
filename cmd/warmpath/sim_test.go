package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
)

func TestSim(t *testing.T) {
	trace := conversations(t, 30, 4)
	page, table := filepath.Join(t.TempDir(), "sim.html"), filepath.Join(t.TempDir(), "sim.csv")
	args := []string{"sim", "--trace", trace, "--format", "mooncake", "--replicas", "4", "--clients", "3", "--warmup", "1s", "--jitter", "500ms"}
	policies := []string{"round_robin", "kv_aware", "least_tokens", "dynamo_s16"}
	asked := append(args, "--json", "--policies", strings.Join(policies, ","), "--share", "load", "--report", page, "--csv", table)
	code, stdout, stderr := command(t, asked...)
	require.Equal(t, exitOK, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	requireFields(t, stdout)
	require.Contains(t, stdout, `"preemptions":`)
	require.Contains(t, stdout, `"kv_imbalance":`)
	require.NotContains(t, stdout, `"spread"`)
	require.Equal(t, 4, c.Replicas)
	require.Equal(t, 3, c.Clients)
	requireSound(t, c, policies...)
	require.Greater(t, c.Results[1].CachedTokenRatio, c.Results[0].CachedTokenRatio)
	require.Contains(t, stderr, "round_robin, seed 1: done")
	for path, begins := range map[string]string{page: "<!DOCTYPE html>", table: "policy,requests"} {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.HasPrefix(b, []byte(begins)), path)
	}

	_, again, _ := command(t, asked...)
	require.Equal(t, stdout, again, "the same seed gives the same bytes")
	_, other, _ := command(t, append(asked, "--seed", "2")...)
	require.NotEqual(t, stdout, other)

	code, stdout, stderr = command(t, append(args, "--seeds", "2", "--policies", "random", "--share", "load")...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "spread")
	require.Contains(t, stdout, "With 3 clients that share load every 100ms, random finds")
	require.Contains(t, stdout, "preemptions")
	code, stdout, stderr = command(t, append(args, "--share", "broadcast", "--policies", "random", "--preset", "h100-14b,2xh100-8b",
		"--kv-tokens", "300000,400000", "--copies", "2", "--report", page)...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "With 3 clients that share load and a coarse index of the caches every 100ms, random finds")
	require.Regexp(t, `random +180 `, stdout)
	html, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), "on 4 × h100-14b and 2xh100-8b with")
	require.Contains(t, string(html), "<dt>--good-ttft</dt><dd>5s</dd>")
	require.Contains(t, string(html), ">preemptions</th><th scope=\"col\" class=\"n\">KV busiest ÷ mean</th>")
	require.NotContains(t, string(html), ">spread</th>", "there is one seed")
	code, stdout, stderr = command(t, append(args, "--seeds", "2", "--policies", "random", "--json", "--report", page)...)
	require.Equal(t, exitOK, code, stderr)
	strict(t, stdout, &c)
	require.Positive(t, c.Results[0].Spread.TTFT.Mean)
	require.Positive(t, c.Results[0].Goodput)
	_, strictly, _ := command(t, append(args, "--policies", "random", "--json", "--good-ttft", "1ms")...)
	strict(t, strictly, &c)
	require.Zero(t, c.Results[0].Goodput)
	html, err = os.ReadFile(page)
	require.NoError(t, err)
	require.Contains(t, string(html), ">spread</th><th scope=\"col\" class=\"n\">cached tokens</th>")
}

// A reader of the demo's JSON can read the simulator's object.
func TestSimIsADemo(t *testing.T) {
	code, stdout, stderr := command(t, "sim", "--trace", conversations(t, 10, 3), "--format", "mooncake", "--warmup", "0s",
		"--policies", "consistent_hash", "--client-affinity", "--json")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, `"replicas":16,"clients":1,"requests":30,`)
	var c drive.Comparison
	require.NoError(t, json.Unmarshal([]byte(stdout), &c))
	requireSound(t, c, "consistent_hash")
}

// The load is a fraction of a capacity that one search finds.
func TestSimLoad(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	for _, source := range [][]string{
		{"--workload", "nothing-shared", "--duration", "20s"},
		{"--trace", conversations(t, 30, 4), "--format", "mooncake"},
	} {
		args := append([]string{"sim", "--replicas", "2", "--warmup", "2s", "--policies", "round_robin", "--load", "0.5", "--json"}, source...)
		code, stdout, stderr := command(t, args...)
		require.Equal(t, exitOK, code, stderr)
		require.Contains(t, stderr, "capacity: trying")
		require.Contains(t, stderr, "50 % of the capacity")
		code, again, stderr := command(t, args...)
		require.Equal(t, exitOK, code, stderr)
		require.NotContains(t, stderr, "capacity: trying")
		require.Equal(t, stdout, again)
	}
	files, err := filepath.Glob(filepath.Join(dir, "warmpath", "capacity-*.json"))
	require.NoError(t, err)
	require.Len(t, files, 2)
}

func TestSimMistakes(t *testing.T) {
	trace := conversations(t, 2, 2)
	of := func(args ...string) []string {
		return append([]string{"sim", "--trace", trace, "--format", "mooncake"}, args...)
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"sim"}, []string{"--trace", "--workload", "chat"}},
		{[]string{"sim", "--trace", trace}, []string{"--format", "required"}},
		{[]string{"sim", "--trace", "/nowhere", "--format", "text"}, []string{"--trace", "/nowhere"}},
		{[]string{"sim", "--workload", "talk"}, []string{"--workload", `"talk"`, "agents"}},
		{[]string{"sim", "--workload", "chat", "--rate-scale", "2"}, []string{"--rate-scale", "--trace"}},
		{[]string{"sim", "--workload", "chat", "--duration", "1m"}, []string{"--duration", "5m"}},
		{of("--workload", "chat"), []string{"--trace", "--workload"}},
		{of("--duration", "1m"), []string{"--duration", "--workload"}},
		{of("--unshared", "0.2"), []string{"--unshared", "--workload"}},
		{[]string{"sim", "--workload", "chat", "--unshared", "1"}, []string{"--unshared"}},
		{[]string{"sim", "--workload", "chat", "--copies", "2"}, []string{"--copies", "--trace"}},
		{of("--copies", "0"), []string{"--copies"}},
		{of("--copies", "1001"), []string{"--copies", "1000"}},
		{of("--preset", "h100-14b,2xh100-8b", "--kv-tokens", "1000,2000,3000"), []string{"--kv-tokens", "3", "2"}},
		{of("--preset", "h100-14b,h200"), []string{"--preset", `"h200"`}},
		{of("--preset", ""), []string{"--preset"}},
		{of("--load", "0.7", "--rate-scale", "2"), []string{"--load", "--rate-scale"}},
		{of("--rate", "3"), []string{"--rate", "--workload"}},
		{of("--at-once", "-1"), []string{"--at-once"}},
		{of("--at-once", "8", "--load", "0.7"), []string{"--at-once", "--load"}},
		{[]string{"sim", "--workload", "chat", "--rate", "-1"}, []string{"--rate"}},
		{[]string{"sim", "--workload", "chat", "--rate", "3", "--load", "1"}, []string{"--rate", "--load"}},
		{of("--load", "0"), []string{"--load"}},
		{of("--rate-scale", "NaN"), []string{"--rate-scale"}},
		{of("--jitter", "-1s"), []string{"--jitter"}},
		{of("--good-ttft", "0s"), []string{"--good-ttft", "positive"}},
		{of("--warmup", "1h"), []string{"--warmup", "1h"}},
		{of("--replicas", "0"), []string{"--replicas"}},
		{of("--clients", "0"), []string{"--clients"}},
		{of("--seeds", "0"), []string{"--seeds"}},
		{of("--seeds", "1001"), []string{"--seeds", "1000"}},
		{of("--policies", "fair"), []string{"--policies", `"fair"`, "dynamo", "round_robin"}},
		{of("--policies", ""), []string{"--policies"}},
		{of("--policies", "random,random"), []string{"--policies", "twice"}},
		{of("--share", "all"), []string{"--share", `"all"`, "none, load, broadcast, poll"}},
		{of("--broadcast-interval", "0s"), []string{"--broadcast-interval", "1ms"}},
		{of("--preset", "h200"), []string{"--preset", `"h200"`}},
		{of("--report", "/nowhere/to/be/found.html"), []string{"--report", "/nowhere/to/be"}},
	} {
		t.Run(strings.Join(c.args[1:], " "), func(t *testing.T) { requireMistake(t, c.args, c.want) })
	}
}

func TestSimFails(t *testing.T) {
	code, _, stderr := command(t, "sim", "--trace", conversations(t, 3, 2), "--format", "mooncake", "--warmup", "0s",
		"--kv-tokens", "512", "--policies", "round_robin")
	require.Equal(t, exitFailed, code)
	require.Contains(t, stderr, "every request of round_robin failed")

	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	var out, err bytes.Buffer
	require.Equal(t, exitInterrupted, run(ctx, []string{"sim", "--workload", "chat"}, &out, &err))
	require.Empty(t, out.String())
}
