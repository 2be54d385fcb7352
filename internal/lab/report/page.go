package report

import (
	_ "embed"
	"encoding/csv"
	"html/template"
	"io"

	"github.com/warmpath/warmpath/internal/page"
)

//go:embed page.html
var pageText string

var templates = template.Must(page.Components().New("report").Parse(pageText))

// HTML writes the page.
func (r *Report) HTML(w io.Writer) error { return templates.Execute(w, r) }

// CSV writes the tables, an empty line between two.
func (r *Report) CSV(w io.Writer) error {
	c := csv.NewWriter(w)
	for i, t := range r.Tables() {
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
