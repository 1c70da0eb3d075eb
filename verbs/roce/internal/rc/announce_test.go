package rc

import (
	"fmt"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/wire"
)

// Two ends that announce themselves find each other, whoever of them sends, and whatever is lost of
// the beginning; then nothing announces any more. An end that does not is never taken for one that
// does, and never sees a reserved bit but in what it is asked before its first answer has come.
func TestAnnouncement(t *testing.T) {
	for _, both := range []bool{true, false} {
		for _, lost := range []int{0, 1, 2, 5} {
			for _, senders := range []int{1, 2} {
				t.Run(fmt.Sprintf("both=%v/lost=%d/senders=%d", both, lost, senders), func(t *testing.T) {
					n := newNetwork(t, 1, shape{announce: [2]bool{true, both}, timeout: 14})
					left := 0
					n.drop = func(int, *wire.Header) bool { left++; return left <= lost }
					announced := [2]int{}
					n.left = func(from int, h *wire.Header) {
						if h.Reserved != 0 {
							announced[from]++
						}
					}
					round := func(size int) {
						for i := range senders {
							a, b := n.ends[i], n.ends[1-i]
							a.send(a.write(b, 0, size))
						}
						n.run()
						for i := range senders {
							n.ends[i].wantStatuses(verbs.StatusSuccess)
						}
					}
					round(1)
					round(1)
					for i, e := range n.ends {
						if e.q.ours != both {
							t.Errorf("end %d takes its peer for ours: %v", i, e.q.ours)
						}
						if e.q.announcing && i < senders && (both || i == 0) {
							t.Errorf("end %d announces itself still", i)
						}
					}
					if !both && announced[1] != 0 {
						t.Error("an end announces itself that should not")
					}
					round(maxTrack * 256)
					round(maxTrack * 256)
					announced = [2]int{}
					round(2 * 256)
					if announced != [2]int{} {
						t.Errorf("announced %v times after all", announced)
					}
				})
			}
		}
	}
}

// A peer that knows nothing of announcements ignores the reserved bits, and one that drops packets
// with such costs retries, and no connection.
func TestAnnouncementDropped(t *testing.T) {
	n := newNetwork(t, 1, shape{announce: [2]bool{true, false}})
	n.drop = func(_ int, h *wire.Header) bool { return h.Reserved != 0 }
	a, b := n.ends[0], n.ends[1]
	for range 3 {
		a.send(a.write(b, 0, 5000))
		n.run()
		a.wantStatuses(verbs.StatusSuccess)
	}
}

// An answer that reflects what it was sent is no announcement, nor is one to what was never asked.
func TestNoAnnouncement(t *testing.T) {
	answer := wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.Ack}
	request := wire.Header{Opcode: wire.WriteOnly}
	for _, x := range []struct {
		of       wire.Header
		psn      uint32 // from that of the first request on
		reserved uint8
	}{
		{answer, 1, wire.FromResponder},
		{answer, 0, wire.FromRequester},
		{answer, 0, 0x7f},
		{request, maxTrack, wire.FromRequester},
		{request, 1 << 23, wire.FromRequester},
		{request, 0, wire.FromResponder},
		{request, 1, 0x7f},
	} {
		n := newNetwork(t, 1, shape{announce: [2]bool{true, true}})
		a := n.ends[0]
		a.send(a.write(n.ends[1], 0, 1))
		first := n.leaving(0)[0]
		if first.Reserved != wire.FromRequester {
			t.Fatalf("the first request is %+v", first)
		}
		x.of.PSN, x.of.Reserved = (first.PSN+x.psn)&psnMask, x.reserved
		n.forge(0, x.of, nil)
		if a.q.ours {
			t.Errorf("%+v is taken for an announcement", x.of)
		}
	}
}

// An end that takes a foreign one for its own, by whatever mistake, carries everything out
// nevertheless. As a requester it is told of a gap, and not of what was kept; as a responder it
// tells what nobody reads, and its peer waits for its timeout.
func TestMistakenForOurs(t *testing.T) {
	for mistaken, what := range []string{"requester", "responder"} {
		t.Run(what, func(t *testing.T) {
			n := newNetwork(t, 1, shape{timeout: 10})
			a, b := n.ends[0], n.ends[1]
			n.ends[mistaken].q.PeerIsOurs()
			n.harm.lose = 0.02
			for range 20 {
				a.send(a.write(b, 0, 100*256))
				n.run()
				a.wantStatuses(verbs.StatusSuccess)
			}
			if q := a.q; q.ours && q.stats.Timeouts+q.stats.Probes > 10 {
				t.Errorf("every loss is waited for: %+v", q.stats)
			}
			t.Logf("%v, %+v", time.Duration(n.now), a.q.stats)
		})
	}
}
