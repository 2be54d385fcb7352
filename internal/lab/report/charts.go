package report

import (
	"cmp"
	_ "embed"
	"html/template"
	"slices"
	"time"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// chartLibrary is Chart.js 4.6.1, of npm's chart.js (MIT, chart.LICENSE).
//
//go:embed chart.umd.min.js
var chartLibrary template.JS

// colors are the policies', in the order of the results; they can be distinguished without red and green.
var colors = []string{"#999999", "#56b4e9", "#e69f00", "#d55e00", "#0072b2", "#cc79a7", "#f0e442", "#009e73"}

// chart is a configuration of Chart.js, as far as the page's script does not fill it in.
type chart struct {
	Type   string   `json:"type"` // bar or line
	Title  string   `json:"title"`
	X      axis     `json:"x"`
	Y      axis     `json:"y"`
	Labels []string `json:"labels,omitempty"` // of the groups of bars
	Series []series `json:"series"`
}

type axis struct {
	Type  string  `json:"type"` // category, linear or logarithmic
	Title string  `json:"title,omitempty"`
	Max   float64 `json:"max,omitempty"` // 0 = that of the data
}

// series is a policy's bars or line.
type series struct {
	Label  string    `json:"label"`
	Color  string    `json:"color"`
	Dashed bool      `json:"dashed,omitempty"` // its color is also that of a policy before it
	Bars   []float64 `json:"bars,omitempty"`
	Line   []point   `json:"line,omitempty"`
}

type point struct {
	X float64 `json:"x"`
	Y float64 `json:"y"`
}

// charts are all the charts, in their order.
func (r *Report) charts() []chart {
	return []chart{
		r.bars("Prompt tokens found in a cache", "%", []string{""},
			func(res *drive.Result, _ string) float64 { return 100 * res.CachedTokenRatio }),
		r.cumulative("Time to first token", func(s *drive.Sample) time.Duration { return s.TTFT }),
		r.cumulative("Time per output token", func(s *drive.Sample) time.Duration { return s.TPOT }),
		r.bars("Prompt tokens computed, by replica", "thousand tokens",
			r.names(func(res *drive.Result) map[string]int { return res.Loads }),
			func(res *drive.Result, id string) float64 { return float64(res.Loads[id]) / 1e3 }),
		r.bars("Decisions by reason", "requests",
			r.names(func(res *drive.Result) map[string]int { return res.Decisions }),
			func(res *drive.Result, why string) float64 { return float64(res.Decisions[why]) }),
	}
}

func (r *Report) series(i int) series {
	return series{Label: r.Results[i].Policy, Color: colors[i%len(colors)], Dashed: i >= len(colors)}
}

// bars is a chart with one group of bars per name.
func (r *Report) bars(title, unit string, names []string, of func(*drive.Result, string) float64) chart {
	c := chart{Type: "bar", Title: title, X: axis{Type: "category"}, Y: axis{Type: "linear", Title: unit}, Labels: names}
	for i := range r.Results {
		s := r.series(i)
		for _, name := range names {
			s.Bars = append(s.Bars, of(&r.Results[i], name))
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// cumulative is one line per policy: the share of the requests that took at most so long.
func (r *Report) cumulative(title string, of func(*drive.Sample) time.Duration) chart {
	c := chart{Type: "line", Title: title, X: axis{Type: "logarithmic", Title: "ms"},
		Y: axis{Type: "linear", Title: "% of requests", Max: 100}}
	for i := range r.Results {
		var ms []float64
		for k := range r.Results[i].Samples {
			if s := &r.Results[i].Samples[k]; s.Err == nil && !s.WarmUp && of(s) > 0 {
				ms = append(ms, float64(of(s))/1e6)
			}
		}
		slices.Sort(ms)
		s := r.series(i)
		s.Line = steps(ms)
		c.Series = append(c.Series, s)
	}
	return c
}

// steps thins a sorted sample out to the points that a line needs.
func steps(xs []float64) (line []point) {
	const points = 200
	n := min(len(xs), points)
	for i := 1; i <= n; i++ {
		k := i * len(xs) / n
		line = append(line, point{xs[k-1], 100 * float64(k) / float64(len(xs))})
	}
	return line
}

// names are the keys of the results' maps, the short ones first.
func (r *Report) names(of func(*drive.Result) map[string]int) (names []string) {
	for i := range r.Results {
		for name := range of(&r.Results[i]) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return slices.Compact(names)
}
