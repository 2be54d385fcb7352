package report

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/page"
	"github.com/warmpath/warmpath/lab/drive"
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

// Charts are the page's, with one line per policy.
func (r *Report) Charts() []page.Chart {
	return []page.Chart{
		r.cumulative("Time to first token", func(s *drive.Sample) time.Duration { return s.TTFT }),
		r.cumulative("Time per output token", func(s *drive.Sample) time.Duration { return s.TPOT }),
		r.loads(),
	}
}

// cumulative is the share of the requests that took at most so long.
func (r *Report) cumulative(title string, of func(*drive.Sample) time.Duration) page.Chart {
	c := page.Chart{Title: title, XUnit: "ms", LogX: true, YUnit: "% of requests", MaxY: 100}
	for i := range r.Results {
		var ms []float64
		for k := range r.Results[i].Samples {
			if s := &r.Results[i].Samples[k]; s.Err == nil && !s.WarmUp && of(s) > 0 {
				ms = append(ms, float64(of(s))/1e6)
			}
		}
		slices.Sort(ms)
		c.Lines = append(c.Lines, steps(r.Results[i].Policy, ms))
	}
	return c
}

// steps thins a sorted sample out to the points that a line needs.
func steps(name string, xs []float64) page.Line {
	const points = 200
	line := page.Line{Name: name}
	n := min(len(xs), points)
	for i := 1; i <= n; i++ {
		k := i * len(xs) / n
		line.X, line.Y = append(line.X, xs[k-1]), append(line.Y, 100*float64(k)/float64(len(xs)))
	}
	return line
}

// loads shows how evenly the work is spread: a level line is even.
func (r *Report) loads() page.Chart {
	c := page.Chart{Title: "Prompt tokens computed by each replica", XUnit: "replicas, the busiest first", YUnit: "tokens"}
	for i := range r.Results {
		line := page.Line{Name: r.Results[i].Policy}
		for _, n := range r.Results[i].Loads {
			line.X, line.Y = append(line.X, float64(len(line.X))), append(line.Y, float64(n))
		}
		slices.SortFunc(line.Y, func(a, b float64) int { return cmp.Compare(b, a) })
		c.Lines = append(c.Lines, line)
	}
	return c
}

// Bars are the page's, with one row per policy, or per policy and reason.
func (r *Report) Bars() []page.Bars {
	cached := page.Bars{Title: "Prompt tokens found in a cache", Whole: 1}
	reasons := page.Bars{Title: "Decisions by reason"}
	for i := range r.Results {
		res := &r.Results[i]
		cached.Rows = append(cached.Rows, page.Bar{
			Name: res.Policy, Text: percent(res.CachedTokenRatio), Value: res.CachedTokenRatio, Color: i % page.Colors,
		})
		first := len(reasons.Rows)
		for reason, n := range res.Decisions {
			reasons.Rows = append(reasons.Rows, page.Bar{
				Name: reason, Text: fmt.Sprint(n), Value: float64(n), Color: i % page.Colors,
			})
		}
		slices.SortFunc(reasons.Rows[first:], func(a, b page.Bar) int {
			return cmp.Or(cmp.Compare(b.Value, a.Value), cmp.Compare(a.Name, b.Name))
		})
	}
	return []page.Bars{cached, reasons}
}
