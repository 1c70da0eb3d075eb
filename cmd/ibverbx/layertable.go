package main

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"ibverbx/cmd/ibverbx/internal/bench"
)

// layerTable is what a table has besides where a layer above queue pairs is measured. The zero
// value adds nothing.
type layerTable struct {
	layered   bool
	kindWidth int    // of the column that says how the bytes were moved; 0 for none
	ratioTo   string // what the last column compares with; empty for no such column
	endpoints int
}

func newLayerTable(p *bench.Params, apart bool) (l layerTable) {
	if !p.Layered() {
		return l
	}
	l.layered, l.endpoints = true, p.Endpoints
	for _, k := range p.Shape().Kinds {
		l.kindWidth = max(l.kindWidth, len(k))
	}
	switch {
	case p.Endpoints > 1:
		l.ratioTo = "×1 ep"
	case !apart:
		l.ratioTo = "×QP"
	}
	return l
}

// name is what is measured.
func (l *layerTable) name(p *bench.Params) string {
	s := fmt.Sprintf("%s: %s", p.Layer, p.Shape().Name)
	return s
}

// over says how many endpoints there are.
func (l *layerTable) over() string {
	if l.endpoints > 1 {
		return fmt.Sprintf(", over %d endpoints of one worker each", l.endpoints)
	}
	return ""
}

// each says where messages are outstanding.
func (l *layerTable) each() string {
	if l.endpoints > 1 {
		return " on each endpoint"
	}
	return ""
}

// blank is as wide as s.
func blank(s string) string { return strings.Repeat(" ", utf8.RuneCountInString(s)) }

func (l *layerTable) kindColumn(s string) string {
	if l.kindWidth == 0 {
		return ""
	}
	return fmt.Sprintf("  %-*s", l.kindWidth, s)
}

func (l *layerTable) kindTitle() string { return l.kindColumn("kind") }

// kind is how the messages of a row were moved.
func (l *layerTable) kind(row []bench.Result) string {
	return l.kindColumn(fmt.Sprintf("%.10s", string(row[0].Kind)))
}

func (l *layerTable) ratioTitle() string {
	if l.ratioTo == "" {
		return ""
	}
	return fmt.Sprintf(" %6s", l.ratioTo)
}

// legend says what the column of ratios is.
func (l *layerTable) legend(p *bench.Params) string {
	what := "the median"
	switch {
	case l.ratioTo == "" || p.Mode == bench.Bandwidth && !p.Rated():
		return ""
	case p.Mode != bench.Latency:
		what = "the rate"
	}
	with := "one queue pair without the layer, in this run"
	if l.endpoints > 1 {
		with = "one of the endpoints alone, in this run"
	}
	return fmt.Sprintf("%s is %s to that of %s", l.ratioTo, what, with)
}

// ratio is the ratio of a cell's figure to what it is compared with.
func (l *layerTable) ratio(r *bench.Result) string {
	switch {
	case l.ratioTo == "":
		return ""
	case r.Comparison == nil:
		return fmt.Sprintf(" %6s", "")
	}
	return fmt.Sprintf(" %6.2f", r.Comparison.Ratio)
}

// rateHeadings names the columns of rates.
func (t *perfTable) rateHeadings() {
	kind := t.layer.kindTitle()
	first, second := fmt.Sprintf("%9s%s", "", blank(kind)), fmt.Sprintf("%9s%s", "size", kind)
	if t.besideQP() {
		first, second = first+fmt.Sprintf("  %8s", "one QP"), second+fmt.Sprintf("  %8s", "Mmsg/s")
	}
	for _, s := range t.p.Schemes {
		first += fmt.Sprintf("  %-*s", columnWidth, t.column(s))
		second += fmt.Sprintf("  %7s %5s %6s %6s", "Mmsg/s", "±", "ns/msg", t.layer.ratioTo)
	}
	t.printf("%s\n%s\n", first, strings.TrimRight(second, " "))
}

// besideQP says whether there is a column of what one queue pair does without the layer.
func (t *perfTable) besideQP() bool { return t.peer == nil && t.p.Endpoints == 1 }

// rates writes a row of rates.
func (t *perfTable) rates(row []bench.Result) {
	t.printf("%9v%s", row[0].Size, t.layer.kind(row))
	if t.besideQP() {
		below := ""
		if c := row[0].Comparison; c != nil {
			below = digits(c.MsgPerSecond / 1e6)
		}
		t.printf("  %8s", below)
	}
	line := ""
	for _, s := range t.p.Schemes {
		r := find(row, s)
		switch {
		case r == nil || r.Messages == 0 && !r.Failed:
			line += fmt.Sprintf("  %7s %5s %6s %6s", "-", "", "", "")
		case r.Failed:
			line += fmt.Sprintf("  %7s %5s %6s %6s", "failed", "", "", "")
		default:
			ratio := t.layer.ratio(r)
			if ratio == "" {
				ratio = fmt.Sprintf(" %6s", "")
			}
			line += fmt.Sprintf("  %7s %5s %6s%s", digits(r.MsgPerSecond/1e6), t.spread(r.Spread),
				cost(r.MsgPerSecond), ratio)
		}
	}
	t.printf("%s\n", strings.TrimRight(line, " "))
}

// cost is what a message costs in nanoseconds.
func cost(perSecond float64) string {
	switch ns := 1e9 / perSecond; {
	case ns < 1000:
		return fmt.Sprintf("%.3g", ns)
	case ns < 1e7:
		return fmt.Sprintf("%.0f", ns)
	default:
		return digits(ns)
	}
}

// transport writes what the transport under a layer has counted.
func (t *perfTable) transport(end string, s *bench.TransportCounts) {
	t.say("end "+end, fmt.Sprintf("active messages: %s sent, %s received; puts: %s, %s; gets: %s, %s; "+
		"atomics: %s; of the transport itself: %s; "+
		"met no resource: %s", commas(s.AMSent), commas(s.AMReceived), commas(s.Puts), bytesOf(s.PutBytes),
		commas(s.Gets), bytesOf(s.GetBytes),
		commas(s.Atomics), commas(s.Control), commas(s.NoResource)))
}

// commas writes a counter with a comma between thousands.
func commas(n uint64) string { return thousands(int(min(n, 1<<62))) }
