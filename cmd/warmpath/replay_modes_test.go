package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// replayed runs replay with engines and servers of its own.
func replayed(t *testing.T, args ...string) drive.Comparison {
	t.Helper()
	all := []string{"replay", "--clients", "3", "--engines", "3", "--speed", "10", "--load", "0.3", "--json"}
	code, stdout, stderr := command(t, append(all, args...)...)
	wentWell(t, code, stderr)
	var c drive.Comparison
	strict(t, stdout, &c)
	for _, r := range c.Results {
		require.Zero(t, r.Errors, stderr)
		require.Positive(t, r.Requests)
	}
	return c
}

func TestReplayModes(t *testing.T) {
	c := replayed(t, "--mode", "local,broadcast,central", "--duration", "2s", "--central-deadline", "5s")
	require.Len(t, c.Results, 3)
	for i, mode := range []string{"local", "broadcast", "central"} {
		r := c.Results[i]
		require.Equal(t, mode, r.Policy)
		require.Positive(t, r.CachedTokenRatio)
		require.Nil(t, r.Phases)
		if mode == "central" {
			require.Positive(t, r.Decisions["central"])
		} else {
			require.Zero(t, r.Decisions["central"]+r.Decisions["fallback_local"])
		}
	}
}

// Whatever becomes of the server, no call fails.
func TestReplayFaults(t *testing.T) {
	for _, fault := range []string{"kill", "stop", "cut"} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			r := replayed(t, "--mode", "central", "--duration", "8s", "--central-deadline", "500ms", "--fault", fault, "--fault-for", "1s").Results[0]
			require.Len(t, r.Phases, 3)
			require.NotNil(t, r.RecoveredMS)
			require.Positive(t, r.Decisions["central"])
			require.Positive(t, r.Decisions["fallback_local"])
			for i, name := range []string{"before", fault, "after"} {
				require.Equal(t, name, r.Phases[i].Name)
				require.Zero(t, r.Phases[i].Errors)
				require.Positive(t, r.Phases[i].Requests)
			}
			require.Greater(t, r.Phases[0].ByServer, r.Phases[1].ByServer)
		})
	}
}

// Of two servers one is killed, and the other decides.
func TestReplayTwoServers(t *testing.T) {
	t.Parallel()
	r := replayed(t, "--mode", "central", "--servers", "2", "--duration", "8s", "--central-deadline", "500ms", "--fault", "kill", "--fault-for", "3s").Results[0]
	require.Positive(t, r.Phases[1].ByServer)
	require.Positive(t, r.Phases[2].ByServer)
}

func TestReplayModeMistakes(t *testing.T) {
	for want, args := range map[string][]string{
		`--mode: "remote" is unknown`:                    {"--mode", "remote"},
		"--mode: local is named twice":                   {"--mode", "local,local"},
		`--fault: "flood" is unknown`:                    {"--mode", "central", "--fault", "flood"},
		"--fault: there is no look-aside server without": {"--mode", "local", "--fault", "kill"},
		"--mode needs a list of servers":                 {"--mode", "central", "--target", "dns:///h:1"},
		"--trace is required":                            {"--clients", "2"},
		"--format":                                       {"--mode", "local", "--trace", "x"},
	} {
		code, _, stderr := command(t, append([]string{"replay"}, args...)...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, stderr, want)
	}
}

// whenSaid calls then when something is written that has the text in it.
type whenSaid struct {
	text string
	then func()
}

func (w whenSaid) Write(p []byte) (int, error) {
	if strings.Contains(string(p), w.text) {
		w.then()
	}
	return len(p), nil
}

// Whoever interrupts in the midst of a fault is not left with a server that was started again.
func TestReplayIsInterruptedInAFault(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	code := run(ctx, []string{
		"replay", "--engines", "2", "--speed", "1", "--load", "0.3", "--mode", "broadcast", "--duration", "20s",
		"--fault", "kill", "--fault-after", "500ms", "--fault-for", "1m", "--server-log",
	}, io.Discard, whenSaid{"cannot be followed", interrupt})
	require.Equal(t, exitInterrupted, code)
}
