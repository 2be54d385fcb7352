package matrix

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/internal/lab/drive"
	"github.com/warmpath/warmpath/internal/lab/sim"
	"github.com/warmpath/warmpath/internal/lab/sim/baseline"
)

// reference is what ratios are to.
const reference = "round_robin"

// leastGoodput counts for all that is below.
const leastGoodput = 0.01

// manyClients are those of the cells over which means are taken.
const manyClients = 64

// Results are what is there.
type Results struct {
	Cells []CellResults
	// Codes counts runs by the program that made them, Missing those that are not there by their policy.
	Codes   map[string]int
	Missing map[string]int
	// Strange counts runs, by their cell, of other requests than the first policy has with the same seed: made at
	// another rate, of another trace, for another time. They are left out.
	Strange map[string]int
	// Seconds is how long all runs took together.
	Seconds float64
}

// CellResults are those of one cell.
type CellResults struct {
	Cell
	Rows []Row
	// Seconds is how long its runs took together.
	Seconds float64

	offered map[uint64]offered // by seed
}

// offered identifies the requests of a cell and a seed.
type offered struct {
	rate     float64
	measured int
}

// Row is a policy in a cell, over all seeds that are there.
type Row struct {
	Clients int
	// Runs are the seeds' results.
	Runs map[uint64]*drive.Result
	drive.Result
}

// seeds are those that are there.
func (r *Row) seeds() []uint64 { return common(r) }

// common are the seeds that all rows have, in order.
func common(rows ...*Row) []uint64 {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(rows[0].Runs)), func(seed uint64) bool {
		return slices.ContainsFunc(rows, func(r *Row) bool { return r.Runs[seed] == nil })
	})
}

// Load reads what is there of some cells and policies, of seeds from 1. Runs of a cell that is now another do not
// count.
func Load(dir string, cells []Cell, policies []string, seeds int) *Results {
	r := &Results{Codes: map[string]int{}, Missing: map[string]int{}, Strange: map[string]int{}}
	for _, c := range cells {
		cr := CellResults{Cell: c, offered: map[uint64]offered{}}
		for _, one := range c.runs(policies) {
			r.row(&cr, dir, one.policy, one.clients, seeds)
		}
		r.Seconds += cr.Seconds
		r.Cells = append(r.Cells, cr)
	}
	return r
}

// row reads the seeds of a policy.
func (r *Results) row(cr *CellResults, dir, policy string, clients, seeds int) {
	runs := map[uint64]*drive.Result{}
	var all []*drive.Result
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		e := load(file(dir, cr.Name, policy, clients, seed))
		if e == nil || !reflect.DeepEqual(e.Cell, cr.Cell) {
			r.Missing[policy]++
			continue
		}
		these := offered{e.Rate, e.Result.Requests}
		if first, ok := cr.offered[seed]; ok && these != first {
			r.Strange[cr.Name]++
			continue
		}
		cr.offered[seed] = these
		r.Codes[e.Code]++
		cr.Seconds += e.Seconds
		runs[seed] = e.Result
		all = append(all, e.Result)
	}
	if len(all) > 0 {
		cr.Rows = append(cr.Rows, Row{Clients: clients, Runs: runs, Result: sim.Merge(all)})
	}
}

// row is that of a policy with so many clients, or nil.
func (c *CellResults) row(policy string, clients int) *Row {
	for i := range c.Rows {
		if c.Rows[i].Policy == policy && c.Rows[i].Clients == clients {
			return &c.Rows[i]
		}
	}
	return nil
}

// figure is one by which policies are judged.
type figure struct {
	name   string
	of     func(*drive.Result) float64
	better float64 // 1: more is better; -1: less is
	floor  float64 // what is below counts as this
}

var (
	ttftMean = figure{"TTFT mean", func(r *drive.Result) float64 { return r.TTFT.Mean }, -1, 0.001}
	ttftP99  = figure{"TTFT p99", func(r *drive.Result) float64 { return r.TTFT.P99 }, -1, 0.001}
	tpotMean = figure{"time per token", func(r *drive.Result) float64 { return r.TPOT.Mean }, -1, 0.001}
	goodput  = figure{"goodput", func(r *drive.Result) float64 { return r.Goodput }, 1, leastGoodput}
	cached   = figure{"cached tokens", func(r *drive.Result) float64 { return r.CachedTokenRatio }, 1, 0}
)

// compared are the figures of a Mean.
var compared = [...]*figure{&ttftMean, &ttftP99, &tpotMean, &goodput}

// over is a policy's mean over some seeds, and their spread.
func (f *figure) over(r *Row, seeds []uint64) (mean, spread float64) {
	return average(seeds, func(seed uint64) float64 { return f.of(r.Runs[seed]) })
}

// average is the mean over some seeds, and the largest less the smallest.
func average(seeds []uint64, of func(uint64) float64) (mean, spread float64) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, seed := range seeds {
		x := of(seed)
		mean, least, most = mean+x/float64(len(seeds)), min(least, x), max(most, x)
	}
	return mean, most - least
}

// ratio is a policy's mean over another's, of the same seeds.
func (f *figure) ratio(r, to *Row, seeds []uint64) float64 {
	a, _ := f.over(r, seeds)
	b, _ := f.over(to, seeds)
	return max(a, f.floor) / max(b, f.floor)
}

// worse is by what factor a policy is worse than another with the same seed, in the mean, and the same less half of the
// seeds' spread.
func (f *figure) worse(r, than *Row, seeds []uint64) (factor, beyond float64) {
	factor, spread := average(seeds, func(seed uint64) float64 {
		a, b := max(f.of(r.Runs[seed]), f.floor), max(f.of(than.Runs[seed]), f.floor)
		if f.better > 0 {
			return b / a
		}
		return a / b
	})
	return factor, factor - spread/2
}

// Mean is a policy over many cells.
type Mean struct {
	Policy string
	// Alone: it had one client in every cell.
	Alone bool
	// Cells is over how many, Seeds over how many in each, at the least.
	Cells, Seeds int
	// Ratios are geometric means of ratios to round robin, in the order of the figures compared; Cached is the mean of the
	// cached-token ratios.
	Ratios [4]float64
	Cached float64
}

// Means are those of every policy over the cells with 64 clients in which all policies are there, best TTFT first. In
// each cell the seeds count that all of them have.
func (r *Results) Means(policies []string) []Mean {
	var all []Mean
	for _, p := range policies {
		all = append(all, Mean{Policy: p})
	}
	return r.means(all)
}

// Alone are the means of the proxies with one client, which is what they would see, and of other policies beside them.
func (r *Results) Alone(policies, others []string) []Mean {
	var all []Mean
	for _, p := range policies {
		if slices.Contains(proxies, p) {
			all = append(all, Mean{Policy: p, Alone: true})
		}
	}
	if len(all) == 0 {
		return nil
	}
	for _, p := range others {
		if !slices.Contains(proxies, p) && slices.Contains(policies, p) {
			all = append(all, Mean{Policy: p})
		}
	}
	return r.means(all)
}

// means fills them in over the cells with 64 clients in which all of them are, and the reference; nil if
// there are none.
func (r *Results) means(all []Mean) []Mean {
	cells, least := 0, 0
	for i := range r.Cells {
		c := &r.Cells[i]
		rows := c.all(all)
		if c.Clients != manyClients || rows == nil {
			continue
		}
		seeds := common(rows...)
		if len(seeds) == 0 {
			continue
		}
		if cells++; cells == 1 || len(seeds) < least {
			least = len(seeds)
		}
		to := rows[len(all)]
		for i := range all {
			share, _ := cached.over(rows[i], seeds)
			all[i].Cached += share
			for k, f := range compared {
				all[i].Ratios[k] += math.Log(f.ratio(rows[i], to, seeds))
			}
		}
	}
	if cells == 0 {
		return nil
	}
	n := float64(cells)
	for i := range all {
		m := &all[i]
		m.Cells, m.Seeds, m.Cached = cells, least, m.Cached/n
		for k := range m.Ratios {
			m.Ratios[k] = math.Exp(m.Ratios[k] / n)
		}
	}
	slices.SortStableFunc(all, func(a, b Mean) int { return cmp.Compare(a.Ratios[0], b.Ratios[0]) })
	return all
}

// all are the rows of means, and last the reference; nil unless all are there.
func (c *CellResults) all(means []Mean) []*Row {
	var rows []*Row
	for _, m := range append(slices.Clip(means), Mean{Policy: reference}) {
		clients := c.Clients
		if m.Alone {
			clients = 1
		}
		row := c.row(m.Policy, clients)
		if row == nil {
			return nil
		}
		rows = append(rows, row)
	}
	return rows
}

// needsEvents reports whether a policy needs the engines' KV events.
func needsEvents(policy string) bool { return baseline.NeedsKVEvents(policy) || sim.Subscribes(policy) }
