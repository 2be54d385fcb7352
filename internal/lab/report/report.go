package report

import (
	"fmt"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// Report is one comparison of policies.
type Report struct {
	drive.Comparison
	// Title is what was run, Facts how, in the order given.
	Title string
	Facts []Fact
	// Subject begins the sentence; empty stands for the number of clients, sharing nothing.
	Subject string
	// More are further tables, below the first.
	More []Table
}

// Table has one row per policy, whose name is the first cell.
type Table struct {
	Columns []string
	Rows    [][]string
}

// Text is the table for a terminal.
func (t *Table) Text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(t.Columns, "\t"))
	for _, row := range t.Rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	w.Flush() //nolint:errcheck // A strings.Builder takes everything.
	return b.String()
}

// Fact is one circumstance of a run.
type Fact struct{ Name, Value string }

// column is one column of the table.
type column struct {
	group, name string
	cell        func(*drive.Result) string
}

// columns are those of the table, in a terminal and on the page.
var columns = []column{
	{"", "requests", func(r *drive.Result) string { return fmt.Sprint(r.Requests) }},
	{"", "errors", func(r *drive.Result) string { return fmt.Sprint(r.Errors) }},
	{"", "cached tokens", func(r *drive.Result) string { return fmt.Sprintf("%.1f %%", 100*r.CachedTokenRatio) }},
	{"TTFT ms", "mean", func(r *drive.Result) string { return millis(r.TTFT.Mean) }},
	{"", "p50", func(r *drive.Result) string { return millis(r.TTFT.P50) }},
	{"", "p99", func(r *drive.Result) string { return millis(r.TTFT.P99) }},
	{"ms per token", "mean", func(r *drive.Result) string { return millis(r.TPOT.Mean) }},
	{"", "p50", func(r *drive.Result) string { return millis(r.TPOT.P50) }},
	{"", "p99", func(r *drive.Result) string { return millis(r.TPOT.P99) }},
	{"", "goodput", func(r *drive.Result) string { return fmt.Sprintf("%.1f %%", 100*r.Goodput) }},
	{"", "busiest ÷ mean", func(r *drive.Result) string { return fmt.Sprintf("%.2f", r.MaxOverMeanLoad) }},
}

// millis writes milliseconds with three digits.
func millis(x float64) string {
	if x < 99.95 {
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// Text is the tables for a terminal.
func (r *Report) Text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "policy\t")
	for _, c := range columns {
		fmt.Fprint(w, strings.TrimSpace(c.group+" "+c.name), "\t")
	}
	fmt.Fprintln(w)
	for i := range r.Results {
		fmt.Fprint(w, r.Results[i].Policy, "\t")
		for _, c := range columns {
			fmt.Fprint(w, c.cell(&r.Results[i]), "\t")
		}
		fmt.Fprintln(w)
	}
	w.Flush() //nolint:errcheck // A strings.Builder takes everything.
	text := leftAligned(b.String())
	for i := range r.More {
		text += "\n" + r.More[i].Text()
	}
	return text
}

// leftAligned moves the blanks before the first word of each line behind it.
func leftAligned(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		word := strings.TrimLeft(line, " ")
		end := strings.IndexByte(word, ' ')
		if end < 0 {
			end = len(word)
		}
		b.WriteString(word[:end])
		b.WriteString(line[:len(line)-len(word)])
		b.WriteString(word[end:])
	}
	return b.String()
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
		first, token := compare(a.TTFT.Mean, b.TTFT.Mean), compare(a.TPOT.Mean, b.TPOT.Mean)
		link := "and"
		if first.sign() != token.sign() {
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
	subject  = "prefix_cache_affinity"
	baseline = "round_robin"
)

// pair is the policy to speak of and the one to compare it with, nil if there is only one.
func (r *Report) pair() (a, b *drive.Result) {
	for i := range r.Results {
		switch res := &r.Results[i]; {
		case res.Policy == subject:
			a = res
		case res.Policy == baseline:
			b = res
		}
	}
	if a == nil {
		for i := range r.Results {
			if res := &r.Results[i]; res != b && (a == nil || res.CachedTokenRatio > a.CachedTokenRatio) {
				a = res
			}
		}
	}
	if a == nil {
		return b, nil
	}
	for i := range r.Results {
		if res := &r.Results[i]; b == nil && res != a {
			b = res
		}
	}
	return a, b
}

// change is by how much one duration is another.
type change struct{ ratio float64 }

func compare(a, b float64) change {
	if !(a > 0) || !(b > 0) {
		return change{1}
	}
	return change{a / b}
}

// sign is -1 for sooner, 1 for later, 0 for about as soon.
func (c change) sign() int {
	switch {
	case math.Abs(c.ratio-1) < same:
		return 0
	case c.ratio < 1:
		return -1
	}
	return 1
}

func (c change) String() string {
	switch c.sign() {
	case 0:
		return "about as soon"
	case -1:
		return fmt.Sprintf("%.0f %% sooner", 100*(1-c.ratio))
	default:
		return fmt.Sprintf("%.0f %% later", 100*(c.ratio-1))
	}
}
