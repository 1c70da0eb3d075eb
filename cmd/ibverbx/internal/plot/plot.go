// Package plot writes bandwidth over time as a self-contained HTML file: the library that draws it,
// uPlot, and the data are in the file, and a browser that opens it loads nothing.
//
// third_party/uplot has uPlot as its authors distribute it, with its licence.
package plot

import (
	_ "embed"
	"html/template"
	"io"
)

// Library is the name and version of the library that draws the charts.
const Library = "uPlot 1.6.32"

// Page is the contents of a file.
type Page struct {
	Title  string
	Lines  []string // below the title: what was measured, and where
	Charts []Chart
}

// Chart is quantities over time, with marks for events.
type Chart struct {
	Title string `json:"title"`
	Unit  string `json:"unit"` // of the quantities
	// Times are the beginnings of the intervals, in seconds, and the end of the last one: one more
	// than each line has values.
	Times []float64 `json:"times"`
	Lines []Line    `json:"lines"`
	Marks []Mark    `json:"marks"` // by time
}

// Line is a quantity in each interval.
type Line struct {
	Name string `json:"name"`
	// Lines with the same Group are drawn in shades of one colour; the sum of the others has -1,
	// and is drawn first.
	Group  int       `json:"group"`
	Values []float64 `json:"values"`
}

// Mark is a vertical line with words.
type Mark struct {
	At   float64 `json:"at"` // seconds
	Text string  `json:"text"`
	// Until is the end of the event, in seconds; 0 if unknown. The time between is shaded.
	Until float64 `json:"until,omitempty"`
}

var (
	//go:embed page.html
	pageText string
	//go:embed third_party/uplot/uPlot.iife.min.js
	library template.JS
	//go:embed third_party/uplot/uPlot.min.css
	style template.CSS
	//go:embed third_party/uplot/LICENSE
	licence string
)

// Write writes the file.
func Write(w io.Writer, p *Page) error {
	t, err := template.New("page").Parse(pageText)
	if err != nil {
		return err
	}
	return t.Execute(w, &struct {
		*Page
		Name    string
		Library template.JS
		Style   template.CSS
		Licence string
	}{p, Library, library, style, licence})
}
