package matrix

import (
	"cmp"
	"math"
	"slices"
)

// Mean is a policy with 64 clients over many cells.
type Mean struct {
	Policy string
	// Cells is over how many, Seeds over how many in each, at the least.
	Cells, Seeds int
	// Ratios are geometric means of ratios to round robin, in the order of the figures compared; Cached is the mean of the
	// cached-token ratios.
	Ratios [len(compared)]float64
	Cached float64
	// ToRule and ToAlone are geometric means of the ratios to the best rule with the same information and to the best
	// policy with one client, in the order of judgedBy, over the cells that have such; nil where there are none.
	ToRule, ToAlone []float64
}

// means are those over the cells with 64 clients in which all of these are, and the reference, best TTFT first; nil if
// there are none. Cells under pressure, with which the reference does not cope, do not count. In each cell those seeds
// count that all of them have.
func (r *Results) means(of []string) []Mean {
	all := make([]Mean, len(of))
	toRule, toAlone := make([]geometric, len(of)), make([]geometric, len(of))
	cells, least := 0, math.MaxInt
	for i := range r.Cells {
		c := &r.Cells[i]
		rows := c.all(append(slices.Clip(of), reference))
		if c.Clients != manyClients || rows == nil || c.Factor == underPressure {
			continue
		}
		seeds := common(rows...)
		if len(seeds) == 0 {
			continue
		}
		cells, least = cells+1, min(least, len(seeds))
		alone := r.alone(c)
		for i := range all {
			share, _ := cached.over(rows[i], seeds)
			all[i].Cached += share
			for k, f := range compared {
				all[i].Ratios[k] += math.Log(f.ratio(rows[i], rows[len(all)], seeds))
			}
			toRule[i].add(ratios(rows[i], c.rivals(rows[i])))
			toAlone[i].add(ratios(rows[i], alone))
		}
	}
	if cells == 0 {
		return nil
	}
	n := float64(cells)
	for i := range all {
		m := &all[i]
		m.Policy, m.Cells, m.Seeds, m.Cached = of[i], cells, least, m.Cached/n
		for k := range m.Ratios {
			m.Ratios[k] = math.Exp(m.Ratios[k] / n)
		}
		m.ToRule, m.ToAlone = toRule[i].mean(), toAlone[i].mean()
	}
	slices.SortStableFunc(all, func(a, b Mean) int { return cmp.Compare(a.Ratios[0], b.Ratios[0]) })
	return all
}

// geometric is what geometric means of several numbers are made of.
type geometric struct {
	n    float64
	logs []float64
}

// add adds one of each, if there are any.
func (g *geometric) add(xs []float64) {
	if len(xs) == 0 {
		return
	}
	g.n++
	if g.logs == nil {
		g.logs = make([]float64, len(xs))
	}
	for i, x := range xs {
		g.logs[i] += math.Log(x)
	}
}

func (g *geometric) mean() (all []float64) {
	for _, l := range g.logs {
		all = append(all, math.Exp(l/g.n))
	}
	return all
}

// all are the rows of these policies with the cell's clients; nil unless all are there.
func (c *CellResults) all(of []string) (rows []*Row) {
	for _, policy := range of {
		row := c.row(policy, c.Clients)
		if row == nil {
			return nil
		}
		rows = append(rows, row)
	}
	return rows
}
