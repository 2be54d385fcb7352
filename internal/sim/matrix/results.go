package matrix

import (
	"math"
	"reflect"
	"slices"

	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/sim/baseline"
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
	// Codes counts runs by the program that made them, Missing those that are not there.
	Codes   map[string]int
	Missing int
	// Seconds is how long all runs took together.
	Seconds float64
}

// CellResults are those of one cell.
type CellResults struct {
	Cell
	Rows []Row
	// Seconds is how long its runs took together.
	Seconds float64
}

// Row is a policy in a cell, over all seeds that are there.
type Row struct {
	Clients int
	Seeds   int
	sim.Result
}

// Load reads what is there of some cells and policies, of seeds from 1. Runs of a cell that is now another do not
// count.
func Load(dir string, cells []Cell, policies []string, seeds int) *Results {
	r := &Results{Codes: map[string]int{}}
	for _, c := range cells {
		cr := CellResults{Cell: c}
		for _, policy := range policies {
			r.row(&cr, dir, policy, c.Clients, seeds)
		}
		if c.Proxies && c.Clients > 1 {
			for _, policy := range policies {
				if slices.Contains(proxies, policy) {
					r.row(&cr, dir, policy, 1, seeds)
				}
			}
		}
		r.Seconds += cr.Seconds
		r.Cells = append(r.Cells, cr)
	}
	return r
}

// row reads the seeds of a policy.
func (r *Results) row(cr *CellResults, dir, policy string, clients, seeds int) {
	var all []*sim.Result
	for seed := 1; seed <= seeds; seed++ {
		e := load(file(dir, cr.Name, policy, clients, uint64(seed)))
		if e == nil || !reflect.DeepEqual(e.Cell, cr.Cell) {
			r.Missing++
			continue
		}
		r.Codes[e.Code]++
		cr.Seconds += e.Seconds
		all = append(all, e.Result)
	}
	if len(all) > 0 {
		cr.Rows = append(cr.Rows, Row{Clients: clients, Seeds: len(all), Result: sim.Merge(all)})
	}
}

// row is that of a policy with the cell's clients, or nil.
func (c *CellResults) row(policy string) *Row {
	for i := range c.Rows {
		if c.Rows[i].Policy == policy && c.Rows[i].Clients == c.Clients {
			return &c.Rows[i]
		}
	}
	return nil
}

// figure is one by which policies are judged.
type figure struct {
	name   string
	of     func(*Row) (mean, spread float64)
	better float64 // 1: more is better; -1: less is
	floor  float64 // what is below counts as this
}

var (
	ttftMean = figure{"TTFT mean", func(r *Row) (float64, float64) { return r.TTFT.Mean, r.spread().TTFT.Mean }, -1, 0.001}
	ttftP99  = figure{"TTFT p99", func(r *Row) (float64, float64) { return r.TTFT.P99, r.spread().TTFT.P99 }, -1, 0.001}
	tpotMean = figure{"time per token", func(r *Row) (float64, float64) { return r.TPOT.Mean, r.spread().TPOT.Mean }, -1, 0.001}
	goodput  = figure{"goodput", func(r *Row) (float64, float64) { return r.Goodput, r.spread().Goodput }, 1, leastGoodput}
)

func (r *Row) spread() *sim.Spread {
	if r.Spread == nil {
		return new(sim.Spread)
	}
	return r.Spread
}

// ratio is a policy's figure over another's.
func (f *figure) ratio(r, to *Row) float64 {
	a, _ := f.of(r)
	b, _ := f.of(to)
	return max(a, f.floor) / max(b, f.floor)
}

// worse is by what factor a policy is worse than another, beyond the spread: half of its own is forgiven, half of
// the other's charged to the other.
func (f *figure) worse(r, than *Row) float64 {
	a, as := f.of(r)
	b, bs := f.of(than)
	a, b = max(a+f.better*as/2, f.floor), max(b-f.better*bs/2, f.floor)
	if f.better > 0 {
		return b / a
	}
	return a / b
}

// Mean is a policy over many cells.
type Mean struct {
	Policy string
	Cells  int
	// TTFTMean, TTFTP99, TPOT and Goodput are geometric means of ratios to round robin, Cached the mean of the
	// cached-token ratios.
	TTFTMean, TTFTP99, TPOT, Goodput, Cached float64
}

// Means are those of every policy over the cells with 64 clients in which all policies are there, best TTFT first.
func (r *Results) Means(policies []string) []Mean {
	var means []Mean
	for _, policy := range policies {
		m := Mean{Policy: policy}
		logs := [4]float64{}
		for i := range r.Cells {
			c := &r.Cells[i]
			if c.Clients != manyClients || !c.complete(policies) {
				continue
			}
			row, to := c.row(policy), c.row(reference)
			m.Cells++
			m.Cached += row.CachedTokenRatio
			for k, f := range []figure{ttftMean, ttftP99, tpotMean, goodput} {
				logs[k] += math.Log(f.ratio(row, to))
			}
		}
		if m.Cells == 0 {
			continue
		}
		n := float64(m.Cells)
		for k, to := range []*float64{&m.TTFTMean, &m.TTFTP99, &m.TPOT, &m.Goodput} {
			*to = math.Exp(logs[k] / n)
		}
		m.Cached /= n
		means = append(means, m)
	}
	slices.SortStableFunc(means, func(a, b Mean) int {
		if a.TTFTMean < b.TTFTMean {
			return -1
		}
		return 1
	})
	return means
}

// complete says whether all policies are there, and the reference.
func (c *CellResults) complete(policies []string) bool {
	for _, p := range policies {
		if c.row(p) == nil {
			return false
		}
	}
	return c.row(reference) != nil
}

// needsEvents reports whether a policy needs the engines' KV events.
func needsEvents(policy string) bool { return baseline.NeedsKVEvents(policy) || sim.Subscribes(policy) }
