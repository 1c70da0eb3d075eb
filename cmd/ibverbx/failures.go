package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
)

const (
	// defaultWidth is what sentences are wrapped to where there is no terminal: a little wider than
	// the table.
	defaultWidth = 110
	leastWidth   = 60
	// labelWidth is how far sentences are indented behind their label.
	labelWidth = 18
)

// fault says what became of a fault.
func (t *perfTable) fault(f bench.FaultReport) {
	text := f.What
	switch {
	case f.Struck && f.Fault.At > 0:
		text += fmt.Sprintf("; at %v of the column", f.Fault.At)
	case f.Struck:
		text += fmt.Sprintf("; after message %d of the column", f.Fault.Message)
	}
	t.say("fault", f.Fault.String()+": "+text)
}

// causes says why a cell could not continue.
func (t *perfTable) causes(r *bench.Result) {
	label := "cause"
	for line := range strings.SplitSeq(r.Error, "\n") {
		t.say(label, line)
		label = ""
	}
}

// say writes a sentence behind its label, wrapped and indented.
func (t *perfTable) say(label, text string) {
	for i, line := range wrap(text, max(t.width, leastWidth)-4-labelWidth) {
		if i > 0 {
			label = ""
		}
		t.printf("    %-*s%s\n", labelWidth, label, line)
	}
}

// wrap breaks text at spaces into lines of at most width runes, where words allow. Control
// characters of external text are escaped.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		word = harmless(word)
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// thousands writes a number with a comma between thousands.
func thousands(n int) string {
	s := strconv.Itoa(n)
	for at := len(s) - 3; at > 0 && s[at-1] != '-'; at -= 3 {
		s = s[:at] + "," + s[at:]
	}
	return s
}

// failedOver says which queue pairs each end has lost without a request failing, and how much work
// others have repeated.
func (t *perfTable) failedOver(r *bench.Result) {
	label := "failover"
	for i, of := range []*bench.QPStats{&r.Stats.A, &r.Stats.B} {
		n, where := downRails(of)
		lost, back := int(of.RailsLost), int(of.RailsBack)
		if n+lost+back == 0 {
			continue
		}
		text := fmt.Sprintf("end %c lost %s, %d came back, and %s posted again on others", 'a'+i,
			count(lost, "queue pair"), back, count(int(of.Reposted), "work request"))
		switch {
		case lost+back == 0:
			text = fmt.Sprintf("end %c is without queue pairs that it lost before: %s", 'a'+i, where)
		case n > 0:
			text += "; out of service: " + where
		}
		t.say(label, text)
		label = ""
	}
	for i := range r.Losses {
		l := &r.Losses[i]
		t.say("", fmt.Sprintf("%s lost by end %s, %d ×: %s", l.Device, l.End, l.Times, l.Cause))
	}
	if label == "" && !r.Failed {
		t.say("", "no request failed")
	}
}

// downRails says how many rails of an end are out of service, and which, by their NIC.
func downRails(s *bench.QPStats) (n int, where string) {
	var nics []string
	rails := map[string][]string{}
	for k := range s.Rails {
		rail := &s.Rails[k]
		if !rail.Down {
			continue
		}
		n++
		if rails[rail.Device] == nil {
			nics = append(nics, rail.Device)
		}
		rails[rail.Device] = append(rails[rail.Device], nameOf(k, rail))
	}
	for i, nic := range nics {
		nics[i] = nic + ": " + strings.Join(rails[nic], ", ")
	}
	return n, strings.Join(nics, "; ")
}

// nameOf is what rail k is called.
func nameOf(k int, r *ibverbx.RailStats) string {
	switch {
	case r.Notify:
		return "notify"
	case r.Spare:
		return "spare"
	}
	return strconv.Itoa(k)
}
