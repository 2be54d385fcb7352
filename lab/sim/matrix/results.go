package matrix

import (
	"cmp"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/lab/drive"
	"github.com/warmpath/warmpath/lab/sim"
	"github.com/warmpath/warmpath/lab/sim/baseline"
)

// reference is what ratios are to.
const reference = "round_robin"

// leastGoodput counts for all that is below.
const leastGoodput = 0.01

// manyClients are those of the cells over which means are taken.
const manyClients = 64

// allowed is by what factor a policy may be worse than the best rule in a cell.
const allowed = 1.03

// Results are what is there.
type Results struct {
	Cells []CellResults
	// Missing counts runs that are not there, by their policy.
	Missing map[string]int
	// Seconds is how long all Runs took together.
	Seconds float64
	Runs    int
}

// CellResults are those of one cell.
type CellResults struct {
	Cell
	Rows []Row
}

// Row is a policy in a cell, with so many clients, by seed.
type Row struct {
	Policy  string
	Clients int
	Runs    map[uint64]*drive.Result
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
// count, nor do those at another rate than the first policy's with the same seed.
func Load(dir string, cells []Cell, policies []string, seeds int) *Results {
	r := &Results{Missing: map[string]int{}}
	for _, c := range cells {
		cr, rates := CellResults{Cell: c}, map[uint64]float64{}
		for _, one := range c.runs(policies) {
			row := Row{Policy: one.policy, Clients: one.clients, Runs: map[uint64]*drive.Result{}}
			for seed := uint64(1); seed <= uint64(seeds); seed++ {
				e := load(file(dir, c.Name, one.policy, one.clients, seed))
				if e == nil || !reflect.DeepEqual(e.Cell, c) || cmp.Or(rates[seed], e.Rate) != e.Rate {
					r.Missing[one.policy]++
					continue
				}
				rates[seed], row.Runs[seed] = e.Rate, e.Result
				r.Runs++
				r.Seconds += e.Seconds
			}
			if len(row.Runs) > 0 {
				cr.Rows = append(cr.Rows, row)
			}
		}
		r.Cells = append(r.Cells, cr)
	}
	return r
}

// row is the row of a policy; nil if it is not there.
func (c *CellResults) row(policy string, clients int) *Row {
	for i := range c.Rows {
		if r := &c.Rows[i]; r.Policy == policy && r.Clients == clients {
			return r
		}
	}
	return nil
}

// figure is one thing that policies are compared by.
type figure struct {
	name   string
	of     func(*drive.Result) float64
	better float64 // 1 if more is better, -1 if less is
	floor  float64 // counts for all that is below
	unit   string
}

// percent is the unit of a share.
const percent = " %"

var (
	ttftMean = figure{"TTFT mean", func(r *drive.Result) float64 { return r.TTFT.Mean }, -1, 0.001, ""}
	ttftP99  = figure{"TTFT p99", func(r *drive.Result) float64 { return r.TTFT.P99 }, -1, 0.001, ""}
	tpotMean = figure{"time per token", func(r *drive.Result) float64 { return r.TPOT.Mean }, -1, 0.001, ""}
	goodput  = figure{"goodput", func(r *drive.Result) float64 { return r.Goodput }, 1, leastGoodput, percent}
	cached   = figure{"cached tokens", func(r *drive.Result) float64 { return r.CachedTokenRatio }, 1, 0.01, percent}
)

// compared are the figures of a Mean.
var compared = []*figure{&ttftMean, &ttftP99, &tpotMean, &goodput}

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

// judgedBy are the figures of a Loss.
var judgedBy = []*figure{&ttftMean, &ttftP99, &tpotMean}

// Loss is a figure of a cell in which a rule with the same information is better.
type Loss struct {
	Cell, Figure, To string
	// Factor is by how much, Beyond by how much beyond the spread of so many seeds.
	Factor, Beyond float64
	Seeds          int
}

// Losses are the figures of a policy that are worse than 1.03 × those of the best rule with the same information and
// as many clients.
func (r *Results) Losses(policy string, policies []string) (all []Loss) {
	for i := range r.Cells {
		c := &r.Cells[i]
		mine := c.row(policy, c.Clients)
		if mine == nil {
			continue
		}
		for _, f := range judgedBy {
			worst := Loss{Cell: c.Name, Figure: f.name, Factor: allowed}
			for _, other := range policies {
				row := c.row(other, c.Clients)
				if row == nil || !rival(other, policy) {
					continue
				}
				seeds := common(mine, row)
				if factor, beyond := f.worse(mine, row, seeds); len(seeds) > 0 && factor > worst.Factor {
					worst.To, worst.Factor, worst.Beyond, worst.Seeds = other, factor, beyond, len(seeds)
				}
			}
			if worst.To != "" {
				all = append(all, worst)
			}
		}
	}
	return all
}

// rival reports whether a policy is a rule that has no more information than another: of the product's own those that
// look at neither prompt nor session, and the baselines.
func rival(other, policy string) bool {
	rule := other == reference || other == "power_of_two_choices" || slices.Contains(baseline.Names(), other)
	return rule && (needsEvents(policy) || !needsEvents(other))
}

// ratios are a row's figures over the best of some others, in the order of judgedBy; nil if there are none.
func ratios(r *Row, others []*Row) (all []float64) {
	for _, f := range judgedBy {
		worst := 0.0
		for _, other := range others {
			if seeds := common(r, other); len(seeds) > 0 {
				worst = max(worst, f.ratio(r, other, seeds))
			}
		}
		if worst == 0 {
			return nil
		}
		all = append(all, worst)
	}
	return all
}

// rivals are the rows of the rules with as many clients and no more information.
func (c *CellResults) rivals(of *Row) (all []*Row) {
	for i := range c.Rows {
		if row := &c.Rows[i]; row.Clients == of.Clients && rival(row.Policy, of.Policy) {
			all = append(all, row)
		}
	}
	return all
}

// alone are the rows with one client, which sees all, in this cell and those that differ only in clients and sharing.
func (r *Results) alone(c *CellResults) (all []*Row) {
	like := func(c Cell) Cell {
		c.Name, c.Factor, c.Clients, c.Share, c.IntervalMS, c.Affinity, c.Proxies = "", "", 0, "", 0, false, false
		return c
	}
	for i := range r.Cells {
		other := &r.Cells[i]
		if !reflect.DeepEqual(like(other.Cell), like(c.Cell)) {
			continue
		}
		for k := range other.Rows {
			if row := &other.Rows[k]; row.Clients == 1 {
				all = append(all, row)
			}
		}
	}
	return all
}

// needsEvents reports whether a policy needs the engines' KV events.
func needsEvents(policy string) bool { return baseline.NeedsKVEvents(policy) || sim.Subscribes(policy) }

// Mean is a policy with 64 clients over many cells.
type Mean struct {
	Policy string
	// Cells is over how many, Seeds over how many in each, at the least.
	Cells, Seeds int
	// Ratios are geometric means of ratios to round robin, in the order of the figures compared; Cached is the mean of the
	// cached-token ratios.
	Ratios []float64
	Cached float64
	// ToRule and ToAlone are geometric means of the ratios to the best rule with the same information and to the best
	// policy with one client, in the order of judgedBy, over the cells that have such; nil where there are none.
	ToRule, ToAlone []float64
}

// means are those over the cells with 64 clients in which all of these are, and the reference, best TTFT first; nil if
// there are none. Cells under pressure, with which the reference does not cope, do not count. In each cell those seeds
// count that all of them have.
func (r *Results) means(of []string) (all []Mean) {
	type complete struct {
		*CellResults
		rows  []*Row // the last is the reference's
		seeds []uint64
	}
	var cells []complete
	least := math.MaxInt
	for i := range r.Cells {
		x := complete{CellResults: &r.Cells[i]}
		for _, policy := range append(slices.Clip(of), reference) {
			if row := x.row(policy, x.Clients); row != nil {
				x.rows = append(x.rows, row)
			}
		}
		if len(x.rows) <= len(of) || x.Clients != manyClients || x.Factor == underPressure {
			continue
		}
		if x.seeds = common(x.rows...); len(x.seeds) > 0 {
			cells, least = append(cells, x), min(least, len(x.seeds))
		}
	}
	if len(cells) == 0 {
		return nil
	}
	for i, policy := range of {
		m := Mean{Policy: policy, Cells: len(cells), Seeds: least}
		var toReference, toRule, toAlone [][]float64
		for _, x := range cells {
			row := x.rows[i]
			share, _ := cached.over(row, x.seeds)
			m.Cached += share
			var here []float64
			for _, f := range compared {
				here = append(here, f.ratio(row, x.rows[len(of)], x.seeds))
			}
			toReference = append(toReference, here)
			toRule, toAlone = append(toRule, ratios(row, x.rivals(row))), append(toAlone, ratios(row, r.alone(x.CellResults)))
		}
		m.Cached /= float64(len(cells))
		m.Ratios, m.ToRule, m.ToAlone = geometric(toReference), geometric(toRule), geometric(toAlone)
		all = append(all, m)
	}
	slices.SortStableFunc(all, func(a, b Mean) int { return cmp.Compare(a.Ratios[0], b.Ratios[0]) })
	return all
}

// geometric are the geometric means of the first numbers of some lists, of the second ones, and so on. Empty lists do
// not count.
func geometric(lists [][]float64) (means []float64) {
	lists = slices.DeleteFunc(lists, func(xs []float64) bool { return len(xs) == 0 })
	for k := 0; len(lists) > 0 && k < len(lists[0]); k++ {
		logs := 0.
		for _, xs := range lists {
			logs += math.Log(xs[k])
		}
		means = append(means, math.Exp(logs/float64(len(lists))))
	}
	return means
}
