package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/lab/drive"
)

// Markdown prints everything, and what the policies named are behind in.
func (r *Results) Markdown(policies, judged []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d cells, %d runs of %.0f minutes, added up", len(r.Cells), r.Runs, r.Seconds/60)
	for i, name := range slices.Sorted(maps.Keys(r.Missing)) {
		b.WriteString([]string{"; **missing**: ", ", "}[min(i, 1)])
		fmt.Fprintf(&b, "%d of `%s`", r.Missing[name], name)
	}
	b.WriteString(".\n")
	r.compare(&b, policies)
	factor := ""
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Factor != factor || i == 0 {
			factor = c.Factor
			fmt.Fprintf(&b, "\n## Cells: %s\n", factor)
		}
		c.write(&b, r.alone(c))
	}
	for _, policy := range judged {
		r.losses(&b, policy, policies)
	}
	return b.String()
}

// compare writes the means.
func (r *Results) compare(b *strings.Builder, policies []string) {
	means := r.means(policies)
	if means == nil {
		return
	}
	fmt.Fprintf(b, "\n## %d cells with %d clients\n\nGeometric means of ratios to `%s`, to the best rule with the same "+
		"information, and to the best policy with one client, over the cells in which all policies are and the seeds that all of "+
		"them have, %d or more; cached tokens: the mean.\n\n", means[0].Cells, manyClients, reference, means[0].Seeds)
	b.WriteString("| policy | TTFT mean | TTFT p99 | time per token | goodput | cached tokens | " +
		"÷ best rule: mean · p99 · token | ÷ best with one client | KV events |\n" + strings.Repeat("| --- ", 9) + "|\n")
	for _, m := range means {
		events := ""
		if needsEvents(m.Policy) {
			events = "needs"
		}
		fmt.Fprintf(b, "| `%s` | %.3f | %.3f | %.3f | %.3f | %.1f %% | %s | %s | %s |\n", m.Policy, m.Ratios[0], m.Ratios[1],
			m.Ratios[2], m.Ratios[3], 100*m.Cached, dotted(m.ToRule), dotted(m.ToAlone), events)
	}
}

func (r *Results) losses(b *strings.Builder, policy string, policies []string) {
	fmt.Fprintf(b, "\n## Where not: `%s`\n\n", policy)
	all := r.Losses(policy, policies)
	if len(all) == 0 {
		fmt.Fprintf(b, "No figure is worse than %.2f × the best rule's with the same information.\n", allowed)
		return
	}
	fmt.Fprintf(b, "Worse than %.2f × the best rule's with the same information:\n\n", allowed)
	b.WriteString("| cell | figure | than | factor | beyond the spread | seeds |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, l := range all {
		fmt.Fprintf(b, "| %s | %s | `%s` | %.3f | %.3f | %d |\n", l.Cell, l.Figure, l.To, l.Factor, l.Beyond, l.Seeds)
	}
}

// columns are those of a cell before what the engines show.
const columns = "| policy | clients | seeds | TTFT mean, ms | p99 | ms per token | goodput | cached tokens | " +
	"÷ best rule with the same information: mean · p99 · token | ÷ best with one client |"

// shown are the columns of what the engines show.
var shown = []struct {
	name, format string
	of           func(*drive.Result) float64
}{
	{"preemptions", "%.0f", func(r *drive.Result) float64 { return float64(r.Preemptions) }},
	{"KV busiest ÷ mean", "%.2f", func(r *drive.Result) float64 { return r.KVImbalance }},
	{"requests CV", "%.2f", func(r *drive.Result) float64 { return r.RequestsCV }},
	{"KV CV", "%.2f", func(r *drive.Result) float64 { return r.KVCV }},
	{"at home", "%.2f", func(r *drive.Result) float64 { return r.FollowUpsHome }},
	{"regret, ms", "%.1f", func(r *drive.Result) float64 { return r.RegretMS }},
}

func (c *CellResults) write(b *strings.Builder, alone []*Row) {
	fmt.Fprintf(b, "\n### %s\n\n`%s`\n\n%s", c.Name, &c.Cell, columns)
	for _, s := range shown {
		fmt.Fprintf(b, " %s |", s.name)
	}
	b.WriteString("\n" + strings.Repeat("| --- ", strings.Count(columns, "|")-1+len(shown)) + "|\n")
	for i := range c.Rows {
		r := &c.Rows[i]
		seeds := r.seeds()
		fmt.Fprintf(b, "| `%s` | %d | %d | %s | %s | %s | %s | %s | %s | %s |", r.Policy, r.Clients, len(seeds),
			ttftMean.show(r, seeds), ttftP99.show(r, seeds), tpotMean.show(r, seeds), goodput.show(r, seeds), cached.show(r, seeds),
			dotted(ratios(r, c.rivals(r))), dotted(ratios(r, alone)))
		for _, s := range shown {
			mean, _ := average(seeds, func(seed uint64) float64 { return s.of(r.Runs[seed]) })
			fmt.Fprintf(b, " "+s.format+" |", mean)
		}
		b.WriteString("\n")
	}
}

// dotted are ratios in a cell of a table.
func dotted(ratios []float64) string {
	var all []string
	for _, x := range ratios {
		all = append(all, fmt.Sprintf("%.2f", x))
	}
	return strings.Join(all, " · ")
}

// show writes a figure with half of its spread, if there is one.
func (f *figure) show(r *Row, seeds []uint64) string {
	mean, spread := f.over(r, seeds)
	digits := 1
	if f.unit == percent {
		mean, spread = 100*mean, 100*spread
	} else if mean >= 100 {
		digits = 0
	}
	text := fmt.Sprintf("%.*f", digits, mean)
	if len(seeds) > 1 {
		text += fmt.Sprintf(" ± %.*f", digits, spread/2)
	}
	return text + f.unit
}
