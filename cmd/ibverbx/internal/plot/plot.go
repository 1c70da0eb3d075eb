// Package plot writes bandwidth over time as an HTML file that needs nothing else: the library that
// draws it, uPlot, and the data are in the file, and a browser that opens it loads nothing.
//
// uPlot is there as its authors distribute it, with its licence, in third_party/uplot.
package plot

import (
	_ "embed"
	"html/template"
	"io"
)

// Library is what draws the charts, with its version.
const Library = "uPlot 1.6.32"

// Page is what a file shows.
type Page struct {
	Title  string
	Lines  []string // below the title: what was measured, and where
	Charts []Chart
}

// Chart is quantities over time, with marks where something happened.
type Chart struct {
	Title string `json:"title"`
	Unit  string `json:"unit"` // of the quantities
	// Times are when the intervals begin, in seconds, and when the last one ends: one more than
	// each line has values.
	Times []float64 `json:"times"`
	Lines []Line    `json:"lines"`
	Marks []Mark    `json:"marks"` // by time
}

// Line is a quantity in each interval.
type Line struct {
	Name string `json:"name"`
	// Group is a number that lines have in common which are drawn in shades of one colour; the sum
	// of the others has -1, and is drawn first.
	Group  int       `json:"group"`
	Values []float64 `json:"values"`
}

// Mark is a vertical line with words.
type Mark struct {
	At   float64 `json:"at"` // seconds
	Text string  `json:"text"`
	// Until is when what began here is over, in seconds; 0 where it is not known to be. The time
	// between is shaded.
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
