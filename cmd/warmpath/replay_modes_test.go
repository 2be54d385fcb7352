package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/enginesim/grpcserver"
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

// Through a look-aside server, replay names the policy that the server pushes, and what the clients share.
func TestReplayNamesThePolicyInForce(t *testing.T) {
	fleet, err := drive.StartFleet(t.Context(), 2, 0, grpcserver.Config{Speed: 20})
	require.NoError(t, err)
	defer fleet.Kill()
	var replicas []string
	for i, r := range fleet.Replicas {
		replicas = append(replicas, fmt.Sprintf("{id: r%d, address: %q}", i, r.Address))
	}
	server, _ := servingWith(t, "--config", file(t, "server.yaml", "listen: 127.0.0.1:0\ndeployments:\n"+
		"  chat: {policy: {consistent_hash: {}}, replicas: ["+strings.Join(replicas, ", ")+"]}\n"))
	args := []string{"replay", "--trace", conversations(t, 4, 3), "--format", "mooncake", "--target", "warmpath://" + server + "/chat",
		"--clients", "2", "--speed", "20", "--policies", "round_robin"}
	code, stdout, stderr := command(t, append(args, "--json")...)
	wentWell(t, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	require.Equal(t, "consistent_hash", c.Results[0].Policy)
	code, stdout, stderr = command(t, args...)
	wentWell(t, code, stderr)
	require.Contains(t, stdout, "With 2 clients of the look-aside server "+server+", consistent_hash finds")
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
