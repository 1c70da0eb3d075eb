package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/layers"
	"ibverbx/internal/units"
)

// compareCmd compares the documents of two sides.
type compareCmd struct {
	Old           string   `arg:"" placeholder:"OLD" predictor:"file"`
	New           string   `arg:"" placeholder:"NEW" predictor:"file"`
	MaxRegression *float64 `placeholder:"PERCENT"`
	JSON          bool     `name:"json"`
}

// cellKey identifies a cell: two cells with the same key are compared.
type cellKey struct {
	Layer         layers.Layer `json:"layer"`
	Op            bench.Op     `json:"op"`
	Mode          bench.Mode   `json:"mode"`
	Bidirectional bool         `json:"bidirectional"`
	Size          units.Size   `json:"size_bytes"`
	Scheme        bench.Scheme `json:"scheme"`
	Rails         int          `json:"rails"`
}

// String describes the cell in words.
func (k *cellKey) String() string {
	return fmt.Sprintf("%s, %s, %v, %s", k.kind(), k.Mode, k.Size, k.column())
}

// kind names what moves the messages, for a heading.
func (k *cellKey) kind() string {
	kind := string(k.Op)
	if k.Layer != bench.QP {
		kind = fmt.Sprintf("%s: %s", k.Layer, k.Op)
	}
	if k.Bidirectional {
		kind += ", both directions"
	}
	return kind
}

func (k *cellKey) column() string { return fmt.Sprintf("%s, %s", k.Scheme, count(k.Rails, "QP")) }

// figure is the compared figure of a cell.
type figure struct {
	name  string  // in JSON
	title string  // in words, with its unit in the table
	scale float64 // of the value in JSON, to that unit
	less  bool    // less is better
}

func (k *cellKey) figure() figure {
	switch {
	case k.Mode.Series():
		return figure{"p50_ns", "median latency, µs", 1e-3, true}
	case k.Op.Atomic():
		return figure{"messages_per_second", "message rate, Mmsg/s", 1e-6, false}
	}
	return figure{"gb_per_second", "bandwidth, GB/s", 1, false}
}

// side is the samples of one side, by cell, the cells in their order, and how the last document was
// measured.
type side struct {
	cells   []cellKey
	samples map[cellKey][]float64
	how     string
}

// readSide reads a file of one or several documents, and pools their samples of a cell.
func readSide(path string) (*side, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &side{samples: map[cellKey][]float64{}}
	for d := json.NewDecoder(strings.NewReader(string(text))); ; {
		var doc bench.Report
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF) && len(s.cells) > 0:
			return s, nil
		case errors.Is(err, io.EOF):
			return nil, fmt.Errorf("%s: no cell was measured: want what \"ibverbx perf --json\" writes", path)
		case err != nil:
			return nil, fmt.Errorf("%s: %w: want what \"ibverbx perf --json\" writes", path, err)
		case doc.Tool != perfTool:
			return nil, fmt.Errorf("%s: a document of %q: want one of \"ibverbx perf --json\"", path,
				doc.Tool)
		}
		if m := doc.Machine; doc.Params != nil {
			t := perfTable{p: doc.Params, peer: doc.Peer}
			m.Clock = 0 // differs from run to run
			s.how = fmt.Sprintf("%s, %d cores; %s; %s", m.CPU, m.Cores, t.nics(), t.how(m))
		}
		for i := range doc.Results {
			s.add(&doc.Results[i], doc.Params != nil && doc.Params.Bidirectional)
		}
	}
}

// add adds the samples of a cell. One that failed has none.
func (s *side) add(r *bench.Result, bidirectional bool) {
	k := cellKey{r.Layer, r.Op, r.Mode, bidirectional, r.Size, r.Scheme, r.Rails}
	figures := []float64{r.MsgPerSecond}
	switch {
	case r.Failed || r.Messages == 0:
		return
	case r.Spread != nil:
		figures = r.Spread.Samples
	case r.Latency != nil:
		figures[0] = float64(r.Latency.P50)
	}
	if s.samples[k] == nil {
		s.cells = append(s.cells, k)
	}
	for _, v := range figures {
		if k.figure().name == "gb_per_second" {
			v *= float64(r.Size) / 1e9
		}
		s.samples[k] = append(s.samples[k], v)
	}
}

// compared is a cell of both sides.
type compared struct {
	cellKey
	Figure      string  `json:"figure"`
	Old         float64 `json:"old"`
	New         float64 `json:"new"`
	Delta       float64 `json:"delta_percent"`
	Significant bool    `json:"significant"` // at a level of 5 %
	P           float64 `json:"p"`           // the probability of such a difference by chance

	old, new   benchmath.Summary
	comparison benchmath.Comparison
}

func compareCell(k cellKey, before, after []float64) compared {
	a := benchmath.NewSample(before, &benchmath.DefaultThresholds)
	b := benchmath.NewSample(after, &benchmath.DefaultThresholds)
	c := compared{cellKey: k, Figure: k.figure().name, comparison: benchmath.AssumeNothing.Compare(a, b),
		old: benchmath.AssumeNothing.Summary(a, bench.Confidence),
		new: benchmath.AssumeNothing.Summary(b, bench.Confidence)}
	c.Old, c.New = c.old.Center, c.new.Center
	c.Delta = 100 * (c.New/c.Old - 1)
	// With ties and sides of unequal size, the exact test gives a P above 1 or one that depends on
	// the order of the sides.
	c.P = min(max(c.comparison.P, benchmath.AssumeNothing.Compare(b, a).P), 1)
	c.comparison.P = c.P
	c.Significant = c.P < c.comparison.Alpha && c.New != c.Old
	return c
}

// regression is by how many percent the cell is worse, if that is significant.
func (c *compared) regression() float64 {
	switch {
	case !c.Significant:
		return 0
	case c.figure().less:
		return c.Delta
	}
	return -c.Delta
}

// comparisons is the document of --json.
type comparisons struct {
	How     []string           `json:"how,omitempty"` // the sides were measured, if that differs
	Cells   []compared         `json:"cells"`
	Geomean map[string]float64 `json:"geomean_delta_percent"` // by figure
	OnlyOld []cellKey          `json:"only_old,omitempty"`
	OnlyNew []cellKey          `json:"only_new,omitempty"`
}

// compareSides pairs the cells of both sides.
func compareSides(before, after *side) *comparisons {
	all := &comparisons{Cells: []compared{}, Geomean: map[string]float64{}}
	logs, cells := map[string]float64{}, map[string]float64{}
	if before.how != after.how {
		all.How = []string{before.how, after.how}
	}
	for _, k := range before.cells {
		if after.samples[k] == nil {
			all.OnlyOld = append(all.OnlyOld, k)
			continue
		}
		c := compareCell(k, before.samples[k], after.samples[k])
		all.Cells = append(all.Cells, c)
		logs[c.Figure] += math.Log(c.New / c.Old)
		cells[c.Figure]++
		all.Geomean[c.Figure] = 100 * math.Expm1(logs[c.Figure]/cells[c.Figure])
	}
	for _, k := range after.cells {
		if before.samples[k] == nil {
			all.OnlyNew = append(all.OnlyNew, k)
		}
	}
	return all
}

// Run compares and prints the result.
func (f *compareCmd) Run(c *console) error {
	if m := f.MaxRegression; m != nil && !(*m >= 0 && *m <= math.MaxFloat64) {
		return usage("--max-regression %v: want a percentage from 0 on", *m)
	}
	before, err := readSide(f.Old)
	after, wrong := readSide(f.New)
	if err = cmp.Or(err, wrong); err != nil {
		return err
	}
	all := compareSides(before, after)
	if f.JSON {
		err = writeJSON(c.out, all)
	} else {
		err = f.show(c.out, all)
	}
	if len(all.Cells) == 0 {
		return errors.Join(err, fmt.Errorf("%s and %s have no cell in common", f.Old, f.New))
	}
	if f.MaxRegression == nil {
		return err
	}
	for i := range all.Cells {
		cell := &all.Cells[i]
		if by := cell.regression(); by > *f.MaxRegression {
			err = errors.Join(err, fmt.Errorf("%v: worse by %.1f %%, more than --max-regression %v",
				&cell.cellKey, by, *f.MaxRegression))
		}
	}
	for i := range all.OnlyOld {
		err = errors.Join(err, fmt.Errorf("%v: not in %s, or failed there", &all.OnlyOld[i], f.New))
	}
	return err
}

// show writes a table: a heading for each operation, a line for each cell.
func (f *compareCmd) show(w io.Writer, all *comparisons) error {
	const row = "%9v  %-14s %8s %5s %8s %5s %8s  %s\n"
	t, heading, figures := printer{w: w}, "", []figure{}
	for i, how := range all.How {
		t.wrap("", "%s: %s", [...]string{f.Old, f.New}[i], how)
	}
	for i := range all.Cells {
		c := &all.Cells[i]
		of := c.figure()
		if title := c.kind() + ": " + of.title; title != heading {
			heading = title
			t.printf("%s\n", title)
			t.printf(row, "size", "scheme", "old", "±", "new", "±", "delta", "chance")
		}
		t.printf(row, c.Size, c.column(), digits(c.Old*of.scale), strings.TrimSpace(c.old.PctRangeString()),
			digits(c.New*of.scale), strings.TrimSpace(c.new.PctRangeString()),
			c.comparison.FormatDelta(c.Old, c.New), c.comparison)
		if !slices.Contains(figures, of) {
			figures = append(figures, of)
		}
	}
	for _, of := range figures {
		t.printf("geometric mean, %s: %+.2f%%\n", of.title, all.Geomean[of.name])
	}
	for i := range all.OnlyOld {
		t.printf("only in %s: %v\n", f.Old, &all.OnlyOld[i])
	}
	for i := range all.OnlyNew {
		t.printf("only in %s: %v\n", f.New, &all.OnlyNew[i])
	}
	return t.err
}
