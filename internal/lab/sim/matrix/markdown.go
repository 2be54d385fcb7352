package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/lab/drive"
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
	r.compare(&b, policies, judged)
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

// compare writes the means, and those of proxies with one client beside the policies named.
func (r *Results) compare(b *strings.Builder, policies, judged []string) {
	var all, alone []combination
	for _, p := range policies {
		all = append(all, combination{p, manyClients})
		if slices.Contains(proxies, p) {
			alone = append(alone, combination{p, 1})
		}
	}
	if means := r.means(all); means != nil {
		fmt.Fprintf(b, "\n## %d cells with %d clients\n\nGeometric means of ratios to `%s`, over the cells in which all policies are and the seeds that all of them have, %d or more; cached tokens: the mean.\n\n",
			means[0].Cells, manyClients, reference, means[0].Seeds)
		table(b, means)
	}
	if len(alone) == 0 {
		return
	}
	for _, p := range judged {
		if slices.Contains(policies, p) && !slices.Contains(proxies, p) {
			alone = append(alone, combination{p, manyClients})
		}
	}
	if means := r.means(alone); means != nil {
		fmt.Fprintf(b, "\n## Proxies with one client\n\nThe same over %d of these cells, %d seeds or more: proxies see all requests, the others stand beside them with %d clients.\n\n",
			means[0].Cells, means[0].Seeds, manyClients)
		table(b, means)
	}
}

func table(b *strings.Builder, means []Mean) {
	b.WriteString("| policy | clients | TTFT mean | TTFT p99 | time per token | goodput | cached tokens | KV events |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, m := range means {
		events := ""
		if needsEvents(m.policy) {
			events = "needs"
		}
		fmt.Fprintf(b, "| `%s` | %d | %.3f | %.3f | %.3f | %.3f | %.1f %% | %s |\n", m.policy, m.clients, m.Ratios[0],
			m.Ratios[1], m.Ratios[2], m.Ratios[3], 100*m.Cached, events)
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

// columns are those of a cell after the policy, the clients and the seeds.
const columns = "TTFT mean, ms | p99 | ms per token | goodput | cached tokens | ÷ best rule with the same information: mean · p99 · token | " +
	"÷ best with one client | preemptions | KV busiest ÷ mean | requests CV | KV CV | at home | regret, ms"

func (c *CellResults) write(b *strings.Builder, alone []*Row) {
	fmt.Fprintf(b, "\n### %s\n\n`%s`\n\n| policy | clients | seeds | %s |\n%s\n", c.Name, &c.Cell, columns,
		strings.Repeat("| --- ", strings.Count(columns, "|")+4)+"|")
	for i := range c.Rows {
		r := &c.Rows[i]
		seeds := r.seeds()
		fmt.Fprintf(b, "| `%s` | %d | %d | %s | %s | %s | %s | %s | %s | %s |", r.Policy, r.Clients, len(seeds),
			ttftMean.plusMinus(r, seeds), ttftP99.plusMinus(r, seeds), tpotMean.plusMinus(r, seeds),
			goodput.percent(r, seeds), cached.percent(r, seeds), dotted(ratios(r, c.rivals(r))), dotted(ratios(r, alone)))
		if r.Runs[seeds[0]].Simulated != nil {
			of := func(f func(*drive.Simulated) float64) float64 {
				mean, _ := average(seeds, func(seed uint64) float64 { return f(r.Runs[seed].Simulated) })
				return mean
			}
			fmt.Fprintf(b, " %.0f | %.2f | %.2f | %.2f | %.2f | %.1f |", of(func(s *drive.Simulated) float64 { return float64(s.Preemptions) }),
				of(func(s *drive.Simulated) float64 { return s.KVImbalance }), of(func(s *drive.Simulated) float64 { return s.RequestsCV }),
				of(func(s *drive.Simulated) float64 { return s.KVCV }), of(func(s *drive.Simulated) float64 { return s.FollowUpsHome }),
				of(func(s *drive.Simulated) float64 { return s.RegretMS }))
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

// plusMinus is a time with half of its spread, if there is one.
func (f *figure) plusMinus(r *Row, seeds []uint64) string {
	mean, spread := f.over(r, seeds)
	digits := 0
	if mean < 100 {
		digits = 1
	}
	if len(seeds) == 1 {
		return fmt.Sprintf("%.*f", digits, mean)
	}
	return fmt.Sprintf("%.*f ± %.*f", digits, mean, digits, spread/2)
}

// percent is a share with half of its spread, if there is one.
func (f *figure) percent(r *Row, seeds []uint64) string {
	mean, spread := f.over(r, seeds)
	if len(seeds) == 1 {
		return fmt.Sprintf("%.1f %%", 100*mean)
	}
	return fmt.Sprintf("%.1f ± %.1f %%", 100*mean, 50*spread)
}
