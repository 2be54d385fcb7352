package matrix

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/sim"
)

// outcome is a policy's row: times in ms, the same for two seeds.
func outcome(policy string, clients int, ttft, p99, tpot, good float64) Row {
	r := of(policy, clients, ttft, ttft)
	for _, run := range r.Runs {
		run.TTFT.P99, run.TPOT, run.Goodput = p99, drive.Distribution{Mean: tpot}, good
	}
	return r
}

// of is a policy's row: the mean TTFT in ms of each seed, 0 for a missing one.
func of(policy string, clients int, ttft ...float64) Row {
	r := Row{Policy: policy, Clients: clients, Runs: map[uint64]*drive.Result{}}
	for i, x := range ttft {
		if x > 0 {
			run := &drive.Result{Simulated: new(drive.Simulated)}
			run.TTFT, run.Goodput = drive.Distribution{Mean: x, P99: x}, 1
			r.Runs[uint64(i+1)] = run
		}
	}
	return r
}

func results() (*Results, []string) {
	cell := func(name, workload string, clients int, rows ...Row) CellResults {
		c := Base()
		c.Name, c.Workload, c.Clients = name, workload, clients
		return CellResults{Cell: c, Rows: rows}
	}
	return &Results{Cells: []CellResults{
		cell("a", "chat", 64, outcome("round_robin", 64, 400, 800, 20, 0.8), outcome("power_of_two_choices", 64, 200, 800, 20, 0.8),
			outcome("prefix_cache_affinity", 64, 100, 1600, 40, 0.4), outcome("dynamo", 64, 50, 400, 20, 1), outcome("dynamo", 1, 1, 1, 1, 1)),
		cell("b", "hot-prefix", 64, outcome("round_robin", 64, 100, 100, 10, 0), outcome("power_of_two_choices", 64, 200, 200, 10, 0),
			outcome("prefix_cache_affinity", 64, 110, 100, 20, 0.1), outcome("dynamo", 64, 100, 100, 10, 0)),
		cell("c", "chat", 8, outcome("round_robin", 8, 1, 1, 1, 1), outcome("prefix_cache_affinity", 8, 2, 1, 9, 1)),
		cell("d", "chat", 64, outcome("round_robin", 64, 1, 1, 1, 1)),
	}}, []string{"round_robin", "power_of_two_choices", "prefix_cache_affinity", "dynamo"}
}

// Means are over the complete cells with 64 clients; a value near zero counts as one per cent.
func TestMeans(t *testing.T) {
	r, policies := results()
	means := r.means(policies)
	require.Len(t, means, 4)
	require.Equal(t, "dynamo", means[0].Policy)
	byName := map[string]Mean{}
	for _, m := range means {
		require.Equal(t, 2, m.Cells)
		byName[m.Policy] = m
	}
	pca := byName["prefix_cache_affinity"]
	require.InDelta(t, 0.5244, pca.Ratios[0], 1e-4) // √(0.25 · 1.1)
	require.InDelta(t, 1.4142, pca.Ratios[1], 1e-4)
	require.InDelta(t, 2, pca.Ratios[2], 1e-9)
	require.InDelta(t, 2.2361, pca.Ratios[3], 1e-4) // √(0.5 · 10)
	require.InDelta(t, 1, byName["round_robin"].Ratios[3], 1e-9)
}

// A policy is compared with the best rule in each figure, unless that needs KV events and it does not. The product's
// own policies for prompts are no such rules.
func TestLosses(t *testing.T) {
	r, policies := results()
	losses := func(policy string, policies ...string) map[string]Loss {
		bad := map[string]Loss{}
		for _, l := range r.Losses(policy, policies) {
			bad[l.Cell+" "+l.Figure] = l
		}
		return bad
	}
	bad := losses("prefix_cache_affinity", policies...)
	require.Len(t, bad, 6)
	require.Equal(t, 2.0, bad["a TTFT p99"].Factor)
	require.Equal(t, 2.0, bad["a time per token"].Factor)
	require.Equal(t, 2.0, bad["b time per token"].Factor)
	require.InDelta(t, 1.1, bad["b TTFT mean"].Factor, 1e-9)
	require.Equal(t, "round_robin", bad["b TTFT mean"].To, "the better of the two")
	require.Equal(t, 2.0, bad["c TTFT mean"].Factor)
	require.Equal(t, 9.0, bad["c time per token"].Factor)
	require.Empty(t, losses("prefix_cache_affinity", "dynamo", "consistent_hash", "kv_aware"))

	r.Cells[0].Rows = append(r.Cells[0].Rows, outcome("kv_aware", 64, 104, 1600, 40, 1))
	require.Empty(t, losses("kv_aware", "prefix_cache_affinity"))
	require.Equal(t, "dynamo", losses("kv_aware", policies...)["a TTFT mean"].To)
}

// Ratios are to the best rule in the same cell, and to the best with one client where all else is equal.
func TestRatios(t *testing.T) {
	r, _ := results()
	c := &r.Cells[0]
	mine := c.row("prefix_cache_affinity", 64)
	require.Equal(t, []float64{0.5, 2, 2}, ratios(mine, c.rivals(mine)))
	require.Equal(t, []float64{1, 1, 1}, ratios(c.row("dynamo", 64), c.rivals(c.row("dynamo", 64))), "a rule is its own rival")
	require.Nil(t, ratios(mine, nil))
	require.Equal(t, []float64{100, 1600, 40}, ratios(mine, r.alone(c)))
	c.Share, c.Name, c.IntervalMS = sim.ShareLoad, "e", 1000
	c.Rows = c.Rows[:3]
	one := Base()
	one.Workload, one.Clients, one.Name = "chat", 1, "one"
	other := one
	other.Load, other.Name = 0.3, "other"
	r.Cells = append(r.Cells, CellResults{one, []Row{outcome("least_tokens", 1, 50, 400, 20, 1)}},
		CellResults{other, []Row{outcome("least_tokens", 1, 1, 1, 1, 1)}})
	require.Equal(t, []float64{2, 4, 2}, ratios(mine, r.alone(&r.Cells[0])), "another load does not count")
	require.Contains(t, r.Markdown([]string{"round_robin"}, nil), "| 0.50 · 2.00 · 2.00 | 2.00 · 4.00 · 2.00 |")
}

// Each seed is compared with itself. What all policies have in common, for example a fleet that is fuller with one
// seed, is no spread. Half of the remaining spread is tolerated.
func TestBeyondTheSpread(t *testing.T) {
	mine, other := of("a", 1, 110, 260), of("b", 1, 100, 200)
	factor, beyond := ttftMean.worse(&mine, &other, []uint64{1, 2})
	require.InDelta(t, 1.2, factor, 1e-9)
	require.InDelta(t, 1.1, beyond, 1e-9)
	mine.Runs[1].Goodput, mine.Runs[2].Goodput = 0.5, 0.4
	factor, beyond = goodput.worse(&mine, &other, []uint64{1, 2})
	require.InDelta(t, 2.25, factor, 1e-9)
	require.InDelta(t, 2, beyond, 1e-9)
}

// Only seeds that all policies have are compared: other seeds have other requests.
func TestSeedsInCommon(t *testing.T) {
	c := CellResults{Cell: Base(), Rows: []Row{
		of("round_robin", 64, 100, 500), of("power_of_two_choices", 64, 200, 400, 100), of("prefix_cache_affinity", 64, 120),
		of("llmd_default", 64, 110, 10), of("llmd_default", 1, 50, 1), of("random", 64, 0, 1),
	}}
	r := &Results{Cells: []CellResults{c}}
	policies := []string{"round_robin", "power_of_two_choices", "prefix_cache_affinity", "llmd_default"}
	means := r.means(policies)
	require.Equal(t, "llmd_default", means[1].Policy)
	require.InDelta(t, 1.1, means[1].Ratios[0], 1e-9)
	require.InDelta(t, 1.2, means[2].Ratios[0], 1e-9)
	require.Equal(t, 1, means[2].Seeds)
	require.InDelta(t, 0.9, r.means(policies[:2])[0].Ratios[0], 0.1)
	require.Empty(t, r.means(append(policies, "random")), "no seed in common")

	require.Equal(t, []Loss{
		{Cell: "base", Figure: "TTFT mean", To: "round_robin", Factor: 1.2, Beyond: 1.2, Seeds: 1},
		{Cell: "base", Figure: "TTFT p99", To: "round_robin", Factor: 1.2, Beyond: 1.2, Seeds: 1},
	}, r.Losses("prefix_cache_affinity", policies))
	require.Empty(t, r.Losses("kv_aware", policies))
	require.NotContains(t, fmt.Sprint(r.Losses("prefix_cache_affinity", policies[1:])), "round_robin", "only with the requested policies")
	text := r.Markdown(policies, []string{"prefix_cache_affinity", "kv_aware"})
	require.Contains(t, text, "| base | TTFT mean | `round_robin` | 1.200 | 1.200 | 1 |")
	require.Contains(t, text, "| `power_of_two_choices` | 64 | 3 | 233 ± 150 |")

	require.InDeltaSlice(t, []float64{120. / 51, 120. / 51}, means[1].ToAlone[:2], 1e-9, "of the seeds that both have")
}

func TestMarkdown(t *testing.T) {
	dir := t.TempDir()
	var lines []string
	p := plan(t, dir, &lines)
	for i := range p.Cells[:2] {
		p.Cells[i].Clients = 64
	}
	require.NoError(t, Run(t.Context(), p))
	r := Load(dir, p.Cells, p.Policies, p.Seeds)
	require.Empty(t, r.Missing)
	require.Len(t, r.Cells[0].Rows, 4, "the proxy alone too")
	text := r.Markdown(p.Policies, []string{"power_of_two_choices", "kv_aware"})
	require.Contains(t, text, "3 cells, 20 runs")
	require.Contains(t, text, "## 2 cells with 64 clients")
	require.Contains(t, text, "## Where not: `power_of_two_choices`")
	require.Contains(t, text, "### one")
	require.Contains(t, text, "| `smg_cache_aware` | 1 |")

	path := file(dir, "one", "smg_cache_aware", 64, 2)
	e := load(path)
	e.Rate *= 2
	require.NoError(t, sim.SaveJSON(path, e))
	other := Load(dir, p.Cells, p.Policies, p.Seeds)
	require.Equal(t, map[string]int{"smg_cache_aware": 1}, other.Missing, "other requests")
	require.Equal(t, []uint64{1}, other.Cells[0].row("smg_cache_aware", 64).seeds())

	p.Cells[0].Load = 0.2
	r = Load(dir, p.Cells, p.Policies, 3)
	require.Equal(t, map[string]int{"round_robin": 3 + 2, "power_of_two_choices": 3 + 2, "smg_cache_aware": 2*3 + 2}, r.Missing,
		"another cell under the same name, and a seed that is not there")
	require.Contains(t, r.Markdown(p.Policies, nil), "; **missing**: 5 of `power_of_two_choices`, 5 of `round_robin`, 8 of `smg_cache_aware`")
}
