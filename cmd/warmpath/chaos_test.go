package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestChaos(t *testing.T) {
	args := []string{"chaos", "--scenario", "kill", "--policy", "consistent_hash", "--clients", "1,2", "--replicas", "3",
		"--rate", "100", "--sessions", "8", "--prompt", "128", "--output", "4", "--speed", "10", "--timeout", "60s"}
	code, stdout, stderr := command(t, append(args, "--json")...)
	require.Equal(t, exitOK, code, stderr)
	var r chaosReport
	strict(t, stdout, &r)
	require.True(t, r.Kept)
	require.Len(t, r.Results, 2)
	for i, x := range r.Results {
		require.Equal(t, i+1, x.Clients)
		require.Equal(t, "kill", x.Scenario)
		require.Zero(t, x.Lost)
		require.Zero(t, x.Leaked)
		n := 0
		for _, k := range x.Outcomes {
			n += k
		}
		require.Equal(t, x.Calls, n)
		require.Greater(t, x.Calls, 40)
		require.Equal(t, []float64{x.Moved[0]}, x.Moved, "one of the three was killed")
	}
	require.Contains(t, stderr, "r0 is killed")
}

func TestChaosTable(t *testing.T) {
	code, stdout, stderr := command(t, "chaos", "--scenario", "reset", "--replicas", "2", "--rate", "100", "--sessions", "4",
		"--prompt", "64", "--output", "4", "--speed", "10", "--timeout", "60s")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "kv_aware")
	require.Contains(t, stdout, "yes")
}
