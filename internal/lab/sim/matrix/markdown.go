package matrix

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Markdown prints everything, and judges the policies named.
func (r *Results) Markdown(policies, judged []string) string {
	var b strings.Builder
	r.header(&b)
	r.compare(&b, policies, judged)
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
	runs, _ := counts(r.Codes, "%d of %s")
	fmt.Fprintf(b, "%d cells, %d runs of %.0f minutes, added up", len(r.Cells), runs, r.Seconds/60)
	if n, whose := counts(r.Missing, "%d of `%s`"); n > 0 {
		fmt.Fprintf(b, "; **%d runs are missing**: %s", n, whose)
	}
	if n, whose := counts(r.Strange, "%d of %s"); n > 0 {
		fmt.Fprintf(b, "; **left out, being of other requests**: %s", whose)
	}
	if len(r.Codes) > 1 {
		fmt.Fprintf(b, "; made by %d programs: %s", len(r.Codes), strings.Join(slices.Sorted(maps.Keys(r.Codes)), ", "))
	}
	b.WriteString(".\n")
}

// counts is the sum of some counts, and each of them by name.
func counts(by map[string]int, format string) (sum int, all string) {
	var each []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		sum += by[name]
		each = append(each, fmt.Sprintf(format, by[name], name))
	}
	return sum, strings.Join(each, ", ")
}

// compare writes the means.
func (r *Results) compare(b *strings.Builder, policies, judged []string) {
	if means := r.Means(policies); len(means) > 0 {
		fmt.Fprintf(b, "\n## %d cells with %d clients\n\nGeometric means of ratios to `%s`, over the cells in which all policies are and the seeds that all of them have, %s; cached tokens: the mean.\n\n",
			means[0].Cells, manyClients, reference, atLeast(means[0].Seeds))
		table(b, means)
	}
	if means := r.Alone(policies, judged); len(means) > 0 {
		fmt.Fprintf(b, "\n## Proxies with one client\n\nThe same over %d of these cells, %s: proxies see all requests, the others stand beside them with %d clients.\n\n",
			means[0].Cells, atLeast(means[0].Seeds), manyClients)
		table(b, means)
	}
}

func atLeast(seeds int) string {
	if seeds == 1 {
		return "at least 1 seed"
	}
	return fmt.Sprintf("at least %d seeds", seeds)
}

func table(b *strings.Builder, means []Mean) {
	b.WriteString("| policy | clients | TTFT mean | TTFT p99 | time per token | goodput | cached tokens | KV events |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, m := range means {
		clients, events := manyClients, ""
		if m.Alone {
			clients = 1
		}
		if needsEvents(m.Policy) {
			events = "needs"
		}
		fmt.Fprintf(b, "| `%s` | %d | %.3f | %.3f | %.3f | %.3f | %.1f %% | %s |\n", m.Policy, clients, m.Ratios[0],
			m.Ratios[1], m.Ratios[2], m.Ratios[3], 100*m.Cached, events)
	}
}

func (v *Verdict) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## `%s`\n\n", v.Policy)
	than := strings.Join(v.Than, "` and `")
	switch {
	case v.Judged == 0:
		b.WriteString("* **Not compared** with simple policies: no cell has them, with a seed in common.\n")
		return
	case len(v.Offences) == 0:
		fmt.Fprintf(b, "* In none of %d cells worse than %.2f × the better of `%s`, beyond the spread.\n", v.Judged,
			allowed, than)
		return
	}
	fmt.Fprintf(b, "* **Worse** than %.2f × the better of `%s`, beyond the spread, of %d cells in:\n\n", allowed,
		than, v.Judged)
	b.WriteString("| cell | figure | than | factor | beyond the spread | seeds |\n| --- | --- | --- | --- | --- | --- |\n")
	for _, o := range v.Offences {
		fmt.Fprintf(b, "| %s | %s | `%s` | %.3f | %.3f | %d |\n", o.Cell, o.Figure, o.Than, o.Factor, o.Beyond, o.Seeds)
	}
}

// notFirst lists the cells in which a peer has the better mean TTFT over the seeds that both have.
func (r *Results) notFirst(b *strings.Builder, policy string, policies []string) {
	var lines []string
	for i := range r.Cells {
		c := &r.Cells[i]
		mine := c.row(policy, c.Clients)
		if mine == nil {
			continue
		}
		var best *Row
		var seeds []uint64
		low := 1.
		for _, other := range policies {
			row := c.row(other, c.Clients)
			if row == nil || needsEvents(other) && !needsEvents(policy) {
				continue
			}
			both := common(mine, row)
			if len(both) == 0 {
				continue
			}
			if ratio := ttftMean.ratio(row, mine, both); ratio < low {
				best, seeds, low = row, both, ratio
			}
		}
		if best != nil {
			lines = append(lines, fmt.Sprintf("| %s | `%s` | %s | %s | %d |\n", c.Name, best.Policy,
				ttftMean.plusMinus(best, seeds), ttftMean.plusMinus(mine, seeds), len(seeds)))
		}
	}
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\nCells in which another has the better mean TTFT, in ms:\n\n| cell | first | its TTFT | `%s` | seeds |\n| --- | --- | --- | --- | --- |\n%s", policy, strings.Join(lines, ""))
}

func (c *CellResults) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n### %s\n\n`%s`; its runs took %.0f s, added up\n\n", c.Name, &c.Cell, c.Seconds)
	b.WriteString("| policy | clients | seeds | TTFT mean, ms | p99 | ms per token | goodput | cached tokens | busiest ÷ mean |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range c.Rows {
		r := &c.Rows[i]
		seeds := r.seeds()
		fmt.Fprintf(b, "| `%s` | %d | %d | %s | %s | %s | %s | %s | %.2f |\n", r.Policy, r.Clients, len(seeds),
			ttftMean.plusMinus(r, seeds), ttftP99.plusMinus(r, seeds), tpotMean.plusMinus(r, seeds),
			goodput.percent(r, seeds), cached.percent(r, seeds), r.MaxOverMeanLoad)
	}
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
