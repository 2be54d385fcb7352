package page

import (
	_ "embed"
	"html/template"
)

//go:embed components.html
var componentText string

//go:embed page.css
var style string

// Components returns new templates with the style and the components "chart" (of a [Chart]) and "bars" (of [Bars]).
func Components() *template.Template {
	return template.Must(template.New("components").Funcs(template.FuncMap{
		"style": func() template.CSS { return template.CSS(style) },
		"draw":  Chart.draw, "percent": func(part, all float64) string { return percentage(share(part, all)) },
		"count": func(n uint64) string { return count(n) }, "count32": func(n uint32) string { return count(n) },
	}).Parse(componentText))
}
