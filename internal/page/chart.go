package page

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A Line is one line of a chart: points in the order of X.
type Line struct {
	Name   string
	X, Y   []float64
	Dashed bool
}

// A Chart shows lines over common axes. Its zero scales fit the data, from zero on but for logarithmic ones.
type Chart struct {
	Title, XUnit, YUnit string
	Lines               []Line
	LogX                bool
	MinX, MaxY          float64
}

// Colors is how many lines have a color of their own; further ones are dashed.
const Colors = 8

// A drawn line has its points in percent of the chart's area.
type drawn struct {
	Name, Points string
	Color        int
	Dashed       bool
}

// A tick is a label on an axis, At percent from the left or the top.
type tick struct{ At, Label string }

// drawing is a chart as the template needs it.
type drawing struct {
	Chart
	Drawn        []drawn
	XTick, YTick []tick
}

func (c Chart) draw() drawing {
	d := drawing{Chart: c}
	low, high, top := c.MinX, 0.0, c.MaxY
	for _, l := range c.Lines {
		for i, x := range l.X {
			high = max(high, x)
			if c.LogX && (low == 0 || x < low) {
				low = x
			}
			if c.MaxY == 0 {
				top = max(top, l.Y[i])
			}
		}
	}
	marks := steps(top)
	if c.MaxY == 0 {
		top = marks[len(marks)-1]
	}
	at := func(x float64) float64 { return share(x-low, high-low) }
	if c.LogX && low > 0 {
		at = func(x float64) float64 { return share(math.Log(x/low), math.Log(high/low)) }
	}
	for i, l := range c.Lines {
		var points strings.Builder
		for k, x := range l.X {
			if x < c.MinX {
				continue
			}
			fmt.Fprintf(&points, "%s,%s ", percentage(at(x)), percentage(1-share(l.Y[k], top)))
		}
		d.Drawn = append(d.Drawn, drawn{l.Name, points.String(), i % Colors, l.Dashed || i >= Colors})
	}
	for _, y := range marks {
		d.YTick = append(d.YTick, tick{percentage(1 - share(y, top)), short(y)})
	}
	xs := steps(high - low)
	if c.LogX && low > 0 {
		xs = decades(low, high)
	}
	for _, x := range xs {
		if !c.LogX {
			x += low
		}
		d.XTick = append(d.XTick, tick{percentage(at(x)), short(x)})
	}
	return d
}

// steps are four to eight round numbers from zero to the first that is not below top.
func steps(top float64) (all []float64) {
	if !(top > 0) || math.IsInf(top, 0) {
		return []float64{0, 1}
	}
	size := math.Pow(10, math.Floor(math.Log10(top)))
	for _, by := range []float64{1, 0.5, 0.25, 0.2} {
		if top/(size*by) >= 3 {
			size *= by
			break
		}
	}
	for i := 0.0; ; i++ {
		if all = append(all, i*size); i*size >= top*(1-1e-9) {
			return all
		}
	}
}

// decades are round numbers from low to high: powers of ten, with two or with more between two where these are few.
func decades(low, high float64) (all []float64) {
	parts := []float64{1, 2, 5}
	switch {
	case high > 300*low:
		parts = parts[:1]
	case high < 4*low:
		parts = []float64{1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 7, 8, 9}
	}
	for size := math.Pow(10, math.Floor(math.Log10(low))); size <= high; size *= 10 {
		for _, by := range parts {
			if x := size * by; x >= low && x <= high {
				all = append(all, x)
			}
		}
	}
	return all
}

// share is x as a part of all, 0 to 1.
func share(x, all float64) float64 {
	if !(all > 0) || !(x > 0) {
		return 0
	}
	return min(x/all, 1)
}

func percentage(part float64) string { return strconv.FormatFloat(100*part, 'f', 1, 64) }

// short writes a number with at most three digits and the unit k, M or G.
func short(x float64) string {
	unit := ""
	for _, u := range []string{"k", "M", "G"} {
		if math.Abs(x) < 999.5 {
			break
		}
		x, unit = x/1000, u
	}
	digits := 2
	if math.Abs(x) >= 99.95 {
		digits = 0
	} else if math.Abs(x) >= 9.995 {
		digits = 1
	}
	text := strconv.FormatFloat(x, 'f', digits, 64)
	if digits > 0 {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	if unit != "" {
		unit = " " + unit
	}
	return text + unit
}

// count writes a whole number with commas.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// A Bar is one row of a table of bars: its length shows Value.
type Bar struct {
	Name, Text string
	Value      float64
	Color      int
}

// Bars are rows under a title.
type Bars struct {
	Title string
	Rows  []Bar
	Whole float64 // the value of a bar of full length; 0 = the largest
}

// Widest is the value of a bar of full length.
func (b Bars) Widest() float64 {
	if b.Whole > 0 || len(b.Rows) == 0 {
		return b.Whole
	}
	return slices.MaxFunc(b.Rows, func(x, y Bar) int { return cmp.Compare(x.Value, y.Value) }).Value
}

//go:embed components.html
var componentText string

//go:embed page.css
var style string

// Components returns new templates with the style and the components "chart" (of a [Chart]) and "bars" (of [Bars]).
func Components() *template.Template {
	return template.Must(template.New("components").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(style) },
		"draw":  Chart.draw, "percent": func(part, all float64) string { return percentage(share(part, all)) },
		"count": count,
	}).Parse(componentText))
}
