package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSimMatrix(t *testing.T) {
	cells := filepath.Join(t.TempDir(), "cells.json")
	require.NoError(t, os.WriteFile(cells, []byte(`{"cells":[
		{"name":"quiet","factor":"mine","workload":"nothing-shared","replicas":2,"kv_tokens":60000},
		{"name":"recorded","factor":"mine","replicas":1,"clients":2,"rate":1,"minutes":0.2,"warm_up_minutes":0.01}]}`), 0o600))
	dir := filepath.Join(t.TempDir(), "results")
	args := []string{"sim", "--matrix", cells, "--results", dir, "--seeds", "2", "--policies", "round_robin,kv_aware"}
	all := append(args, "--duration", "15s", "--warmup", "2s", "--trace", conversations(t, 30, 4), "--format", "mooncake", "--jitter", "100ms")
	code, stdout, stderr := command(t, all...)
	require.Equal(t, exitOK, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "8 of 8 runs")
	code, _, stderr = command(t, all...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stderr, "8 of 8 runs are there")

	code, stdout, stderr = command(t, append(args, "--summary")...)
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "2 cells, 8 runs")
	require.Contains(t, stdout, "## 1 cells with 64 clients")
	require.Contains(t, stdout, "## Where not: `kv_aware`")
	require.Contains(t, stdout, "### recorded")
	code, stdout, stderr = command(t, append(args, "--summary", "--cells", "quiet")...)
	require.Equal(t, exitOK, code, stderr)
	require.NotContains(t, stdout, "### recorded")
}

func TestSimMatrixMistakes(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"cells":[{"name":"a","load":-1}]}`), 0o600))
	of := func(args ...string) []string { return append([]string{"sim", "--matrix", "builtin"}, args...) }
	for _, c := range []struct {
		args []string
		want []string
	}{
		{of(), []string{"--results"}},
		{of("--results", dir), []string{"--trace"}},
		{of("--results", dir, "--trace", "/nowhere", "--format", "text"), []string{"--trace", "/nowhere"}},
		{of("--results", dir, "--replicas", "3"), []string{"--replicas", "--matrix"}},
		{of("--results", dir, "--json"), []string{"--json", "--matrix"}},
		{of("--results", dir, "--cells", "base,corner"), []string{"--cells", `"corner"`}},
		{of("--results", dir, "--workers", "0"), []string{"--workers"}},
		{of("--results", dir, "--seeds", "0"), []string{"--seeds"}},
		{of("--results", dir, "--duration", "1m"), []string{"--duration", "3m"}},
		{of("--results", dir, "--policies", "fair"), []string{"--policies", `"fair"`}},
		{[]string{"sim", "--matrix", "/nowhere", "--results", dir}, []string{"--matrix", "/nowhere"}},
		{[]string{"sim", "--matrix", bad, "--results", dir}, []string{"--matrix", "bad.json", "load"}},
		{[]string{"sim", "--workload", "chat", "--summary"}, []string{"--summary", "--matrix"}},
		{[]string{"sim", "--workload", "chat", "--results", dir}, []string{"--results", "--matrix"}},
	} {
		t.Run(strings.Join(c.args[1:], " "), func(t *testing.T) { requireMistake(t, c.args, c.want) })
	}
}
