package vqp_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// crossedTwice are two NICs an end, of which each is joined to its neighbour by number: what two
// wires between four NICs of the kernel are.
var crossedTwice = []shape{
	{"spray/2x2qp", []int{0, 2}, []int{1, 3}, 2, ibverbx.Spray},
	{"dqplb/2x2qp", []int{0, 2}, []int{1, 3}, 2, ibverbx.DQPLB},
}

// Links go down and come back during traffic in both directions, at either end, of either NIC, one
// at a time. No request fails, all bytes are in place, and what was lost comes back.
func TestFailover(t *testing.T) {
	for i := range crossedTwice {
		s := &crossedTwice[i]
		t.Run(s.name, func(t *testing.T) {
			if *devicesFlag == "" {
				t.Parallel() // mostly it waits; real links are those of all tests
			}
			rig := newRig(t, s)
			if rig.kind.setLink == nil {
				t.Skip("links cannot be taken down")
			}
			// A queue pair that stands in may have no receive for a moment.
			start := time.Now()
			a, b := rig.connectHasty(s.config(ibverbx.Config{FragmentSize: fragment, Failover: true,
				Failback: 50 * time.Millisecond, Conn: ibverbx.ConnConfig{RNRRetry: 7},
				Events: ibverbx.Events{Rail: func(e ibverbx.RailEvent) {
					t.Logf("%v: %v", time.Since(start).Round(time.Millisecond), e)
				}}}))
			busyUntil(a, b, "traffic", underWay(a, b))
			for round, e := range []*end{a, b, b, a} {
				nic := e.CQ().Devices()[round%2]
				loseLink(t, a, b, nic)
			}
			for _, e := range []*end{a, b} {
				e.earlierFailures = e.failures() // rails count what each has met
			}
			settle(a, b)
		})
	}
}

// loseLink takes a NIC's link down during traffic, until that flows as before, and up again, until
// all queue pairs are back.
func loseLink(t *testing.T, a, b *end, nic verbs.Device) {
	t.Helper()
	rig := a.host.rig
	rig.kind.setLink(t, nic, false)
	cut, down := time.Now(), true
	t.Cleanup(func() {
		if down {
			rig.kind.setLink(t, nic, true)
		}
	})
	gap := longestGap{since: cut, reported: a.sends.reported + b.sends.reported}
	flows := underWay(a, b)
	busyUntil(a, b, "the loss, and traffic", func() bool {
		gap.look(a, b)
		if lostRails(a) == 0 || lostRails(b) == 0 {
			flows = underWay(a, b)
			return false
		}
		return flows()
	})
	lost := time.Since(cut)
	rig.kind.setLink(t, nic, true)
	up := time.Now()
	down = false
	busyUntil(a, b, "all queue pairs", func() bool { return lostRails(a)+lostRails(b) == 0 })
	t.Logf("%s: without its link for %v, no request ended for %v at most; all queue pairs were back %v "+
		"after it was", nic.Name(), lost.Round(time.Millisecond), gap.longest.Round(time.Millisecond),
		time.Since(up).Round(time.Millisecond))
}

// lostRails counts those of an end that are out of service.
func lostRails(e *end) (n int) {
	for _, r := range e.Stats().Rails {
		if r.Down {
			n++
		}
	}
	return n
}

// longestGap is the longest time in which no request of two ends was reported.
type longestGap struct {
	since    time.Time
	reported int
	longest  time.Duration
}

func (g *longestGap) look(a, b *end) {
	n := a.sends.reported + b.sends.reported
	now := time.Now()
	g.longest = max(g.longest, now.Sub(g.since))
	if n != g.reported {
		g.reported, g.since = n, now
	}
}
