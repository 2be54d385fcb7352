// Package faults runs the scenarios of package chaos, small enough for every day, and holds them to what was promised: not
// to times, which the command measures, but to counts.
package faults

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/chaos"
)

// served is the check that no call failed.
func served(t *testing.T, r *chaos.Result) {
	t.Helper()
	require.Equal(t, map[chaos.Outcome]int{chaos.Served: r.Calls}, r.Outcomes)
}

// sticky are the policies that keep sessions together.
var sticky = []string{"consistent_hash", "prefix_cache_affinity", "kv_aware"}

// Every replica drains, goes and comes back under load. Not one call fails, with any policy; with those that keep sessions
// together a step moves no more of them than the replica had, nearly, and all find their prompts cached again before any
// replica has computed as much as its cache holds.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	runs := most(sticky, func(p string, n int) chaos.Options {
		o := small("rolling-restart", p, n)
		if slices.Contains(sticky, p) {
			// So many that none has more than a replica's share of what any client sees, or it would be spread; and few
			// calls at a time, or they would go where there is less load.
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
			most = 1.25 / 8 // on a busy machine a few calls go where there is less load
		}
		require.LessOrEqual(t, r.MeanMoved, most, "%v", r.Moved)
		require.GreaterOrEqual(t, r.CacheBack, 0., "95 %% of the calm's hit ratio: %.2f, now %.2f", r.CachedBefore, r.CachedAfter)
		require.LessOrEqual(t, r.Refilled, r.KVTokens)
		if r.Policy == "consistent_hash" {
			require.Zero(t, r.Misrouted, "only sessions of a replica that went move")
		}
	})
}

// patient is a config that takes no replica for ill, or for new, because this machine is slow. Both move sessions.
var patient = map[string]any{"ejection": map[string]any{"late_min": "1h", "slow_start": "off"}}

// Replicas that cut their calls at SIGTERM: only those fail that had received something, or were sent twice.
func TestAbort(t *testing.T) {
	t.Parallel()
	runs := most(both, func(p string, n int) chaos.Options {
		o := small("abort", p, n)
		o.Replicas = 4
		return o
	})
	play(t, runs, cut)
}

// cut is the check that only those calls failed that must not be repeated.
func cut(t *testing.T, r *chaos.Result) {
	for _, c := range r.History {
		require.True(t, c.Outcome == chaos.Served || c.Received > 0 || c.Attempts > 1, "call %d: %v", c.Index, c.Err)
	}
	if r.Policy == "consistent_hash" {
		require.Zero(t, r.Misrouted)
	}
}

// Streams that take longer than a draining replica may wait: they are cut, and nothing else. On a busy machine others
// may take as long; whoever is cut was under way all that time.
func TestStreamsOutlastTheGrace(t *testing.T) {
	t.Parallel()
	outlast := func(p string, n int) chaos.Options {
		o := small("outlast", p, n)
		o.Replicas = 4
		return o
	}
	runs := []chaos.Options{outlast("consistent_hash", 16), outlast("prefix_cache_affinity", 1)}
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
