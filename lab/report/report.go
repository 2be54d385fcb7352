package report

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/warmpath/warmpath/lab/drive"
)

// Report is one comparison of policies.
type Report struct {
	drive.Comparison
	// Title is what was run, Facts how, in the order given.
	Title string
	Facts []Fact
	// Subject begins the sentence; empty stands for the number of clients, sharing nothing.
	Subject string
}

// Fact is one circumstance of a run.
type Fact struct{ Name, Value string }

// Table has one row per policy, whose name is the first cell.
type Table struct {
	Columns []string
	Rows    [][]string
}

// Text is the table for a terminal: the policies on the left, the other columns aligned on the right.
func (t *Table) Text() string {
	width := 0
	for _, row := range t.Rows {
		width = max(width, utf8.RuneCountInString(row[0]))
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{t.Columns}, t.Rows...) {
		fmt.Fprintf(w, "%-*s\t%s\t\n", width, row[0], strings.Join(row[1:], "\t"))
	}
	w.Flush()                                                    //nolint:errcheck // A strings.Builder takes everything.
	return strings.ReplaceAll("\n"+b.String(), "\n  ", "\n")[1:] // without the padding of the first column
}

// figures are the columns that all results have, and their spreads.
var figures = []struct {
	name string
	cell func(*drive.Figures) string
}{
	{"cached tokens", func(f *drive.Figures) string { return percent(f.CachedTokenRatio) }},
	{"TTFT ms mean", func(f *drive.Figures) string { return millis(f.TTFT.Mean) }},
	{"TTFT p50", func(f *drive.Figures) string { return millis(f.TTFT.P50) }},
	{"TTFT p99", func(f *drive.Figures) string { return millis(f.TTFT.P99) }},
	{"ms per token mean", func(f *drive.Figures) string { return millis(f.TPOT.Mean) }},
	{"token p50", func(f *drive.Figures) string { return millis(f.TPOT.P50) }},
	{"token p99", func(f *drive.Figures) string { return millis(f.TPOT.P99) }},
	{"goodput", func(f *drive.Figures) string { return percent(f.Goodput) }},
	{"output tokens/s", func(f *drive.Figures) string { return fmt.Sprintf("%.0f", f.OutputTokensPerS) }},
	{"busiest ÷ mean", func(f *drive.Figures) string { return fmt.Sprintf("%.2f", f.MaxOverMeanLoad) }},
}

// Tables are the comparison, how requests are spread, and what the simulator has beside it.
func (r *Report) Tables() []Table {
	first := Table{Columns: []string{"policy", "requests", "errors"}}
	balance := Table{Columns: []string{"policy", "follow-ups at home", "requests CV"}}
	simulated := Table{Columns: []string{"policy", "preemptions", "KV busiest ÷ mean", "KV CV", "regret ms", "split"}}
	spread := Table{Columns: []string{"policy", "spread"}}
	for _, f := range figures {
		first.Columns, spread.Columns = append(first.Columns, f.name), append(spread.Columns, f.name)
	}
	for i := range r.Results {
		res := &r.Results[i]
		first.add(&res.Figures, res.Policy, fmt.Sprint(res.Requests), fmt.Sprint(res.Errors))
		balance.add(nil, res.Policy, percent(res.FollowUpsHome), fmt.Sprintf("%.2f", res.RequestsCV))
		if res.Simulated == nil {
			continue
		}
		simulated.add(nil, res.Policy, fmt.Sprint(res.Preemptions), fmt.Sprintf("%.2f", res.KVImbalance),
			fmt.Sprintf("%.2f", res.KVCV), millis(res.RegretMS), percent(res.Split))
		if s := res.Spread; s != nil {
			spread.add(&s.Figures, res.Policy, "")
		}
	}
	return append([]Table{first, balance}, slices.DeleteFunc([]Table{simulated, spread},
		func(t Table) bool { return t.Rows == nil })...)
}

// add adds a row: these cells, and the figures if there are any.
func (t *Table) add(f *drive.Figures, cells ...string) {
	for _, c := range figures {
		if f != nil {
			cells = append(cells, c.cell(f))
		}
	}
	t.Rows = append(t.Rows, cells)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// millis writes milliseconds with three digits.
func millis(x float64) string {
	switch {
	case x < 9.995:
		return fmt.Sprintf("%.2f", x)
	case x < 99.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// Text is the tables for a terminal.
func (r *Report) Text() string {
	var all []string
	for _, t := range r.Tables() {
		all = append(all, t.Text())
	}
	return strings.Join(all, "\n")
}

// same is how far a ratio may be from 1 for two figures to count as about equal.
const same = 0.03

// Sentence states what the results mean.
func (r *Report) Sentence() string {
	if len(r.Results) == 0 {
		return "Nothing was measured."
	}
	if r.Invalid != "" {
		return "This run is not valid: " + r.Invalid + "."
	}
	subject := fmt.Sprintf("With %d clients that share nothing", r.Clients)
	if r.Clients == 1 {
		subject = "With one client"
	}
	if r.Subject != "" {
		subject = r.Subject
	}
	a, b := r.pair()
	var s string
	if b == nil {
		s = fmt.Sprintf("%s, %s finds %.0f %% of the prompt tokens in the engines' caches; the first token takes %s ms and every further one %s ms in the mean",
			subject, a.Policy, 100*a.CachedTokenRatio, millis(a.TTFT.Mean), millis(a.TPOT.Mean))
	} else {
		sign, first := change(a.TTFT.Mean, b.TTFT.Mean)
		tokenSign, token := change(a.TPOT.Mean, b.TPOT.Mean)
		link := "and"
		if sign != tokenSign {
			link = "but"
		}
		s = fmt.Sprintf("%s, %s finds %.0f %% of the prompt tokens in the engines' caches where %s finds %.0f %%: the first token comes %s (%s ms instead of %s), %s every further one %s (%s ms instead of %s)",
			subject, a.Policy, 100*a.CachedTokenRatio, b.Policy, 100*b.CachedTokenRatio,
			first, millis(a.TTFT.Mean), millis(b.TTFT.Mean), link, token, millis(a.TPOT.Mean), millis(b.TPOT.Mean))
	}
	failed := 0
	for i := range r.Results {
		failed += r.Results[i].Errors
	}
	if failed > 0 {
		s += fmt.Sprintf("; %d calls failed, which these figures leave out", failed)
	}
	return s + "."
}

// The policies that the sentence is about, where they are there.
const (
	subject  = "kv_aware"
	baseline = "round_robin"
)

// pair is the policy to speak of, else the last, and the one to compare it with, else the first; nil if there is only
// one.
func (r *Report) pair() (a, b *drive.Result) {
	for i := range r.Results {
		if res := &r.Results[i]; a == nil || a.Policy != subject && res.Policy != baseline {
			a = res
		}
	}
	for i := range r.Results {
		if res := &r.Results[i]; res != a && (b == nil || res.Policy == baseline) {
			b = res
		}
	}
	return a, b
}

// change is how much sooner or later one duration is than another: -1, 0 or 1, and the words for it.
func change(a, b float64) (sign int, words string) {
	ratio := 1.
	if a > 0 && b > 0 {
		ratio = a / b
	}
	switch {
	case math.Abs(ratio-1) < same:
		return 0, "about as soon"
	case ratio < 1:
		return -1, fmt.Sprintf("%.0f %% sooner", 100*(1-ratio))
	}
	return 1, fmt.Sprintf("%.0f %% later", 100*(ratio-1))
}
