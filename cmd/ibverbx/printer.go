package main

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// printer writes text and keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// columns lays out what fill prints, whose cells end in tabs.
func (p *printer) columns(flags uint, fill func(*printer)) {
	w := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', flags)
	cells := &printer{w: w}
	fill(cells)
	if err := w.Flush(); p.err == nil {
		p.err = err
	}
}
