package matrix

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/warmpath/warmpath/internal/drive"
	"github.com/warmpath/warmpath/internal/sim"
)

// outcome is a policy's row: times in ms, and the spread of the mean TTFT.
func outcome(policy string, clients int, ttft, p99, tpot, good, spread float64) Row {
	r := Row{Clients: clients, Seeds: 5}
	r.Policy = policy
	r.TTFT, r.TPOT, r.Goodput = drive.Distribution{Mean: ttft, P99: p99}, drive.Distribution{Mean: tpot}, good
	r.Spread = &sim.Spread{TTFT: drive.Distribution{Mean: spread}}
	return r
}

func results() (*Results, []string) {
	cell := func(name, workload string, clients int, rows ...Row) CellResults {
		c := Base()
		c.Name, c.Workload, c.Clients = name, workload, clients
		return CellResults{Cell: c, Rows: rows}
	}
	return &Results{Cells: []CellResults{
		cell("a", "chat", 64, outcome("round_robin", 64, 400, 800, 20, 0.8, 0), outcome("power_of_two_choices", 64, 200, 800, 20, 0.8, 0),
			outcome("prefix_cache_affinity", 64, 100, 1600, 40, 0.4, 0), outcome("dynamo", 64, 50, 400, 20, 1, 0), outcome("dynamo", 1, 1, 1, 1, 1, 0)),
		cell("b", "hot-prefix", 64, outcome("round_robin", 64, 100, 100, 10, 0, 0), outcome("power_of_two_choices", 64, 200, 200, 10, 0, 0),
			outcome("prefix_cache_affinity", 64, 110, 100, 20, 0.1, 10), outcome("dynamo", 64, 100, 100, 10, 0, 0)),
		cell("c", "chat", 8, outcome("round_robin", 8, 1, 1, 1, 1, 0), outcome("prefix_cache_affinity", 8, 2, 1, 9, 1, 0)),
		cell("d", "chat", 64, outcome("round_robin", 64, 1, 1, 1, 1, 0)),
	}}, []string{"round_robin", "power_of_two_choices", "prefix_cache_affinity", "dynamo"}
}

// Means are over the cells with 64 clients that are complete; what is near nothing counts as one per cent.
func TestMeans(t *testing.T) {
	r, policies := results()
	means := r.Means(policies)
	require.Len(t, means, 4)
	require.Equal(t, "dynamo", means[0].Policy)
	byName := map[string]Mean{}
	for _, m := range means {
		require.Equal(t, 2, m.Cells)
		byName[m.Policy] = m
	}
	pca := byName["prefix_cache_affinity"]
	require.InDelta(t, 0.5244, pca.TTFTMean, 1e-4) // √(0.25 · 1.1)
	require.InDelta(t, 1.4142, pca.TTFTP99, 1e-4)
	require.InDelta(t, 2, pca.TPOT, 1e-9)
	require.InDelta(t, 2.2361, pca.Goodput, 1e-4) // √(0.5 · 10)
	require.InDelta(t, 1, byName["round_robin"].Goodput, 1e-9)
}

func TestJudge(t *testing.T) {
	r, policies := results()
	v := r.Judge("prefix_cache_affinity", policies)
	require.Equal(t, []string{"TTFT mean", "goodput"}, v.Firsts, "dynamo needs events")
	require.Equal(t, []string{"TTFT p99: round_robin 1.000, prefix_cache_affinity 1.414"}, v.Seconds)
	require.Equal(t, 3, v.Judged)
	bad := map[string]Offence{}
	for _, o := range v.Offences {
		bad[o.Cell+" "+o.Figure] = o
	}
	require.Len(t, bad, 4)
	require.Equal(t, 2.0, bad["a TTFT p99"].Factor)
	require.Equal(t, 2.0, bad["a goodput"].Factor)
	require.Equal(t, 2.0, bad["b time per token"].Factor, "only some workloads are judged on it")
	require.Equal(t, 2.0, bad["c TTFT mean"].Factor)
	require.Equal(t, "round_robin", bad["c TTFT mean"].Than)

	v = r.Judge("dynamo", policies)
	require.Len(t, v.Firsts, 2, "whoever needs events is compared with all")
	require.Equal(t, []string{"goodput: prefix_cache_affinity 2.236, dynamo 1.118"}, v.Seconds)
	require.Empty(t, v.Offences)
}

// The spread is forgiven: 110 ± 5 against 100 is 105.
func TestBeyondTheSpread(t *testing.T) {
	mine, other := outcome("a", 1, 110, 0, 0, 0, 10), outcome("b", 1, 100, 0, 0, 0, 0)
	require.InDelta(t, 1.05, ttftMean.worse(&mine, &other), 1e-9)
	other.Spread.TTFT.Mean = 20
	require.InDelta(t, 105./110, ttftMean.worse(&mine, &other), 1e-9)
	mine.Goodput, other.Goodput = 0.5, 1
	mine.Spread.Goodput = 0.1
	require.InDelta(t, 1/0.55, goodput.worse(&mine, &other), 1e-9)
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
	require.Zero(t, r.Missing)
	require.Len(t, r.Cells[0].Rows, 4, "the proxy alone too")
	text := r.Markdown(p.Policies, []string{"power_of_two_choices", "kv_aware"})
	require.Contains(t, text, "3 cells, 20 runs")
	require.Contains(t, text, "## 2 cells with 64 clients")
	require.Contains(t, text, "## `power_of_two_choices`")
	require.Contains(t, text, "### one")
	require.Contains(t, text, "| `smg_cache_aware` | 1 |")

	p.Cells[0].Load = 0.2
	r = Load(dir, p.Cells, p.Policies, 3)
	require.Equal(t, 4*3+6, r.Missing, "another cell under the same name, and a seed that is not there")
}
