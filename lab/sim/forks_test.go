package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/workload"
)

// withForks adds, to each session that has eleven turns, children that begin with its tenth: six turns each, all at the
// same time.
func withForks(t testing.TB, rs []workload.Request, children int) []workload.Request {
	t.Helper()
	out := slices.Clone(rs)
	for _, r := range rs {
		if r.Turn != 10 {
			continue
		}
		for c := range children {
			child := r
			child.Parent, child.Session = r.Session, fmt.Sprint(r.Session, "-", c)
			for turn := range 6 {
				child.ID, child.Turn, child.OutputTokens = fmt.Sprint(child.Session, ".", turn), turn, 150
				fresh := workload.Segment{Seed: xxh3.HashString(child.ID), Len: 400}
				child.Segments = append(slices.Clip(child.Segments), fresh)
				child.PromptTokens += int(fresh.Len)
				child.At += 6 * time.Second
				out = append(out, child)
			}
		}
	}
	workload.Sort(out)
	return out
}

// Without prompts, a child that has its parent's key finds the parent's cache. With prompts the prefix finds it.
func TestForksBeginAtTheirParents(t *testing.T) {
	skipUnderRace(t)
	rs, err := workload.Generate(workload.Spec{Name: "agents", Rate: 12, Duration: 150 * time.Second, Seed: 3})
	require.NoError(t, err)
	family := withForks(t, rs, 4)
	alone := slices.Clone(family)
	for i := range alone {
		alone[i].Parent = ""
	}
	run := func(rs []workload.Request, policy string) *drive.Result {
		c := small(policy, 1, ShareNone)
		c.Replicas, c.Engines = 16, nil
		res := runOf(t, rs, c)
		t.Logf("%-21s parents %-5t cached %.3f, TTFT mean %.0f ms, p99 %.0f ms, TPOT p99 %.0f ms", policy, rs[len(rs)-1].Parent != "",
			res.CachedTokenRatio, res.TTFT.Mean, res.TTFT.P99, res.TPOT.P99)
		return res
	}
	own, near := run(alone, "consistent_hash"), run(family, "consistent_hash")
	require.Greater(t, near.CachedTokenRatio, own.CachedTokenRatio+0.03)
	require.Less(t, near.TTFT.Mean, 0.9*own.TTFT.Mean)
	prefix := run(alone, "kv_aware")
	require.InDelta(t, near.CachedTokenRatio, prefix.CachedTokenRatio, 0.02)
	require.Equal(t, prefix.Figures, run(family, "kv_aware").Figures, "the prompt decides, not the parent")
}
