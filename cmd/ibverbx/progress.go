package main

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// progressAfter is how long a run goes on before progress is shown.
const progressAfter = 2 * time.Second

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// terminalWidth is the width of a terminal; 0 when f is none.
func terminalWidth(f *os.File) int {
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// progress shows how far a longer run is, below the rows of its table.
type progress struct {
	table *perfTable
	w     io.Writer
	start time.Time
	bar   *progressbar.ProgressBar
}

func newProgress(w io.Writer, t *perfTable) *progress {
	return &progress{table: t, w: w, start: time.Now()}
}

// Start writes what is measured.
func (p *progress) Start(params *bench.Params, peer *bench.Peer) { p.table.Start(params, peer) }

// Cell moves the bar.
func (p *progress) Cell(done, all int) {
	if p.bar == nil {
		if time.Since(p.start) < progressAfter {
			return
		}
		p.bar = progressbar.NewOptions(all, progressbar.OptionSetWriter(p.w), progressbar.OptionSetWidth(30),
			progressbar.OptionSetDescription("measuring"), progressbar.OptionSetElapsedTime(true),
			progressbar.OptionClearOnFinish())
	}
	_ = p.bar.Set(done) // a bar that cannot be drawn does not stop the run
}

// Row clears the bar before the row is written.
func (p *progress) Row(row []bench.Result) {
	p.clear()
	p.table.Row(row)
}

func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

func (p *progress) close() {
	if p.bar != nil {
		_ = p.bar.Clear()
		_ = p.bar.Exit()
		p.bar = nil
	}
}
