package matrix

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/enginesim"
)

// contents returns the files of a directory.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		all[filepath.Base(f)] = string(b)
	}
	return all
}

// Every run is stored once, a stored run is not repeated, and workers change no result.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	var lines []string
	p := plan(t, dir, &lines)
	require.NoError(t, Run(t.Context(), p))
	all := contents(t, dir)
	require.Len(t, all, 3*3*2+2+2, "cells × policies × seeds, a proxy alone, two capacities")
	require.Contains(t, all, "one_smg_cache_aware_1_2.json")
	require.Contains(t, lines, "0 of 20 runs are there")
	require.Len(t, lines, 2+1+6)
	require.Contains(t, lines[8], "20 of 20 runs")
	var e Entry
	require.NoError(t, json.Unmarshal([]byte(all["three_round_robin_2_1.json"]), &e))
	require.Equal(t, p.Cells[2], e.Cell)
	require.Positive(t, e.Rate)
	require.Positive(t, e.Result.Requests)
	require.Nil(t, e.Result.Samples)

	lines = nil
	require.NoError(t, Run(t.Context(), p))
	require.Equal(t, []string{"20 of 20 runs are there"}, slices.DeleteFunc(lines, func(s string) bool { return strings.Contains(s, "capacity") }))

	other := t.TempDir()
	p.Dir, p.Workers = other, 1
	require.NoError(t, Run(t.Context(), p))
	require.Equal(t, all, contents(t, other))
}

// Thousands of runs, with a sample of each request, exceed the memory.
func TestNoResultStaysInMemory(t *testing.T) {
	p := plan(t, t.TempDir(), new([]string))
	r := newRunner(p)
	require.NoError(t, r.findRates(t.Context()))
	groups := r.groups()
	require.NotEmpty(t, groups)
	for _, g := range groups {
		require.NoError(t, r.group(t.Context(), g))
		for _, e := range g.todo {
			require.Nil(t, e.Result)
			require.True(t, r.kept(e))
		}
	}
}

// Results of other settings, or of another program, are made again.
func TestRunAgain(t *testing.T) {
	dir := t.TempDir()
	var lines []string
	p := plan(t, dir, &lines)
	p.Cells, p.Seeds, p.Policies = p.Cells[1:2], 1, p.Policies[:2]
	require.NoError(t, Run(t.Context(), p))
	count := func(want string) {
		t.Helper()
		lines = nil
		require.NoError(t, Run(t.Context(), p))
		require.Contains(t, lines, want)
	}
	count("2 of 2 runs are there")
	path := filepath.Join(dir, "two_round_robin_1_1.json")
	require.NoError(t, os.WriteFile(path, []byte("{"), 0o600))
	count("1 of 2 runs are there")
	count("2 of 2 runs are there")
	p.Code = "that"
	count("0 of 2 runs are there")
	p.Cells[0].Load = 0.3
	count("0 of 2 runs are there")
	p.Seeds = 2
	count("2 of 4 runs are there")
	p.Duration *= 2
	count("0 of 4 runs are there")
}

func TestRunFails(t *testing.T) {
	var lines []string
	p := plan(t, t.TempDir(), &lines)
	p.Trace = nil
	require.ErrorIs(t, Run(t.Context(), p), errNoTrace)

	p = plan(t, t.TempDir(), &lines)
	p.Cells[1].Name = "one"
	require.ErrorIs(t, Run(t.Context(), p), ErrCell)

	p = plan(t, t.TempDir(), &lines)
	p.Cells[0].KVTokens = 1000
	require.ErrorIs(t, Run(t.Context(), p), enginesim.ErrTooLong)

	p = plan(t, t.TempDir(), &lines)
	ctx, cancel := context.WithCancel(t.Context())
	p.Log = func(line string) {
		if strings.Contains(line, "seed") {
			cancel()
		}
	}
	p.Workers = 1
	require.ErrorIs(t, Run(ctx, p), context.Canceled)
	require.Contains(t, contents(t, p.Dir), "one_round_robin_2_1.json")
	require.NotContains(t, contents(t, p.Dir), "one_round_robin_2_2.json")
	lines = nil
	p.Log = func(line string) { lines = append(lines, line) }
	require.NoError(t, Run(t.Context(), p))
	require.Contains(t, lines, "4 of 20 runs are there", "it goes on where it stood")
}

func TestProgram(t *testing.T) {
	code, err := Program()
	require.NoError(t, err)
	require.Len(t, code, 16)
}
