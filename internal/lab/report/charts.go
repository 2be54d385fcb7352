package report

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/warmpath/warmpath/internal/lab/drive"
)

// Sizes of a chart.
const (
	chartWidth  = 12 * vg.Centimeter
	chartHeight = 7.5 * vg.Centimeter
)

// colors are the policies', in the order of the results; they can be told apart without red and green.
var colors = []color.Color{
	color.RGBA{0x99, 0x99, 0x99, 0xff}, color.RGBA{0x56, 0xb4, 0xe9, 0xff}, color.RGBA{0xe6, 0x9f, 0x00, 0xff},
	color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x72, 0xb2, 0xff}, color.RGBA{0xcc, 0x79, 0xa7, 0xff},
	color.RGBA{0xf0, 0xe4, 0x42, 0xff}, color.RGBA{0x00, 0x9e, 0x73, 0xff},
}

func colorOf(i int) color.Color { return colors[i%len(colors)] }

// stroke draws a policy's line: those whose color another has before them are dashed.
func stroke(line *plotter.Line, i int) {
	line.Color, line.Width = colorOf(i), 1.5
	if i >= len(colors) {
		line.Dashes = []vg.Length{4, 2}
	}
}

// newPlot is an empty chart in the style of all.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.Padding = 6
	p.Title.TextStyle.Font = font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, 12)
	label := font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, 9)
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Label.TextStyle.Font, a.Tick.Label.Font = label, label
	}
	p.Legend.TextStyle.Font = label
	p.Legend.ThumbnailWidth, p.Legend.Padding = 10, 1
	return p
}

// grid draws horizontal lines behind everything.
func grid(p *plot.Plot) {
	g := plotter.NewGrid()
	g.Vertical.Width = 0
	g.Horizontal.Color = color.Gray{0xdd}
	p.Add(g)
}

// charts are all the charts, in their order.
func (r *Report) charts() ([]*plot.Plot, error) {
	var all []*plot.Plot
	for _, build := range []func() (*plot.Plot, error){
		r.cachedChart,
		func() (*plot.Plot, error) {
			return r.cumulative("Time to first token", "ms, logarithmic", func(s *drive.Sample) float64 { return float64(s.TTFT) })
		},
		func() (*plot.Plot, error) {
			return r.cumulative("Time per output token", "ms, logarithmic", func(s *drive.Sample) float64 { return float64(s.TPOT) })
		},
		r.loadChart,
		r.decisionChart,
		r.timeChart,
	} {
		p, err := build()
		if err != nil {
			return nil, fmt.Errorf("draw a chart: %w", err)
		}
		all = append(all, p)
	}
	return all, nil
}

// cachedChart is one bar per policy.
func (r *Report) cachedChart() (*plot.Plot, error) {
	p := newPlot("Prompt tokens found in a cache")
	grid(p)
	p.Y.Label.Text, p.Y.Min, p.Y.Max = "%", 0, 100
	if len(r.Results) == 0 {
		return p, nil
	}
	var names []string
	for i := range r.Results {
		res := &r.Results[i]
		b, err := plotter.NewBarChart(plotter.Values{100 * res.CachedTokenRatio}, vg.Centimeter)
		if err != nil {
			return nil, err
		}
		b.XMin, b.Color, b.LineStyle.Width = float64(i), colorOf(i), 0
		text, err := plotter.NewLabels(plotter.XYLabels{
			XYs:    plotter.XYs{{X: float64(i), Y: 100*res.CachedTokenRatio + 2}},
			Labels: []string{fmt.Sprintf("%.0f %%", 100*res.CachedTokenRatio)},
		})
		if err != nil {
			return nil, err
		}
		text.TextStyle[0].XAlign, text.TextStyle[0].Font = draw.XCenter, p.X.Tick.Label.Font
		p.Add(b, text)
		names = append(names, res.Policy)
	}
	p.NominalX(stacked(names)...)
	p.X.Padding = 8
	p.X.Tick.Label.YAlign = draw.YTop
	p.X.Min, p.X.Max = -0.6, float64(len(r.Results))-0.4
	return p, nil
}

// cumulative is one line per policy: the share of the requests that took at most so long.
func (r *Report) cumulative(title, unit string, of func(*drive.Sample) float64) (*plot.Plot, error) {
	p := newPlot(title)
	grid(p)
	p.X.Label.Text, p.Y.Label.Text = unit, "% of requests"
	p.Y.Min, p.Y.Max = 0, 100
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	for i := range r.Results {
		var xs []float64
		for k := range r.Results[i].Samples {
			if s := &r.Results[i].Samples[k]; s.Err == nil && !s.WarmUp && of(s) > 0 {
				xs = append(xs, of(s)/1e6)
			}
		}
		if len(xs) == 0 {
			continue
		}
		slices.Sort(xs)
		line, err := plotter.NewLine(steps(xs))
		if err != nil {
			return nil, err
		}
		stroke(line, i)
		p.Add(line)
		p.Legend.Add(r.Results[i].Policy, line)
	}
	if p.X.Min > p.X.Max || p.X.Min <= 0 { // nothing to draw
		p.X.Min, p.X.Max = 1, 1000
	}
	p.Legend.Left = false
	return p, nil
}

// steps thins a sorted sample out to the points that a line needs.
func steps(xs []float64) plotter.XYs {
	const points = 200
	n := min(len(xs), points)
	line := make(plotter.XYs, 0, n+1)
	line = append(line, plotter.XY{X: xs[0], Y: 0})
	for i := 1; i <= n; i++ {
		k := i * len(xs) / n
		line = append(line, plotter.XY{X: xs[k-1], Y: 100 * float64(k) / float64(len(xs))})
	}
	return line
}

// decades puts ticks at 1, 2 and 5 of every power of ten.
type decades struct{}

// Ticks implements plot.Ticker.
func (decades) Ticks(low, high float64) (ts []plot.Tick) {
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= low && v <= high {
				ts = append(ts, plot.Tick{Value: v, Label: fmt.Sprintf("%g", v)})
			}
		}
	}
	return ts
}

// loadChart is a group of bars per replica, one bar per policy.
func (r *Report) loadChart() (*plot.Plot, error) {
	seen := map[string]bool{}
	var replicas []string
	for i := range r.Results {
		for id := range r.Results[i].Loads {
			if !seen[id] {
				seen[id], replicas = true, append(replicas, id)
			}
		}
	}
	slices.SortFunc(replicas, func(a, b string) int { // r2 before r10
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
	return r.groups("Prompt tokens computed, by replica", "thousand tokens", replicas, func(res *drive.Result, id string) float64 {
		return float64(res.Loads[id]) / 1e3
	})
}

// timeChart is one line per policy: how many requests the busiest replica of each moment had, warm-up included.
func (r *Report) timeChart() (*plot.Plot, error) {
	p := newPlot("Requests under way on the busiest replica")
	grid(p)
	p.X.Label.Text, p.Y.Label.Text = "s", "requests"
	p.Y.Min = 0
	end := time.Duration(0) // of the arrivals: what comes after them is the fleet running empty
	for i := range r.Results {
		for k := range r.Results[i].Samples {
			end = max(end, r.Results[i].Samples[k].At)
		}
	}
	p.X.Min, p.X.Max = 0, max(end.Seconds(), 1)
	for i := range r.Results {
		xys := busiest(r.Results[i].Samples, end)
		if xys == nil {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		stroke(line, i)
		p.Add(line)
		p.Legend.Add(r.Results[i].Policy, line)
	}
	p.Y.Max = max(1.35*p.Y.Max, 1) // room for the legend
	p.Legend.Top = true
	return p, nil
}

// busiest cuts the time up to end into slots and returns for each how many requests the replica that had most of
// them had in the mean; nil if there is nothing to tell.
func busiest(samples []drive.Sample, end time.Duration) plotter.XYs {
	const slots = 120
	slot := end.Seconds() / slots
	if slot == 0 {
		return nil
	}
	loads := map[string]*[slots]float64{} // replica → request seconds
	for i := range samples {
		s := &samples[i]
		if s.Err != nil || s.Replica == "" {
			continue
		}
		load := loads[s.Replica]
		if load == nil {
			load = new([slots]float64)
			loads[s.Replica] = load
		}
		from, to := (s.At+s.Waited).Seconds()/slot, (s.At+s.Latency).Seconds()/slot
		for k := int(from); k < slots && float64(k) < to; k++ {
			load[k] += min(to, float64(k+1)) - max(from, float64(k))
		}
	}
	if len(loads) == 0 {
		return nil
	}
	xys := make(plotter.XYs, slots)
	for k := range xys {
		xys[k].X = (float64(k) + 0.5) * slot
		for _, load := range loads {
			xys[k].Y = max(xys[k].Y, load[k])
		}
	}
	return xys
}

// decisionChart is a group of bars per reason.
func (r *Report) decisionChart() (*plot.Plot, error) {
	seen := map[string]bool{}
	var reasons []string
	for i := range r.Results {
		for why := range r.Results[i].Decisions {
			if !seen[why] {
				seen[why], reasons = true, append(reasons, why)
			}
		}
	}
	slices.Sort(reasons)
	return r.groups("Decisions by reason", "requests", reasons, func(res *drive.Result, why string) float64 {
		return float64(res.Decisions[why])
	})
}

// groups is a chart with one group of bars per name.
func (r *Report) groups(title, unit string, names []string, of func(*drive.Result, string) float64) (*plot.Plot, error) {
	p := newPlot(title)
	grid(p)
	p.Y.Label.Text = unit
	p.Y.Min, p.Y.Max = 0, 1
	if len(names) == 0 {
		return p, nil
	}
	width := 0.7 * chartWidth / vg.Length(len(names)*max(len(r.Results), 1)+1)
	for i := range r.Results {
		vs := make(plotter.Values, len(names))
		for k, name := range names {
			vs[k] = of(&r.Results[i], name)
		}
		b, err := plotter.NewBarChart(vs, width)
		if err != nil {
			return nil, err
		}
		b.Color, b.LineStyle.Width = colorOf(i), 0
		b.Offset = width * (vg.Length(i) - vg.Length(len(r.Results)-1)/2)
		p.Add(b)
		p.Legend.Add(r.Results[i].Policy, b)
	}
	p.NominalX(stacked(names)...)
	p.X.Tick.Label.YAlign = draw.YTop
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	p.Y.Max *= 1.35 // room for the legend
	p.Legend.Top = true
	return p, nil
}

// stacked breaks names at their underscores; all get as many lines, so that they stand at one height.
func stacked(names []string) []string {
	lines := 0
	for _, name := range names {
		lines = max(lines, strings.Count(name, "_"))
	}
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strings.ReplaceAll(name, "_", "\n") + strings.Repeat("\n ", lines-strings.Count(name, "_"))
	}
	return out
}
