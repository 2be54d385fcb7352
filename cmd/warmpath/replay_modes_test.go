package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/enginesim/grpcserver"
)

// requireModes checks that each mode decided in its own way, and that no call failed. It returns the figures.
func requireModes(t *testing.T, stdout string, modes ...string) (c drive.Comparison) {
	t.Helper()
	strict(t, stdout, &c)
	require.Len(t, c.Results, len(modes))
	for i, mode := range modes {
		r := c.Results[i]
		require.Equal(t, mode, r.Policy)
		require.Zero(t, r.Errors)
		require.Positive(t, r.Requests)
		require.Positive(t, r.CachedTokenRatio)
		require.Positive(t, r.RequestsCV)
		if mode == "central" {
			require.Positive(t, r.Decisions["central"])
		} else {
			require.Zero(t, r.Decisions["central"]+r.Decisions["fallback_local"])
		}
	}
	return c
}

func TestDemoModes(t *testing.T) {
	code, stdout, stderr := command(t, "demo", "--clients", "3", "--replicas", "3", "--speed", "10", "--load", "0.3", "--json",
		"--policies", "kv_aware", "--mode", "local,broadcast,central", "--duration", "6s", "--central-deadline", "5s", "--servers", "2")
	wentWell(t, code, stderr)
	for _, r := range requireModes(t, stdout, "local", "broadcast", "central").Results {
		require.Positive(t, r.FollowUpsHome)
	}
}

// With a target, replay also starts a look-aside server for its replicas.
func TestReplayModes(t *testing.T) {
	const speed = 20
	fleet, err := drive.StartFleet(t.Context(), 3, 0, grpcserver.Config{Speed: speed})
	require.NoError(t, err)
	defer fleet.Kill()
	code, stdout, stderr := command(t, "replay", "--trace", conversations(t, 10, 4), "--format", "mooncake", "--target", fleet.Target(),
		"--clients", "3", "--speed", "20", "--json", "--mode", "broadcast,central", "--central-deadline", "5s")
	wentWell(t, code, stderr)
	requireModes(t, stdout, "broadcast", "central")
}

func TestModeMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		`--mode: "remote" is unknown`:   {"demo", "--mode", "remote"},
		"--mode: local is named twice":  {"demo", "--mode", "local,local"},
		"--central-deadline: 0s is not": {"demo", "--mode", "central", "--central-deadline", "0s"},
		"--servers: 0 is less than 1":   {"demo", "--mode", "central", "--servers", "0"},
		"--mode needs a list of servers": {"replay", "--trace", "x", "--format", "text", "--mode", "central", "--target",
			"dns:///h:1"},
		"--trace is required": {"replay", "--mode", "local"},
	} {
		requireMistake(t, args, []string{want})
	}
}
