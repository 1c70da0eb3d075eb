package debug

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"ibverbx"
)

// sickness is how bad the state of a row is.
type sickness int

// The states, from the best to the worst.
const (
	well sickness = iota
	congested
	lossy
	slow
	starved // somebody posts no receives
	lost
	failed
)

// mark marks a row unless it is marked with something worse.
func (r *PeerRow) mark(s sickness, format string, args ...any) {
	if s > r.sickness {
		r.sickness, r.Sick = s, fmt.Sprintf(format, args...)
	}
}

const (
	// slowFactor is how much longer than on the best rail fragments are under way on a slow one.
	slowFactor = 3
	// slowLeast is how many fragments a slow rail has under way at least: fewer may be chance.
	slowLeast = 3
)

// diagnose says what is wrong with a peer and its rails. notReady says that a NIC of the process
// has been told to wait for receives meanwhile.
func diagnose(row *PeerRow, was, now *Peer, since time.Duration, notReady bool) {
	if now.Err != "" {
		row.mark(failed, "failed: %s", line(now.Err))
		return
	}
	for i := range now.QP.Rails {
		if now.QP.Rails[i].Down {
			row.Rails[i].mark(lost, "lost: other rails carry its work")
			row.mark(lost, "%s is lost", row.Rails[i].Name)
		}
	}
	if was == nil || since <= 0 {
		return
	}
	diagnoseSpeed(row, was, now, since)
	switch e := now.Endpoint; {
	case now.QP.Banked > 0 && was.QP.Banked > 0:
		row.mark(
			starved,
			"this program posts no receives: %d notifications wait for one",
			now.QP.Banked,
		)
	case e != nil && was.Endpoint != nil && e.Pending > 0 && was.Endpoint.Pending > 0 && e.Credits == 0 &&
		e.SentBytes == was.Endpoint.SentBytes:
		row.mark(starved, "the peer takes no messages: %d wait for room there", e.Pending)
	case stalled(&was.QP, &now.QP) && notReady:
		row.mark(
			starved,
			"the peer posts no receives: nothing has completed for %v",
			since.Round(time.Millisecond),
		)
	case stalled(&was.QP, &now.QP):
		row.mark(
			starved,
			"nothing has completed for %v: the peer posts no receives, or does not answer",
			since.Round(time.Millisecond),
		)
	}
}

// blame marks the rails over NICs that have counted congestion or losses meanwhile.
func blame(row *PeerRow, now *Peer, nics []NICRow) {
	for i := range now.QP.Rails {
		for _, n := range nics {
			if n.Device != line(now.QP.Rails[i].Device) ||
				n.sickness != congested && n.sickness != lossy {
				continue
			}
			row.Rails[i].mark(n.sickness, "%s", n.Sick)
			row.mark(n.sickness, "%s: %s", row.Rails[i].Name, n.Sick)
		}
	}
}

// stalled reports whether requests are under way and none has made a step.
func stalled(was, now *ibverbx.Stats) bool {
	under := func(s *ibverbx.Stats) (outstanding int, fragments uint64) {
		for i := range s.Rails {
			outstanding += s.Rails[i].Outstanding
			fragments += s.Rails[i].Fragments + s.Rails[i].Notifications
		}
		return outstanding, fragments
	}
	before, posted := under(was)
	after, still := under(now)
	return before > 0 && before == after && posted == still &&
		was.SendsCompleted == now.SendsCompleted
}

// diagnoseSpeed marks rails on which fragments are under way much longer than on the best one. By
// Little's law the time is what is outstanding, divided by how much passes a second. Where rails
// share the work by ability, a slow one has little outstanding, and its measured speed tells.
func diagnoseSpeed(row *PeerRow, was, now *Peer, since time.Duration) {
	if len(was.QP.Rails) != len(now.QP.Rails) {
		return
	}
	times := make([]float64, len(now.QP.Rails))
	best, fastest := 0.0, uint64(0)
	for i := range now.QP.Rails {
		a, b := &was.QP.Rails[i], &now.QP.Rails[i]
		if b.Notify || b.Spare || b.Down || b.QPNum != a.QPNum {
			continue
		}
		fastest = max(fastest, b.Rate)
		passed := max(
			1,
			float64(b.Fragments)-float64(b.Outstanding)-float64(a.Fragments)+float64(a.Outstanding),
		)
		if b.Fragments == a.Fragments && a.Outstanding == 0 && b.Outstanding == 0 {
			continue // idle
		}
		times[i] = float64(a.Outstanding+b.Outstanding) / 2 / passed * since.Seconds()
		if best == 0 || times[i] < best {
			best = max(times[i], 1e-9)
		}
	}
	for i := range now.QP.Rails {
		a, b := &was.QP.Rails[i], &now.QP.Rails[i]
		switch {
		case b.Rate != 0 && b.Rate*slowFactor < fastest:
			row.Rails[i].mark(
				slow,
				"slow: %.3g GB/s, another carries %.3g",
				float64(b.Rate)/1e9,
				float64(fastest)/1e9,
			)
		case a.Outstanding+b.Outstanding >= 2*slowLeast && times[i] > slowFactor*best:
			row.Rails[i].mark(
				slow,
				"slow: fragments take %s, on the best rail %s",
				took(times[i]),
				took(best),
			)
		default:
			continue
		}
		row.mark(slow, "%s is slow", row.Rails[i].Name)
	}
}

// took writes a time in seconds.
func took(seconds float64) string {
	const least = time.Microsecond
	d := time.Duration(seconds * float64(time.Second)).Round(least)
	if d < least {
		return "less than " + least.String()
	}
	return d.String()
}

// compareNICs says by how much the counters of NICs have grown, and what that means.
func compareNICs(was, now *Process) (rows []NICRow) {
	for _, n := range now.NICs {
		at := slices.IndexFunc(
			was.NICs,
			func(o NIC) bool { return o.Device == n.Device && o.Port == n.Port },
		)
		if at < 0 {
			continue
		}
		row := NICRow{
			PID:    now.PID,
			Device: line(n.Device),
			Port:   n.Port,
			Grown:  map[string]uint64{},
		}
		var names []string
		for _, name := range slices.Sorted(maps.Keys(n.Repairs)) {
			if grown := n.Repairs[name]; grown > was.NICs[at].Repairs[name] {
				row.Grown[line(name)] = grown - was.NICs[at].Repairs[name]
				names = append(names, line(name))
			}
		}
		row.judge(names)
		rows = append(rows, row)
	}
	return rows
}

// judge says what the counters that have grown mean.
func (r *NICRow) judge(names []string) {
	has := func(words ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			return slices.ContainsFunc(
				words,
				func(w string) bool { return strings.Contains(name, w) },
			)
		})
	}
	switch {
	case has("rnr"):
		r.sickness, r.Sick = starved, "peers post no receives"
	case has("cnp", "ecn"):
		r.sickness, r.Sick = congested, "congestion, not a fault"
	case len(names) != 0:
		r.sickness, r.Sick = lossy, "packets are lost"
	}
}
