// Package faults runs the scenarios of package chaos, small enough for every day, and checks what is promised:
// counts, not times, which the command measures.
package faults

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/chaos"
)

// served is the check that no call failed.
func served(t *testing.T, r *chaos.Result) {
	t.Helper()
	require.Equal(t, map[chaos.Outcome]int{chaos.Served: r.Calls}, r.Outcomes)
}

// sticky has the policies that keep sessions on their replica.
var sticky = []string{"consistent_hash", "kv_aware"}

// Every replica drains, stops and restarts under load. Not one call fails, with any policy. With sticky policies a
// step moves hardly more sessions than the replica had. All sessions find their prompts cached again before any
// replica has computed as many tokens as its cache holds.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	runs := most(sticky, func(p string, n int) chaos.Options {
		o := small("rolling-restart", p, n)
		if slices.Contains(sticky, p) {
			// With this many sessions, none exceeds a replica's share of the load that a client sees, so none is
			// spread. With few concurrent calls, none is moved to a less loaded replica.
			o.Sessions, o.Rate, o.PromptTokens, o.KVTokens = 32, 40, 64, 16384
			o.InFlight, o.Config = 4, patient
			if n > 1 && p != "consistent_hash" {
				o.Sessions, o.Rate = 48, 60
			}
		}
		return o
	})
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		served(t, r)
		if !slices.Contains(sticky, r.Policy) {
			return
		}
		require.Len(t, r.Moved, 8)
		most := 1.1 / 8
		if r.Policy != "consistent_hash" {
			most = 1.25 / 8 // on a busy machine a few calls go to less loaded replicas
		}
		require.LessOrEqual(t, r.MeanMoved, most, "%v", r.Moved)
		require.GreaterOrEqual(t, r.CacheBack, 0., "95 %% of the calm's hit ratio: %.2f, now %.2f", r.CachedBefore, r.CachedAfter)
		require.LessOrEqual(t, r.Refilled, r.KVTokens)
		if r.Policy == "consistent_hash" {
			require.Zero(t, r.Misrouted, "only sessions of a replica that went move")
		}
	})
}

// patient is a config without latency ejection and slow start, which would move sessions on a slow machine.
var patient = map[string]any{"ejection": map[string]any{"late_min": "1h", "slow_start": "off"}}

// Replicas cut their calls at SIGTERM. Only calls that had received something, or were sent twice, fail.
func TestAbort(t *testing.T) {
	t.Parallel()
	runs := most(both, func(p string, n int) chaos.Options {
		o := small("abort", p, n)
		o.Replicas = 4
		return o
	})
	play(t, runs, cut)
}

// cut checks that only those calls failed that must not be repeated.
func cut(t *testing.T, r *chaos.Result) {
	for _, c := range r.History {
		require.True(t, c.Outcome == chaos.Served || c.Received > 0 || c.Attempts > 1, "call %d: %v", c.Index, c.Err)
	}
	if r.Policy == "consistent_hash" {
		require.Zero(t, r.Misrouted)
	}
}

// Streams that take longer than a draining replica waits are cut, and no other calls fail. On a busy machine other
// calls may take as long, and may be cut too.
func TestStreamsOutlastTheGrace(t *testing.T) {
	t.Parallel()
	outlast := func(p string, n int) chaos.Options {
		o := small("outlast", p, n)
		o.Replicas = 4
		return o
	}
	runs := []chaos.Options{outlast("consistent_hash", 16), outlast("kv_aware", 1)}
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		for _, c := range r.History {
			long := c.Long || c.End-c.Start >= chaos.Draining
			require.True(t, c.Outcome != chaos.Cut || long, "call %d was cut after %v", c.Index, c.End-c.Start)
		}
	})
}

// SIGKILL, with real processes.
func TestKill(t *testing.T) {
	t.Parallel()
	launch := processes(t)
	kill := func(p string, n int) chaos.Options {
		o := small("kill", p, n)
		o.Replicas, o.Launch = 4, launch
		return o
	}
	play(t, most(both, kill), cut)
}
