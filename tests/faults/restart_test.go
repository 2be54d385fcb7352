// Package faults runs the scenarios of package chaos, small enough for every day, and holds them to what was promised: not
// to times, which the command measures, but to counts.
package faults

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/chaos"
)

// served is the check that no call failed.
func served(t *testing.T, r *chaos.Result) {
	t.Helper()
	require.Equal(t, map[chaos.Outcome]int{chaos.Served: r.Calls}, r.Outcomes)
}

// Every replica drains, goes and comes back under load, and not one call fails, with any policy.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	runs := each(policies, []int{1, 16}, func(p string, n int) chaos.Options { return small("rolling-restart", p, n) })
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		served(t, r)
		if r.Policy == "consistent_hash" {
			require.Len(t, r.Moved, 8)
			require.Zero(t, r.Misrouted, "only sessions of a replica that went move")
		}
	})
}

// Replicas that cut their calls at SIGTERM: only those fail that had received something, or were sent twice.
func TestAbort(t *testing.T) {
	t.Parallel()
	abort := func(p string, n int) chaos.Options {
		o := small("abort", p, n)
		o.Replicas = 4
		return o
	}
	runs := append(each(policies, []int{1}, abort), each(both, []int{16}, abort)...)
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		if r.Policy == "consistent_hash" {
			require.Zero(t, r.Misrouted)
		}
	})
}

// Streams that take longer than a draining replica may wait: they are cut, and nothing else.
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
			require.True(t, c.Outcome != chaos.Cut || c.Long, "call %d was cut and is not long", c.Index)
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
	runs := append(each(policies, []int{1}, kill), kill("prefix_cache_affinity", 16))
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		if r.Policy == "consistent_hash" {
			require.Zero(t, r.Misrouted)
		}
	})
}
