package matrix

import (
	"cmp"
	"math"
	"slices"
)

// Mean is a policy with so many clients over many cells.
type Mean struct {
	combination
	// Cells is over how many, Seeds over how many in each, at the least.
	Cells, Seeds int
	// Ratios are geometric means of ratios to round robin, in the order of the figures compared; Cached is the mean of the
	// cached-token ratios.
	Ratios [len(compared)]float64
	Cached float64
}

// means are those over the cells with 64 clients in which all of these are, and the reference, best TTFT first; nil if
// there are none. Cells under pressure, with which the reference does not cope, do not count. In each cell the seeds count that all of them have.
func (r *Results) means(of []combination) []Mean {
	all := make([]Mean, len(of))
	for i := range all {
		all[i].combination = of[i]
	}
	cells, least := 0, math.MaxInt
	for i := range r.Cells {
		c := &r.Cells[i]
		rows := c.all(append(slices.Clip(of), combination{reference, manyClients}))
		if c.Clients != manyClients || rows == nil || c.Factor == underPressure {
			continue
		}
		seeds := common(rows...)
		if len(seeds) == 0 {
			continue
		}
		cells, least = cells+1, min(least, len(seeds))
		for i := range all {
			share, _ := cached.over(rows[i], seeds)
			all[i].Cached += share
			for k, f := range compared {
				all[i].Ratios[k] += math.Log(f.ratio(rows[i], rows[len(all)], seeds))
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

// all are the rows of these; nil unless all are there.
func (c *CellResults) all(of []combination) (rows []*Row) {
	for _, one := range of {
		row := c.row(one.policy, one.clients)
		if row == nil {
			return nil
		}
		rows = append(rows, row)
	}
	return rows
}
