// Package plot writes bandwidth over time as an HTML file that needs nothing else: the library that
// draws it, uPlot, and the data are in the file, and a browser that opens it loads nothing.
//
// uPlot is there as its authors distribute it, with its licence, in third_party/uplot.
package plot

import (
	"embed"
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

//go:embed page.html third_party/uplot
var files embed.FS

// Write writes the file.
func Write(w io.Writer, page *Page) error {
	library, err := files.ReadFile("third_party/uplot/uPlot.iife.min.js")
	if err != nil {
		return err
	}
	style, err := files.ReadFile("third_party/uplot/uPlot.min.css")
	if err != nil {
		return err
	}
	licence, err := files.ReadFile("third_party/uplot/LICENSE")
	if err != nil {
		return err
	}
	t, err := template.ParseFS(files, "page.html")
	if err != nil {
		return err
	}
	return t.Execute(w, &struct {
		*Page
		Name    string
		Library template.JS
		Style   template.CSS
		Licence string
	}{page, Library, template.JS(library), template.CSS(style), string(licence)})
}
