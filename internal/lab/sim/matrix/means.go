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
