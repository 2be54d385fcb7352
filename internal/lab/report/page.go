package report

import (
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	Title, Sentence string
	Facts           []Fact
	Tables          []Table
	Charts          []chart
	Library         template.JS
	Decisions       [][3]string // policy, reason, requests
	Errors          [][2]string // policy, first error
}

// HTML writes the page.
func (r *Report) HTML(w io.Writer) error {
	d := pageData{Title: r.Title, Sentence: r.Sentence(), Facts: r.Facts,
		Tables: append([]Table{r.table()}, r.More...), Charts: r.charts(), Library: chartLibrary}
	for i := range r.Results {
		res := &r.Results[i]
		d.Decisions = append(d.Decisions, decisions(res)...)
		if res.FirstError != nil {
			d.Errors = append(d.Errors, [2]string{res.Policy, res.FirstError.Error()})
		}
	}
	return page.Execute(w, &d)
}

// CSV writes the tables, an empty line between two.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	for i, t := range append([]Table{r.table()}, r.More...) {
		if i > 0 {
			c.Flush()
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if err := c.WriteAll(append([][]string{t.Columns}, t.Rows...)); err != nil {
			return err
		}
	}
	return c.Error()
}

// table is the first table, with every column.
func (r *Report) table() Table {
	first := Table{Columns: []string{"policy"}}
	group := ""
	for _, c := range columns {
		if c.group != "" || !slices.Contains([]string{"p50", "p99"}, c.name) {
			group = c.group
		}
		name := c.name
		if group != "" {
			name = group + " " + name
		}
		first.Columns = append(first.Columns, name)
	}
	first.Columns = append(first.Columns, "output tokens per s", "lag ms p99")
	for i := range r.Results {
		res := &r.Results[i]
		row := []string{res.Policy}
		for _, c := range columns {
			row = append(row, c.cell(res))
		}
		first.Rows = append(first.Rows, append(row, fmt.Sprintf("%.0f", res.OutputTokensPerS), millis(res.Lag.P99)))
	}
	return first
}

// decisions are a policy's, the most frequent reason first.
func decisions(res *drive.Result) (rows [][3]string) {
	for why, n := range res.Decisions {
		rows = append(rows, [3]string{res.Policy, why, fmt.Sprint(n)})
	}
	slices.SortFunc(rows, func(a, b [3]string) int {
		if d := res.Decisions[b[1]] - res.Decisions[a[1]]; d != 0 {
			return d
		}
		if a[1] < b[1] {
			return -1
		}
		return 1
	})
	return rows
}
