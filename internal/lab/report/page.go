package report

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	Title, Sentence   string
	Facts             []Fact
	Tables            []Table
	Decisions, Errors [][]string
	Charts            []chart
	Library           template.JS
}

// HTML writes the page.
func (r *Report) HTML(w io.Writer) error {
	d := pageData{Title: r.Title, Sentence: r.Sentence(), Facts: r.Facts, Tables: r.tables(), Charts: r.charts(),
		Library: chartLibrary}
	for i := range r.Results {
		res := &r.Results[i]
		d.Decisions = append(d.Decisions, decisions(res)...)
		if res.FirstError != nil {
			d.Errors = append(d.Errors, []string{res.Policy, res.FirstError.Error()})
		}
	}
	return page.Execute(w, &d)
}

// CSV writes the tables, an empty line between two.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	for i, t := range r.tables() {
		if i > 0 {
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		if err := c.WriteAll(append([][]string{t.Columns}, t.Rows...)); err != nil {
			return err
		}
	}
	return nil
}

// decisions are a policy's: the policy, the reason, how many, the most frequent first.
func decisions(res *drive.Result) (rows [][]string) {
	reasons := slices.SortedFunc(maps.Keys(res.Decisions), func(a, b string) int {
		return cmp.Or(res.Decisions[b]-res.Decisions[a], cmp.Compare(a, b))
	})
	for _, why := range reasons {
		rows = append(rows, []string{res.Policy, why, fmt.Sprint(res.Decisions[why])})
	}
	return rows
}
