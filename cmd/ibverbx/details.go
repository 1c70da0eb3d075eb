package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
)

// details writes the events of a cell beyond its figures: faults, the work of failover, and the
// traffic of each rail.
func (t *perfTable) details(r *bench.Result) {
	t.printf("\n  %s, %v: ", r.Scheme, r.Size)
	if r.Failed {
		t.printf("failed after %d messages\n", r.Messages)
	} else {
		t.printf("%d messages, %s in %.3f s\n", r.Messages, bytesOf(r.Bytes), r.Seconds)
	}
	for _, f := range r.Faults {
		text := f.Fault.String() + ": " + f.What
		switch {
		case f.Struck && f.Fault.At > 0:
			text += fmt.Sprintf("; at %v of the column", f.Fault.At)
		case f.Struck:
			text += fmt.Sprintf("; after message %d of the column", f.Fault.Message)
		}
		t.say("fault", text)
	}
	t.failedOver(r)
	if r.Failed {
		label := "cause"
		for line := range strings.SplitSeq(r.Error, "\n") {
			t.say(label, line)
			label = ""
		}
	}
	if !t.verbose {
		return
	}
	if t.repaired(&r.Repairs); t.p.Layered() {
		return
	}
	t.rails("a", &r.Stats.A.Stats)
	if t.p.Bidirectional || len(r.Stats.B.Rails) > 0 && r.Stats.B.Sends > 0 {
		t.rails("b", &r.Stats.B.Stats)
	}
}

// failedOver writes which queue pairs each end has lost, and how much work others have repeated.
func (t *perfTable) failedOver(r *bench.Result) {
	label := "failover"
	for i, of := range []*bench.QPStats{&r.Stats.A, &r.Stats.B} {
		var down []string
		for k := range of.Rails {
			if rail := &of.Rails[k]; rail.Down {
				down = append(down, rail.Device+": "+nameOf(k, rail))
			}
		}
		lost, back := int(of.RailsLost), int(of.RailsBack)
		if len(down)+lost+back == 0 {
			continue
		}
		text := fmt.Sprintf("end %c lost %s, %d came back, and %s posted again on others", 'a'+i,
			count(lost, "queue pair"), back, count(int(of.Reposted), "work request"))
		if len(down) > 0 {
			text += "; out of service: " + strings.Join(down, "; ")
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

// repaired writes the NICs' counters of repairs and congestion, if they are not zero.
func (t *perfTable) repaired(of *bench.EndRepairs) {
	for i, r := range []bench.Repairs{of.A, of.B} {
		var list []string
		for _, name := range slices.Sorted(maps.Keys(r)) {
			list = append(list, fmt.Sprintf("%s %d", name, r[name]))
		}
		if len(list) > 0 {
			t.say("counted", fmt.Sprintf("end %c: %s", 'a'+i, strings.Join(list, ", ")))
		}
	}
}

// nameOf returns the name of rail k.
func nameOf(k int, r *ibverbx.RailStats) string {
	switch {
	case r.Notify:
		return "notify"
	case r.Spare:
		return "spare"
	}
	return strconv.Itoa(k)
}

// rails writes what each queue pair of an end carried.
func (t *perfTable) rails(end string, s *ibverbx.Stats) {
	total := uint64(1)
	for i := range s.Rails {
		total += s.Rails[i].Bytes
	}
	t.columns(tabwriter.AlignRight, func(w *printer) {
		w.printf("end %s: rail\tdevice\tqp\tbytes\tshare\tfragments\tnotified\terrors\trefused\t\n", end)
		for i := range s.Rails {
			r := &s.Rails[i]
			name := nameOf(i, r)
			if r.Down {
				name += ", down"
			}
			w.printf("%s\t%s\t%d\t%s\t%.0f%%\t%d\t%d\t%d\t%d\t\n", name, r.Device, r.QPNum, bytesOf(r.Bytes),
				100*float64(r.Bytes)/float64(total), r.Fragments, r.Notifications, r.Errors, r.Refused)
		}
	})
	if s.Markers > 0 || s.BankedTotal > 0 || s.StaleEvents > 0 {
		t.printf("    markers %d, notifications banked %d, stale completions %d\n", s.Markers, s.BankedTotal,
			s.StaleEvents)
	}
}

// say writes a sentence behind its label.
func (t *perfTable) say(label, text string) {
	t.wrap(fmt.Sprintf("    %-10s", label), "%s", harmless(text))
}
