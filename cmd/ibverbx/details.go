package main

import (
	"text/tabwriter"

	"ibverbx"
	"ibverbx/cmd/ibverbx/internal/bench"
)

// details writes what happened in a cell beyond its figures:
// faults, failures, and what each rail carried.
func (t *perfTable) details(r *bench.Result) {
	t.printf("\n  %s, %v: ", r.Scheme, r.Size)
	if r.Failed {
		t.printf("failed after %d messages\n", r.Messages)
	} else {
		t.printf("%d messages, %s in %.3f s\n", r.Messages, bytesOf(r.Bytes), r.Seconds)
	}
	for _, f := range r.Faults {
		t.fault(f)
	}
	t.failedOver(r)
	if r.Timeline != nil {
		t.timeline(r.Timeline)
	}
	if r.Failed {
		t.causes(r)
	}
	if r.Timeline != nil && !t.verbose {
		return // the time line has the rails
	}
	if s := r.Transport; s != nil {
		t.transport("a", &s.A)
		t.transport("b", &s.B)
	}
	if t.layer.layered {
		return
	}
	t.rails("a", &r.Stats.A.Stats)
	if t.p.Bidirectional || len(r.Stats.B.Rails) > 0 && r.Stats.B.Sends > 0 {
		t.rails("b", &r.Stats.B.Stats)
	}
}

// rails writes what each queue pair of an end carried.
func (t *perfTable) rails(end string, s *ibverbx.Stats) {
	total := uint64(0)
	for i := range s.Rails {
		total += s.Rails[i].Bytes
	}
	t.columns(tabwriter.AlignRight, func(w *printer) {
		w.printf("    end %s\trail\tdevice\tqp\tbytes\tshare\tfragments\tnotifications\terrors\trefused\t\n",
			end)
		for i := range s.Rails {
			r := &s.Rails[i]
			name := nameOf(i, r)
			if r.Down {
				name += ", down"
			}
			share := 0.0
			if total > 0 {
				share = 100 * float64(r.Bytes) / float64(total)
			}
			w.printf("\t%s\t%s\t%d\t%s\t%.1f%%\t%d\t%d\t%d\t%d\t\n", name, r.Device, r.QPNum,
				bytesOf(r.Bytes), share,
				r.Fragments, r.Notifications, r.Errors, r.Refused)
		}
	})
	if s.Markers > 0 || s.BankedTotal > 0 || s.StaleEvents > 0 {
		t.printf("    markers %d, notifications banked %d, stale completions %d\n", s.Markers, s.BankedTotal,
			s.StaleEvents)
	}
}
