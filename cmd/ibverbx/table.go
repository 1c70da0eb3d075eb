package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
	"ibverbx/internal/units"
)

// perfTable writes a run for people: a header that describes the measurement, a row for each size
// as it is measured, and remarks below.
type perfTable struct {
	printer
	p       *bench.Params
	peer    *bench.Peer // nil when both ends are in this process
	verbose bool
	gap     bool // details stand below the last row: the next one is set off
	noisy   bool // a figure was marked as noise
	again   bool // another table stands above
	unit    unit // of bandwidths
}

func newPerfTable(w io.Writer, verbose bool) *perfTable {
	return &perfTable{printer: printer{w: w}, verbose: verbose, unit: unitOf(false)}
}

// Start writes everything above the rows.
func (t *perfTable) Start(p *bench.Params, peer *bench.Peer) {
	t.p, t.peer = p, peer
	if t.again {
		t.printf("\n")
	}
	t.header()
}

// opName names the measured operation.
func opName(p *bench.Params) string {
	if p.Layered() {
		return fmt.Sprintf("%s: %s", p.Layer, p.Shape().Name)
	}
	return p.Shape().Name
}

// header describes what is measured, where and how, and names the columns.
func (t *perfTable) header() {
	p := t.p
	what := "bandwidth"
	switch {
	case p.Mode.Series():
		what = "latency"
	case p.Op.Atomic():
		what = "rate"
	}
	if p.Bidirectional {
		what += ", both directions at once"
	}
	m, whose := bench.ThisMachine(), ""
	if t.peer == nil {
		t.wrap("", "%s %s between two ends in this process, each with %s", opName(p), what, t.nics())
	} else {
		t.wrap("", "%s %s, %s, each with %s", opName(p), what, t.between(), t.nics())
		t.wrap("", "end a %s", t.side("a"))
		t.wrap("", "end b %s", t.side("b"))
		whose = "figures taken by end a: "
		if t.peer.End == "a" {
			m = t.peer.Machine
		}
	}
	t.wrap("", "%s%s, %d cores, %s/%s, %s", whose, m.CPU, m.Cores, m.OS, m.Arch, m.Go)
	verified := "every byte verified"
	if !p.Verify {
		verified = "NOT verified"
	}
	t.wrap("", "%s; %s", verified, t.how(m))
	if p.Samples > 1 {
		t.wrap("", "median of %s, taken in turn; ±: 95 %% confidence interval", count(p.Samples, "sample"))
	}
	t.printf("\n")
	if p.Mode.Series() {
		t.printf("%9s  %-6s %9s %8s %9s %5s %8s %8s %8s\n", "size", "scheme", "messages", "min µs",
			"median µs", "±", "p99 µs", "p99.9 µs", "max µs")
		return
	}
	t.headings()
}

// layout returns the format and the names of a scheme's figures: three schemes fit 80 columns.
// Atomics have no bandwidth.
func (t *perfTable) layout() (format string, names []any) {
	if t.p.Op.Atomic() {
		return "  %15s %5s", []any{"Mmsg/s", "±"}
	}
	return "  %8s %5s %6s", []any{t.unit.name, "±", "Mmsg/s"}
}

// headings names the columns.
func (t *perfTable) headings() {
	first, second := fmt.Sprintf("%9s", ""), fmt.Sprintf("%9s", "size")
	format, names := t.layout()
	for _, s := range t.p.Schemes {
		figures, name := fmt.Sprintf(format, names...), " "+t.name(s)+" "
		side := max(utf8.RuneCountInString(figures)-2-utf8.RuneCountInString(name), 0)
		first += "  " + strings.Repeat("─", side/2) + name + strings.Repeat("─", side-side/2)
		second += figures
	}
	t.printf("%s\n%s\n", first, second)
}

// between describes where the ends are.
func (t *perfTable) between() string {
	if t.peer.End == "b" {
		return "from here to " + t.peer.Address
	}
	return "from " + t.peer.Address + " to here"
}

// side names the NICs of an end.
func (t *perfTable) side(end string) string {
	if t.peer.End == end {
		return "(there): " + strings.Join(t.peer.NICs, ", ")
	}
	return "(here): " + strings.Join(t.peer.Own, ", ")
}

// name returns the title of a scheme's column.
func (t *perfTable) name(s bench.Scheme) string {
	if s == bench.Single {
		return "single, 1 QP"
	}
	return string(s) + ", " + count(t.p.NICs*t.p.QPs, "QP")
}

func (t *perfTable) nics() string {
	kind := t.p.Provider + " NIC"
	if t.peer != nil && (t.p.Provider != roceNICs || t.peer.Provider != roceNICs) {
		kind = "NIC"
	}
	s := count(t.p.NICs, kind) + " of " + count(t.p.QPs, "queue pair")
	var simulated []string
	for _, speed := range t.p.Speeds {
		simulated = append(simulated, speed.String())
	}
	for _, latency := range t.p.Latencies {
		simulated = append(simulated, latency.String()+" away")
	}
	if len(simulated) > 0 {
		s += " (" + strings.Join(simulated, "; ") + ")"
	}
	return s
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// how describes the conditions of the figures.
func (t *perfTable) how(m bench.Machine) string {
	p, series := t.p, t.p.Mode.Series()
	var said []string
	for _, of := range []struct {
		holds bool
		words string
	}{
		{p.Answered(), "half of a ping-pong, one message at a time"},
		{series && !p.Answered(), "one message at a time, from its post to its completion"},
		{series && m.Clock > 0, fmt.Sprintf("a reading of the clock (%v) included", time.Duration(m.Clock))},
		{!series, fmt.Sprintf("up to %s outstanding", count(p.TxDepth, "message"))},
		{t.peer != nil && p.Bidirectional, "timed by the end that takes longer"},
		{!series && !p.Op.Atomic(), fmt.Sprintf("fragments of %v, %v buffer, reused", p.Fragment,
			slices.Max(append(units.Range{p.Memory}, p.Sizes...)))}, // which holds the largest message
		{p.Balance != ibverbx.RoundRobin, fmt.Sprintf("fragments by %v", p.Balance)},
		{p.Failover, "failover"},
		{p.Failback > 0, fmt.Sprintf("back after %v", p.Failback)},
		{p.Inline > 0, fmt.Sprintf("inline up to %v", units.Size(p.Inline))},
		{p.Wait == bench.Events, "sleeping until events"},
		{p.Wait == bench.Poll || series && p.Wait != bench.Events, "polling"},
	} {
		if of.holds {
			said = append(said, of.words)
		}
	}
	return strings.Join(said, ", ")
}

// Row writes the row of a size.
func (t *perfTable) Row(row []bench.Result) {
	if t.gap {
		t.printf("\n")
		t.gap = false
	}
	if t.p.Mode.Series() {
		t.latencies(row)
	} else {
		t.bandwidths(row)
	}
	for i := range row {
		if t.verbose || row[i].Failed || len(row[i].Faults) > 0 {
			t.details(&row[i])
			t.gap = true
		}
	}
}

func (t *perfTable) bandwidths(row []bench.Result) {
	line := fmt.Sprintf("%9v", row[0].Size)
	format, names := t.layout()
	for _, s := range t.p.Schemes {
		line += fmt.Sprintf(format, t.figures(find(row, s))[:len(names)]...)
	}
	t.printf("%s\n", line)
}

// figures returns the printed values of a scheme.
func (t *perfTable) figures(r *bench.Result) []any {
	switch {
	case r != nil && r.Failed:
		return []any{"failed", "", ""}
	case r == nil || r.Messages == 0: // nothing was measured before the end
		return []any{"-", "", ""}
	case t.p.Op.Atomic():
		return []any{digits(r.MsgPerSecond / 1e6), t.spread(r.Spread)}
	}
	return []any{digits(t.unit.of(r.GBPerSecond)), t.spread(r.Spread),
		fmt.Sprintf("%.3f", r.MsgPerSecond/1e6)}
}

// digits writes a figure with three significant digits: the figures of NICs differ by a factor of
// up to a hundred thousand.
func digits(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }

// spread formats the possible error of a figure, in percent, and marks noise.
func (t *perfTable) spread(s *bench.Spread) string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("%.0f%%", s.Percent)
	if s.Percent > 99 {
		text = ">99%"
	}
	if s.Noise {
		t.noisy = true
		text += "~"
	}
	return text
}

func find(row []bench.Result, s bench.Scheme) *bench.Result {
	for i := range row {
		if row[i].Scheme == s {
			return &row[i]
		}
	}
	return nil
}

func (t *perfTable) latencies(row []bench.Result) {
	for i := range row {
		r, size := &row[i], row[i].Size.String()
		if i > 0 {
			size = ""
		}
		l := r.Latency
		if l == nil || l.Samples == 0 {
			t.printf("%9s  %-6s %9s\n", size, r.Scheme, "failed")
			continue
		}
		t.printf("%9s  %-6s %9d %8s %9s %5s %8s %8s %8s\n", size, r.Scheme, l.Samples, micros(l.Min),
			micros(l.P50), t.spread(r.Spread), micros(l.P99), micros(l.P999), micros(l.Max))
	}
}

// footer reports how the run ended.
func (t *perfTable) footer(r *bench.Report) {
	if t.p == nil {
		return // the NICs could not be opened
	}
	t.printf("\n")
	var all bench.EndRepairs
	for i := range r.Results {
		all.Add(r.Results[i].Repairs)
	}
	t.repaired(&all)
	if r.Interrupted {
		t.printf("Interrupted: the rest was not measured.\n")
	}
	switch {
	case !t.p.Verify || r.Verified == 0 || t.peer != nil && !r.OK:
	case r.OK:
		t.printf("%d messages verified byte for byte, in order and complete; ", r.Verified)
	default:
		t.printf("%d messages verified byte for byte before the end; ", r.Verified)
	}
	t.printf("%.1f s in all\n", r.Seconds)
	if t.noisy {
		t.wrap("", "~ noise: samples lie more than 20 %% apart; measure longer (--duration, --samples), or "+
			"on a quieter machine")
	}
}

// traced reports where the trace is, and how much of the run it has.
func (t *perfTable) traced(file string, r *bench.Report) {
	var kept, lost uint64
	for _, e := range r.Traces {
		kept, lost = kept+uint64(len(e.Trace.Events)), lost+e.Trace.Lost
	}
	if len(r.Traces) > 0 { // the connecting end of two has it
		t.wrap("", "%s has the last %d of %d steps; recording them takes time, so the figures are lower "+
			"than without --trace", file, kept, kept+lost)
	}
}

// micros formats a time in µs.
func micros(ns int64) string { return fmt.Sprintf("%.2f", float64(ns)/1e3) }

// bytesOf formats a number of bytes for people.
func bytesOf(n uint64) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return units.Size(n).String()
}

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

// wrap writes a sentence in lines of at most 80 columns, behind a label; further lines are indented
// by its width.
func (p *printer) wrap(label, format string, args ...any) {
	line, indent := label, strings.Repeat(" ", len(label))
	for i, word := range strings.Fields(fmt.Sprintf(format, args...)) {
		switch {
		case i == 0:
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > 80:
			p.printf("%s\n", line)
			line = indent
		default:
			line += " "
		}
		line += word
	}
	p.printf("%s\n", line)
}

// columns aligns the cells that fill prints, which end in tabs.
func (p *printer) columns(flags uint, fill func(*printer)) {
	w := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', flags)
	cells := &printer{w: w}
	fill(cells)
	p.err = errors.Join(p.err, cells.err, w.Flush())
}

// unit is the displayed unit of bandwidths.
type unit struct {
	name  string  // above a column
	scale float64 // of bytes a second
}

// unitOf returns the unit that --report-gbits chooses.
func unitOf(gbits bool) unit {
	if gbits {
		return unit{"Gbit/s", 8e-9}
	}
	return unit{"GB/s", 1e-9}
}

// of converts a bandwidth in GB/s to this unit.
func (u unit) of(gbPerSecond float64) float64 { return gbPerSecond * 1e9 * u.scale }
