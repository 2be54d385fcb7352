package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Markdown tells everything, and judges the policies named.
func (r *Results) Markdown(policies, judged []string) string {
	var b strings.Builder
	r.header(&b)
	r.means(&b, policies)
	for _, policy := range judged {
		v := r.Judge(policy, policies)
		v.write(&b)
		r.notFirst(&b, policy, policies)
	}
	factor := ""
	for i := range r.Cells {
		c := &r.Cells[i]
		if c.Factor != factor || i == 0 {
			factor = c.Factor
			fmt.Fprintf(&b, "\n## Cells: %s\n", factor)
		}
		c.write(&b)
	}
	return b.String()
}

func (r *Results) header(b *strings.Builder) {
	runs := 0
	for _, n := range r.Codes {
		runs += n
	}
	fmt.Fprintf(b, "%d cells, %d runs in %.0f minutes of processor time", len(r.Cells), runs, r.Seconds/60)
	if r.Missing > 0 {
		fmt.Fprintf(b, "; **%d runs are missing**", r.Missing)
	}
	if len(r.Codes) > 1 {
		fmt.Fprintf(b, "; made by %d programs: %s", len(r.Codes), strings.Join(slices.Sorted(maps.Keys(r.Codes)), ", "))
	}
	b.WriteString(".\n")
}

func (r *Results) means(b *strings.Builder, policies []string) {
	means := r.Means(policies)
	if len(means) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## %d cells with %d clients\n\nGeometric means of ratios to `%s`; cached tokens: the mean.\n\n", means[0].Cells, manyClients, reference)
	b.WriteString("| policy | TTFT mean | TTFT p99 | time per token | goodput | cached tokens | KV events |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, m := range means {
		events := ""
		if needsEvents(m.Policy) {
			events = "needs"
		}
		fmt.Fprintf(b, "| `%s` | %.3f | %.3f | %.3f | %.3f | %.1f %% | %s |\n", m.Policy, m.TTFTMean, m.TTFTP99, m.TPOT, m.Goodput, 100*m.Cached, events)
	}
}

func (v *Verdict) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## `%s`\n\n", v.Policy)
	peers := "the policies that need no KV events"
	if needsEvents(v.Policy) {
		peers = "all policies"
	}
	if len(v.Firsts) > 0 {
		fmt.Fprintf(b, "* First among %s in %s.\n", peers, strings.Join(v.Firsts, ", "))
	}
	for _, s := range v.Seconds {
		fmt.Fprintf(b, "* **Not first** among %s in %s.\n", peers, s)
	}
	if len(v.Offences) == 0 {
		fmt.Fprintf(b, "* In none of %d cells worse than %.2f × the better of round robin and two choices, beyond the spread.\n", v.Judged, allowed)
		return
	}
	fmt.Fprintf(b, "* **Worse** than %.2f × the better of round robin and two choices, beyond the spread:\n\n", allowed)
	b.WriteString("| cell | figure | than | factor | beyond the spread |\n| --- | --- | --- | --- | --- |\n")
	for _, o := range v.Offences {
		fmt.Fprintf(b, "| %s | %s | `%s` | %.2f | %.2f |\n", o.Cell, o.Figure, o.Than, o.Factor, o.Beyond)
	}
}

// notFirst lists the cells in which a peer has the better mean TTFT.
func (r *Results) notFirst(b *strings.Builder, policy string, policies []string) {
	var lines []string
	for i := range r.Cells {
		c := &r.Cells[i]
		mine := c.row(policy)
		if mine == nil {
			continue
		}
		best := mine
		for _, other := range policies {
			row := c.row(other)
			if row != nil && (needsEvents(policy) || !needsEvents(other)) && row.TTFT.Mean < best.TTFT.Mean {
				best = row
			}
		}
		if best != mine {
			lines = append(lines, fmt.Sprintf("| %s | `%s` | %s | %s |\n", c.Name, best.Policy, plusMinus(ttftMean, best), plusMinus(ttftMean, mine)))
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\nCells in which another has the better mean TTFT, in ms:\n\n| cell | first | its TTFT | `%s` |\n| --- | --- | --- | --- |\n%s", policy, strings.Join(lines, ""))
}

func (c *CellResults) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n%s; %.0f s of processor time\n\n", c.Name, c.String(), c.Seconds)
	b.WriteString("| policy | clients | TTFT mean, ms | p99 | ms per token | goodput | cached tokens | busiest ÷ mean |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range c.Rows {
		r := &c.Rows[i]
		s := r.spread()
		fmt.Fprintf(b, "| `%s` | %d | %s | %s | %s | %.1f ± %.1f %% | %.1f ± %.1f %% | %.2f |\n", r.Policy, r.Clients,
			plusMinus(ttftMean, r), plusMinus(ttftP99, r), plusMinus(tpotMean, r), 100*r.Goodput, 50*s.Goodput,
			100*r.CachedTokenRatio, 50*s.CachedTokenRatio, r.MaxOverMeanLoad)
	}
}

// plusMinus is a time with half of its spread.
func plusMinus(f figure, r *Row) string {
	mean, spread := f.of(r)
	digits := 0
	if mean < 100 {
		digits = 1
	}
	return fmt.Sprintf("%.*f ± %.*f", digits, mean, digits, spread/2)
}
