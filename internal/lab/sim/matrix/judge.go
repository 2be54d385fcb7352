package matrix

import "slices"

// allowed is by what factor a policy may be worse than the simple ones in a cell.
const allowed = 1.05

// simple are the policies than which none may be worse.
var simple = []string{"round_robin", "power_of_two_choices"}

// onTokens are the workloads in which the time per token is judged too.
var onTokens = []string{"hot-prefix", "nothing-shared"}

// Offence is a cell in which a policy is worse than a simple one.
type Offence struct {
	Cell   string
	Figure string
	Than   string
	// Factor is by how much, Beyond by how much beyond the spread of so many seeds.
	Factor, Beyond float64
	Seeds          int
}

// Verdict is what the cells say of a policy.
type Verdict struct {
	Policy string
	// Offences are the cells in which it is worse than a simple policy.
	Offences []Offence
	// Than are the simple policies that it is compared with, Judged in how many cells.
	Than   []string
	Judged int
}

// Judge judges a policy.
func (r *Results) Judge(policy string, policies []string) Verdict {
	v := Verdict{Policy: policy}
	for _, name := range simple {
		if name != policy && slices.Contains(policies, name) {
			v.Than = append(v.Than, name)
		}
	}
	for i := range r.Cells {
		c := &r.Cells[i]
		mine, others, seeds := c.beside(policy, v.Than)
		if len(seeds) == 0 {
			continue
		}
		v.Judged++
		figures := []figure{ttftMean, ttftP99, goodput}
		if slices.Contains(onTokens, c.Workload) {
			figures = append(figures, tpotMean)
		}
		for _, f := range figures {
			o := Offence{Cell: c.Name, Figure: f.name, Seeds: len(seeds)}
			best := others[0]
			for _, other := range others[1:] {
				if (f.ratio(other, best, seeds)-1)*f.better > 0 {
					best = other
				}
			}
			o.Than = best.Policy
			if o.Factor, o.Beyond = f.worse(mine, best, seeds); o.Beyond > allowed {
				v.Offences = append(v.Offences, o)
			}
		}
	}
	return v
}

// beside are a policy, others beside it, and the seeds that all of them have; no seeds unless all are there.
func (c *CellResults) beside(policy string, than []string) (mine *Row, others []*Row, seeds []uint64) {
	mine = c.row(policy, c.Clients)
	for _, name := range than {
		others = append(others, c.row(name, c.Clients))
	}
	if mine == nil || len(others) == 0 || slices.Contains(others, nil) {
		return nil, nil, nil
	}
	return mine, others, common(append(slices.Clip(others), mine)...)
}
