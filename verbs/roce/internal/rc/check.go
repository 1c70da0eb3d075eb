package rc

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Check returns the first violated invariant of the QP, or nil. It is for tests.
func (q *QP) Check() error {
	r := &q.req
	if err := q.resp.ahead.check(q.resp.expected); err != nil {
		return err
	}
	if q.resp.gapDue && q.resp.ahead.n == 0 && q.resp.nak == 0 {
		return errors.New("a gap is to be told of, and nothing is kept")
	}
	if q.State != verbs.StateRTS && q.State != verbs.StateSQD {
		return nil
	}
	if r.una > r.next || r.next > r.end || int(r.next-r.una) > len(r.track) {
		return fmt.Errorf("una %d next %d end %d, %d tracked", r.una, r.next, r.end, len(r.track))
	}
	var inFlight, missing int
	for s := r.una; s < r.next; s++ {
		switch r.at(s).state {
		case flying:
			inFlight++
		case lost:
			missing++
			if s < r.resend {
				return fmt.Errorf("%d is lost, before resend %d", s-r.una, r.resend-r.una)
			}
		}
	}
	if inFlight != r.flying || missing != r.lost {
		return fmt.Errorf("%d flying, counted %d; %d lost, counted %d", r.flying, inFlight, r.lost, missing)
	}
	for _, p := range r.reads[:r.nreads] {
		left, lostOf := 0, 0
		for s := p.first; s < p.end; s++ {
			if s >= r.una && r.at(s).state != done {
				left++
				if r.at(s).state == lost {
					lostOf++
				}
				if s < p.low {
					return fmt.Errorf("%d of a read is missing, before low %d", s-p.first, p.low-p.first)
				}
			}
		}
		if left != p.left {
			return fmt.Errorf("a read of %d packets misses %d, counted %d", p.end-p.first, left, p.left)
		}
		if p.kept && lostOf != 0 {
			return fmt.Errorf("%d packets are lost of a read that the responder has", lostOf)
		}
	}
	if a := &q.resp.answers; a.fresh > a.limit {
		return fmt.Errorf("%d answers, at most %d", a.fresh, a.limit)
	}
	return q.CheckInvariants()
}

func (r *reorderBuffer) check(expected seq) error {
	n := 0
	for i, p := range r.slots {
		if p == nil {
			continue
		}
		n++
		if p.s <= expected || p.s >= expected+maxTrack || p.s > r.highest || int(p.s)&(len(r.slots)-1) != i {
			return fmt.Errorf("%d is kept in slot %d of %d, up to %d, where %d is expected", p.s, i,
				len(r.slots), r.highest, expected)
		}
	}
	switch {
	case n != r.n || n != 0 && r.find(r.highest) == nil || n == 0 && r.highest != 0:
		return fmt.Errorf("%d packets are kept, counted %d, up to %d", n, r.n, r.highest)
	case n == 0 && len(r.slots) > smallRing || r.pool != nil && len(r.pool.free) > poolPackets:
		return fmt.Errorf("%d slots for nothing, and %d packets in the pool", len(r.slots), len(r.pool.free))
	}
	return nil
}

// foreignWindow limits the packets under way to a foreign end, a NIC or rdma_rxe. It is at most the
// limit that rdma_rxe sets itself.
//
// A foreign end drops everything behind a loss, so a loss costs a whole window, and the window
// should be no larger than the path needs. It coalesces its acknowledgements, so they reveal little
// about the delay, and only losses show congestion. So this is the window of TCP Reno (RFC 5681):
// at first it grows by a packet for each that was answered, then by a packet a round trip; a loss
// halves it, at most once a round trip; after a timeout it restarts from the least. A CNP shrinks
// it too (see marks).
//
// Invariant: minWindow <= packets <= foreignTrack.
type foreignWindow struct {
	packets   float64
	threshold float64 // below it the window grows by a packet for each answered
	recovery  seq     // numbers before it were sent before the last cut
	roundEnd  seq     // the present round ends when this number has arrived
	marks     marks
}

func (w *foreignWindow) start() {
	*w = foreignWindow{packets: startWindow, threshold: foreignTrack}
	w.marks.start()
}

// arrived records that the packet with a number has arrived; next is the first that was never sent.
func (w *foreignWindow) arrived(s, next seq) {
	switch {
	case w.packets < w.threshold:
		w.packets++
	case !w.marks.recovers():
		w.packets += growPerRound / w.packets
	}
	if s >= w.roundEnd {
		if w.roundEnd = next; w.packets >= w.threshold {
			w.packets = w.marks.grow(w.packets, 0)
		}
	}
	w.packets = min(w.packets, foreignTrack)
}

// missed records that a packet was lost; next is the first that was never sent.
func (w *foreignWindow) missed(s, next seq) {
	if s < w.recovery {
		return // it was sent before the window was halved
	}
	w.packets = max(w.packets/2, minWindow)
	w.threshold, w.recovery = w.packets, next
}

// marked records that the network has marked packets; all before una have arrived.
func (w *foreignWindow) marked(una, next seq) {
	if una < w.recovery {
		return
	}
	w.packets = w.marks.cut(w.packets)
	w.threshold, w.recovery = w.packets, next
}

// collapse restarts with the smallest window, when nothing came back.
func (w *foreignWindow) collapse(next seq) {
	w.threshold = max(w.packets/2, minWindow)
	w.packets, w.recovery = minWindow, next
}
