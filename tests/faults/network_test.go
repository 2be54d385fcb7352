package faults

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/chaos"
)

var both = []string{"consistent_hash", "kv_aware"}

// silence is how long a replica is silent, and the deadline of the calls meanwhile. A call on a healthy replica takes
// a hundredth of it.
const silence = 10 * time.Second

// requireOnly checks that calls timed out on the replicas named, and nowhere else.
func requireOnly(t *testing.T, r *chaos.Result, silent ...string) {
	t.Helper()
	for _, c := range r.History {
		if c.Outcome == chaos.TimedOut {
			require.Contains(t, silent, c.Replica)
		}
	}
}

// SIGSTOP, with real processes: calls on the hung replica end at their deadline, and all others are served. The
// replica gets calls again after SIGCONT.
func TestHang(t *testing.T) {
	t.Parallel()
	launch := processes(t)
	runs := each(both, []int{1, 16}, func(p string, n int) chaos.Options {
		o := small("hang", p, n)
		o.Replicas, o.Launch, o.Timeout = 4, launch, silence
		return o
	})
	play(t, runs, func(t *testing.T, r *chaos.Result) { requireOnly(t, r, "r0") })
}

// Half-open connections: once they are found to be broken, calls that had received nothing are served elsewhere.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	runs := most(both, func(p string, n int) chaos.Options {
		o := small("half-open", p, n)
		o.Replicas = 4
		return o
	})
	play(t, runs, cut)
}

// A GOAWAY loses no call, and moves sessions only until the channel has reconnected.
func TestGoAway(t *testing.T) {
	t.Parallel()
	runs := most(both, func(p string, n int) chaos.Options {
		o := small("go-away", p, n)
		o.Replicas = 4
		return o
	})
	play(t, runs, func(t *testing.T, r *chaos.Result) {
		served(t, r)
		if r.Policy == "consistent_hash" {
			require.Zero(t, r.Misrouted)
		}
	})
}

func TestPartition(t *testing.T) {
	t.Parallel()
	partition := func(p string, n int) chaos.Options {
		o := small("partition", p, n)
		o.Replicas, o.Timeout = 4, silence
		return o
	}
	runs := []chaos.Options{partition("consistent_hash", 1), partition("kv_aware", 16)}
	play(t, runs, func(t *testing.T, r *chaos.Result) { requireOnly(t, r, "r0", "r1") })
}

// Connections that are reset, closed, or get GOAWAY under load.
func TestReset(t *testing.T) {
	t.Parallel()
	reset := func(p string, n int) chaos.Options {
		o := small("reset", p, n)
		o.Replicas = 4
		return o
	}
	runs := most(both[1:], reset)
	play(t, runs, func(*testing.T, *chaos.Result) {})
}

// A replica that answers late and reads slowly loses no call.
func TestSlow(t *testing.T) {
	t.Parallel()
	slow := func(p string, n int) chaos.Options {
		o := small("slow", p, n)
		o.Replicas, o.Late = 4, 200*time.Millisecond
		return o
	}
	play(t, most(both, slow), served)
}

// The fleet grows tenfold and shrinks again: no call fails.
func TestScale(t *testing.T) {
	t.Parallel()
	scale := func(p string, n int) chaos.Options {
		o := small("scale", p, n)
		o.Replicas, o.Most, o.Sessions, o.PromptTokens = 4, 40, 16, 32
		if n > 1 { // connections are their product
			o.Replicas, o.Most = 2, 20
		}
		return o
	}
	for _, o := range most(both[1:], scale) { // one after the other: together they need more than a slow machine has
		play(t, []chaos.Options{o}, served)
	}
}

// The load exceeds the admission limits: calls that are not served are refused, and afterwards the fleet recovers.
func TestFlood(t *testing.T) {
	t.Parallel()
	flood := func(p string, n int) chaos.Options {
		o := small("flood", p, n)
		o.Replicas, o.Speed, o.InFlight = 2, 2, 256
		return o
	}
	runs := []chaos.Options{flood("consistent_hash", 16), flood("kv_aware", 1)}
	play(t, runs, func(*testing.T, *chaos.Result) {})
}

// Memory and goroutines stay constant through churn: nothing grows from one tour of the fleet to the next. The test
// is not parallel, since the other tests' goroutines would count.
func TestSoak(t *testing.T) {
	o := small("soak", "kv_aware", 4)
	o.Replicas, o.Turns, o.Rate = 3, 12, 40
	play(t, []chaos.Options{o}, func(t *testing.T, r *chaos.Result) {
		require.Len(t, r.Footprints, 4)
		first, last := r.Footprints[0], r.Footprints[3]
		// A call under way takes some ten goroutines, and one of the samples may include one or two calls.
		require.Less(t, last.Goroutines, first.Goroutines+50, "%+v", r.Footprints)
		require.Less(t, last.Heap, first.Heap+4<<20, "%+v", r.Footprints)
	})
}
