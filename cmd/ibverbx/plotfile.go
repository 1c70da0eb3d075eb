package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/cmd/ibverbx/internal/plot"
	"ibverbx/trace"
)

// outFile is the file of --plot or --trace.
type outFile struct {
	*os.File        // nil: it was not asked for
	flag     string // "plot"
}

// createFile creates a file before anything is measured, so that an unwritable one fails early.
// Without a name there is no file.
func createFile(flag, name string) (f outFile, err error) {
	f.flag = flag
	if name != "" {
		f.File, err = os.Create(name)
	}
	return f, f.error(err)
}

// close closes the file, and removes it if nothing was written.
func (f outFile) close() error {
	if f.File == nil {
		return nil
	}
	info, err := f.Stat()
	err = cmp.Or(err, f.Close())
	if err == nil && info.Size() == 0 && info.Mode().IsRegular() {
		err = os.Remove(f.Name())
	}
	return f.error(err)
}

// write writes a run to the file, if there is one: its last steps, or its time line if it has one,
// a line for each NIC, or with rails for each queue pair.
func (f outFile) write(r *bench.Report, in unit, rails bool) (err error) {
	switch {
	case f.File == nil:
	case f.flag == "trace" && len(r.Traces) > 0:
		err = trace.Write(f, r.Traces...)
	case f.flag == "plot":
		if page := plotPage(r, in, rails); len(page.Charts) > 0 {
			err = plot.Write(f, page)
		}
	}
	return f.error(err)
}

func (f outFile) error(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("--%s: %w", f.flag, err)
}

// plotPage returns the contents of the file: a chart for each size and scheme.
func plotPage(r *bench.Report, in unit, rails bool) *plot.Page {
	p, m := r.Params, r.Machine
	page := &plot.Page{
		Title: fmt.Sprintf("%s bandwidth over time", opName(p)),
		Lines: []string{
			fmt.Sprintf("%s of %s each end, %s; %s, %d cores, %s/%s, %s", count(p.NICs, "NIC"),
				count(p.QPs, "queue pair"), p.Provider, m.CPU, m.Cores, m.OS, m.Arch, m.Go),
			"ibverbx " + r.Version,
		},
	}
	for i := range r.Results {
		if res := &r.Results[i]; res.Timeline != nil {
			page.Charts = append(page.Charts, plotChart(res, in, rails))
		}
	}
	return page
}

// plotChart returns the time line of a cell.
func plotChart(r *bench.Result, in unit, rails bool) plot.Chart {
	t := r.Timeline
	chart := plot.Chart{Title: fmt.Sprintf("%s, %v", r.Scheme, r.Size), Unit: in.name, Marks: plotMarks(t)}
	for i := range t.Total {
		chart.Times = append(chart.Times, seconds(bench.Seconds(i)*t.Interval))
	}
	chart.Times = append(chart.Times, seconds(t.Length))
	chart.Lines = append(chart.Lines, plot.Line{Name: "total", Group: -1, Values: in.all(t.Total)})
	of := map[string]int{} // the first line of a NIC
	for i := range t.Rails {
		rail := &t.Rails[i]
		first, ok := of[rail.Device]
		if !ok {
			first, of[rail.Device] = len(chart.Lines), len(chart.Lines)
		}
		line := plot.Line{Name: rail.Device, Group: first - 1, Values: in.all(rail.Total)}
		switch {
		case rails:
			line.Name = fmt.Sprintf("%d %s", rail.Rail, rail.Device)
		case ok:
			for k, v := range line.Values {
				chart.Lines[first].Values[k] += v
			}
			continue
		}
		chart.Lines = append(chart.Lines, line)
	}
	return chart
}

// all converts bandwidths in GB/s to this unit.
func (u unit) all(gbPerSecond []float64) []float64 {
	list := make([]float64, len(gbPerSecond))
	for i, v := range gbPerSecond {
		list[i] = u.of(v)
	}
	return list
}

// plotMarks returns the marks of a time line. A fault's mark lasts until the fault ends. Rails that
// are lost, or back, one after another within two intervals share a mark.
func plotMarks(t *bench.Timeline) []plot.Mark {
	list := []plot.Mark{}
	var last bench.Mark
	for i, m := range t.Marks {
		if n, err := strconv.Atoi(m.Text); err == nil && m.Kind == last.Kind && m.At-last.At < 2*t.Interval {
			before, _ := strconv.Atoi(last.Text)
			last.Text = strconv.Itoa(before + n)
			what := list[len(list)-1].Text
			list[len(list)-1].Text = last.Text + what[strings.Index(what, " "):]
			continue
		}
		last = m
		mark := plot.Mark{At: seconds(m.At), Text: m.Text}
		switch m.Kind {
		case bench.FaultStruck:
			ends := func(end bench.Mark) bool { return end.Kind == bench.FaultEnded && end.Text == m.Text }
			if at := slices.IndexFunc(t.Marks[i:], ends); at >= 0 {
				mark.Until = seconds(t.Marks[i+at].At)
			}
		case bench.FaultEnded:
			kind, _, _ := strings.Cut(m.Text, "@")
			mark.Text = kind + " ends"
		case bench.RailsLost:
			mark.Text += " lost"
		case bench.RailsBack:
			mark.Text += " back"
		}
		list = append(list, mark)
	}
	return list
}

func seconds(s bench.Seconds) float64 { return time.Duration(s).Seconds() }
