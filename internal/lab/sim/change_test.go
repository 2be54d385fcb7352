package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

func TestParseChange(t *testing.T) {
	for text, want := range map[string]Change{
		"10m:+1": {At: 10 * time.Minute, Delta: 1}, "90s:-12": {At: 90 * time.Second, Delta: -12}, "0s:restart": {},
	} {
		c, err := ParseChange(text)
		require.NoError(t, err)
		require.Equal(t, want, c)
	}
	for _, text := range []string{"", "10m", "10m:", "10m:1", "10m:+0", "10m:+5000", "10m:-5000", "-1s:+1", "x:+1", "1m:stop", "1m:++1"} {
		_, err := ParseChange(text)
		require.ErrorContains(t, err, `"`+text, text)
	}
}

func FuzzParseChange(f *testing.F) {
	for _, s := range []string{"10m:+1", "90s:-2", "1h:restart", "1m:", ":", "1ns:+4096"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseChange(s)
		if err != nil {
			return
		}
		again, err := ParseChange(c.String())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// changing runs chats over a fleet of four that changes.
func changing(t *testing.T, name string, share Share, changes ...string) *drive.Result {
	t.Helper()
	c := small(name, 6, share)
	for _, text := range changes {
		ch, err := ParseChange(text)
		require.NoError(t, err)
		c.Changes = append(c.Changes, ch)
	}
	res := runOf(t, chatsFor(t, 6, 4*time.Minute), c)
	require.Zero(t, res.Errors)
	require.Positive(t, res.FleetChange.Tokens)
	return res
}

// after are the replicas that requests went to after a time.
func after(res *drive.Result, at time.Duration) map[string]int {
	n := map[string]int{}
	for _, s := range res.Samples {
		if s.At >= at {
			n[s.Replica]++
		}
	}
	return n
}

func TestJoin(t *testing.T) {
	t.Parallel()
	for _, share := range []Share{ShareNone, ShareBroadcast} {
		res := changing(t, "prefix_cache_affinity", share, "2m:+1")
		require.InDelta(t, 0.2, res.FleetChange.Unavoidable, 1e-9)
		require.Less(t, res.FleetChange.Ratio, 1.5)
		require.Len(t, after(res, 0), 5)
		first := res.Samples[0].At
		for _, s := range res.Samples {
			if s.Replica == "r4" {
				first = s.At
				break
			}
		}
		require.GreaterOrEqual(t, first, 2*time.Minute)
		if share == ShareBroadcast {
			require.Equal(t, res, changing(t, "prefix_cache_affinity", share, "2m:+1"), "the same every time")
		}
	}
}

func TestLeave(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"prefix_cache_affinity", "round_robin", "least_requests", "ray_prefix"} {
		res := changing(t, name, ShareBroadcast, "2m:-2")
		require.NotContains(t, after(res, 2*time.Minute), "r2")
		require.NotContains(t, after(res, 2*time.Minute), "r3")
		require.Len(t, after(res, 2*time.Minute), 2)
		require.Positive(t, res.FleetChange.Unavoidable)
		require.Less(t, res.FleetChange.Unavoidable, 1.0)
	}
}

func TestRollingRestart(t *testing.T) {
	t.Parallel()
	res := changing(t, "prefix_cache_affinity", ShareBroadcast, "1m:restart")
	require.Greater(t, res.FleetChange.Unavoidable, 0.2)
	require.Greater(t, res.FleetChange.Lost, 0.2)
	require.Less(t, res.FleetChange.Ratio, 1.5)
	away := map[string]time.Duration{} // the longest that nothing was sent there
	last := map[string]time.Duration{}
	for _, s := range res.Samples {
		away[s.Replica] = max(away[s.Replica], s.At-last[s.Replica])
		last[s.Replica] = s.At
	}
	for _, id := range []string{"r0", "r1", "r2"} {
		require.GreaterOrEqual(t, away[id], RestartTakes, id)
		require.Greater(t, last[id], 3*time.Minute, "it came back")
	}
}

// A replica that leaves for good in the midst of a rolling restart does not come back, one that joins is not restarted.
func TestChangesTogether(t *testing.T) {
	t.Parallel()
	res := changing(t, "round_robin", ShareLoad, "1m:restart", "70s:-1", "70s:+1")
	require.NotContains(t, after(res, 70*time.Second), "r3")
	require.Contains(t, after(res, 230*time.Second), "r4")
	require.Len(t, after(res, 230*time.Second), 4)
}

func TestChangesRefused(t *testing.T) {
	rs := chats(t, 8)
	for want, change := range map[string]func(*Config){
		"leaves 0 replicas":    func(c *Config) { c.Changes = []Change{{Delta: -4}} },
		"leaves none":          func(c *Config) { c.Changes = []Change{{Delta: -3}, {At: 1}} },
		"before the start":     func(c *Config) { c.Changes = []Change{{At: -1}} },
		"arrives after 1h":     func(c *Config) { c.Changes = []Change{{At: time.Hour}} },
		"stays as it is":       func(c *Config) { c.Channel, c.Changes = named("dynamo"), []Change{{Delta: 1}} },
		"leaves 4097 replicas": func(c *Config) { c.Replicas, c.Changes = maxMachines, []Change{{Delta: 1}} },
	} {
		c := small("round_robin", 2, ShareNone)
		change(&c)
		_, err := Run(t.Context(), NewPrompts(rs), c)
		require.ErrorContains(t, err, want)
	}
}

func TestLedger(t *testing.T) {
	l := &ledger{block: 16, marks: map[uint64]mark{1: {}, 2: {}, 3: {}, 4: {}}}
	held := func(h uint64) bool { return h != 1 }
	require.Equal(t, []int32{0, 2}, l.ask([]uint64{1, 9, 2}, held))
	require.Equal(t, []int32{2}, l.ask([]uint64{1, 9, 3}, held), "each block is asked for once")
	require.True(t, l.marks[1].gone)
	require.False(t, l.marks[2].gone)
	kept := func(hs ...uint64) *ledger {
		k := &ledger{block: 16, marks: map[uint64]mark{}}
		for _, h := range hs {
			k.marks[h] = mark{found: true}
		}
		return k
	}
	l.marks[3] = mark{asked: true, found: true}
	c := l.against(kept(1, 2, 3), 0, 1)
	require.Equal(t, 48, c.Tokens)
	require.InDelta(t, 2./3, c.Lost, 1e-9)
	require.InDelta(t, 1./3, c.Unavoidable, 1e-9)
	require.InDelta(t, 2, c.Ratio, 1e-9)
	require.InDelta(t, 1./3+2./3/4, l.against(kept(1, 2, 3), 1, 4).Unavoidable, 1e-9)
	require.Equal(t, &drive.FleetChange{}, l.against(kept(), 1, 4))
}

func TestMergeFleetChange(t *testing.T) {
	m := Merge([]*drive.Result{
		{Simulated: &drive.Simulated{FleetChange: &drive.FleetChange{Tokens: 10, Lost: 0.1, Unavoidable: 0.1, Ratio: 1}}},
		{Simulated: &drive.Simulated{FleetChange: &drive.FleetChange{Tokens: 20, Lost: 0.2, Unavoidable: 0.1, Ratio: 2}}},
	})
	require.Equal(t, 30, m.FleetChange.Tokens)
	require.InDelta(t, 1.5, m.FleetChange.Ratio, 1e-9)
	require.InDelta(t, 0.1, m.Spread.LostCache, 1e-9)
}
