package debug

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
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
	hung // its owner does not poll
	failed
)

// mark marks a row unless it is marked with something worse.
func (r *PeerRow) mark(s sickness, format string, args ...any) {
	if s > r.sickness {
		r.sickness, r.Sick = s, fmt.Sprintf(format, args...)
	}
}

const (
	// slowFactor is how much longer than on the best rail the queue of a slow one always is.
	slowFactor = 3
	// slowLeast is how many fragments stand there at least: fewer may be chance.
	slowLeast = 3
	// hungAfter is how old the state of a virtual CQ with work is when its owner hangs.
	hungAfter = 5 * time.Second
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
	case stalled(was, now) && notReady:
		row.mark(
			starved,
			"the peer posts no receives: nothing has completed for %v",
			since.Round(time.Millisecond),
		)
	case stalled(was, now):
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
func stalled(was, now *Peer) bool {
	type state struct {
		outstanding                                int
		fragments, completed, sent, received, last uint64
	}
	of := func(p *Peer) (s state) {
		s.completed = p.QP.SendsCompleted
		for i := range p.QP.Rails {
			s.outstanding += p.QP.Rails[i].Outstanding
			s.fragments += p.QP.Rails[i].Fragments + p.QP.Rails[i].Notifications
			s.last += p.QP.Rails[i].Bytes
		}
		if e := p.Endpoint; e != nil {
			s.outstanding = max(s.outstanding, e.Outstanding)
			s.sent, s.received = e.SentBytes, e.ReceivedBytes
		}
		return s
	}
	before := of(was)
	return before.outstanding > 0 && before == of(now)
}

// diagnoseSpeed marks slow rails. Where rails take turns, work stands before a slow one, and the
// others wait for it: its queue was always longer than theirs ever was. Where they share the work
// by ability, a slow one has little outstanding, and its measured speed tells.
func diagnoseSpeed(row *PeerRow, was, now *Peer, of func(rail int) queue) {
	if was == nil || len(was.QP.Rails) != len(now.QP.Rails) {
		return
	}
	shortest, fastest, count := 0, uint64(0), 0
	works := func(i int) bool {
		a, b := &was.QP.Rails[i], &now.QP.Rails[i]
		return !b.Notify && !b.Spare && !b.Down && b.QPNum == a.QPNum
	}
	for i := range now.QP.Rails {
		if !works(i) {
			continue
		}
		fastest = max(fastest, now.QP.Rails[i].Rate)
		if most := of(i).most; count == 0 || most < shortest {
			shortest = most
		}
		count++
	}
	for i := range now.QP.Rails {
		rate, stands := now.QP.Rails[i].Rate, of(i).least
		switch {
		case !works(i) || count < 2:
			continue
		case rate != 0 && rate*slowFactor < fastest:
			row.Rails[i].mark(slow, "slow: %.3g GB/s, another carries %.3g", float64(rate)/1e9,
				float64(fastest)/1e9)
		case stands >= slowLeast && stands >= slowFactor*shortest:
			row.Rails[i].mark(slow, "slow: %d fragments stand there, at most %d at the best rail", stands,
				shortest)
		default:
			continue
		}
		row.mark(slow, "%s is slow", row.Rails[i].Name)
	}
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
			Target: now.target,
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
