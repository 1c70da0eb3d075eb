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
		{request, 1, wire.FromRequester},
		{request, psnMask, wire.FromRequester}, // one before
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

// A request announces when it is carried out, not before: a forger that knows no number reaches
// nothing with the bits of an announcement.
func TestAnnouncementIsCarriedOut(t *testing.T) {
	n := newNetwork(t, 1, shape{announce: [2]bool{true, true}})
	b := n.ends[1]
	h := wire.Header{Opcode: wire.SendOnly, Reserved: wire.FromRequester, PSN: b.q.resp.expected.psn()}
	steps := []struct {
		what  string
		psn   uint32
		ready bool
		ours  bool
	}{
		{"ahead", 1, false, false},
		{"without a receive", 0, false, false},
		{"carried out", 0, true, true},
	}
	for _, s := range steps {
		if s.ready {
			b.recv(verbs.RecvWR{ID: 1})
		}
		h := h
		h.PSN += s.psn
		if n.forge(1, h, nil); b.q.ours != s.ours {
			t.Errorf("%s: ours: %v", s.what, b.q.ours)
		}
		n.leaving(1)
	}

	n = newNetwork(t, 1, shape{announce: [2]bool{true, true}})
	b = n.ends[1]
	h.PSN, h.Opcode, h.RKey, h.Length = b.q.resp.expected.psn(), wire.ReadRequest, b.mr.RKey()^1, 8
	if n.forge(1, h, nil); b.q.ours {
		t.Error("a request that is refused announces")
	}
}

// An answer announces when it is the first to a request that has announced this end, and only then.
func TestAnnouncementAnswers(t *testing.T) {
	n := newNetwork(t, 1, shape{announce: [2]bool{true, true}})
	a, b := n.ends[0], n.ends[1]
	ack := func(s seq, reserved uint8) {
		n.forge(0, wire.Header{Opcode: wire.Acknowledge, Syndrome: wire.Ack, PSN: s.psn(),
			Reserved: reserved}, nil)
	}
	send := func() seq {
		a.send(a.write(b, 1, 8))
		n.leaving(0)
		return a.q.req.una
	}
	first := send()
	ack(first, 0) // as a NIC answers
	ack(first, wire.FromResponder)
	ack(send(), wire.FromResponder)
	if a.q.ours {
		t.Error("a peer that has answered as a NIC does is taken for an end of ours")
	}
}
