package report

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// svg draws one chart as an SVG element.
func svg(p *plot.Plot) (string, error) {
	c := vgsvg.NewWith(vgsvg.UseWH(chartWidth, chartHeight))
	p.Draw(draw.New(c))
	return element(c)
}

// element is a canvas as an element to stand in a page, without the XML prologue.
func element(c io.WriterTo) (string, error) {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", err
	}
	s := withFallback(b.String())
	if at := strings.Index(s, "<svg"); at > 0 {
		s = s[at:]
	}
	return s, nil
}

// withFallback names fonts for those who lack the one that the text was measured with; Arial is as wide.
func withFallback(svg string) string {
	return strings.ReplaceAll(svg, "font-family:Liberation Sans;", "font-family:Liberation Sans,Arial,Helvetica,sans-serif;")
}

// Formats are the endings of file names that Picture knows.
var Formats = []string{".svg", ".png"}

// Picture draws the first four charts on one sheet; format is one of Formats.
func (r *Report) Picture(w io.Writer, format string) error {
	charts, err := r.charts()
	if err != nil {
		return err
	}
	const cols, pictured, pad = 2, 4, 0.3 * vg.Centimeter
	charts = charts[:pictured]
	rows := len(charts) / cols
	width, height := cols*chartWidth+(cols+1)*pad, vg.Length(rows)*chartHeight+vg.Length(rows+1)*pad
	var c interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case ".svg":
		c = vgsvg.NewWith(vgsvg.UseWH(width, height))
	case ".png":
		c = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(144))}
	default:
		return fmt.Errorf("%q is not one of %s", format, strings.Join(Formats, ", "))
	}
	sheet := draw.New(c)
	sheet.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	tiles := draw.Tiles{Rows: rows, Cols: cols, PadX: pad, PadY: pad, PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: pad}
	for i, p := range charts {
		p.Draw(tiles.At(sheet, i%cols, i/cols))
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	if format == ".svg" {
		_, err = io.WriteString(w, withFallback(b.String()))
	} else {
		_, err = b.WriteTo(w)
	}
	return err
}
