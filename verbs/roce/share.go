package roce

import (
	"net/netip"
	"slices"
)

// share is what the queue pairs of a NIC that write to one peer's NIC share: the receive buffer of
// that NIC's socket. Each has a window of its own, which knows nothing of the others; the windows
// of a thousand hold more packets than any buffer. So a queue pair puts packets under way while
// there is room for all, and those that found none take turns, turn packets each.
//
// Invariant: used is the sum of QP.underWay over the queue pairs, in bytes. Those that wait are in
// waiting from head on; while some do, no other one begins to send.
type share struct {
	peer    netip.AddrPort
	users   int
	limit   int // bytes
	used    int
	waiting []*QP
	head    int
	serving bool
}

const (
	// turn is how many packets a queue pair that had to wait puts under way at a time: about the
	// longest burst.
	turn = 16
	// leastCost is what a short packet counts in a receive buffer, where the kernel keeps some
	// hundred bytes beside it.
	leastCost = 1024
)

// takeShare is the share of the queue pairs towards a peer.
func (d *Device) takeShare(peer netip.AddrPort) *share {
	s := d.shares[peer]
	if s == nil {
		if d.shares == nil {
			d.shares = map[netip.AddrPort]*share{}
		}
		// A peer does not say how large its buffer is: it is taken to be like that of this NIC, of
		// which half is left for others. A queue pair that is alone is not held up.
		s = &share{peer: peer, limit: max(d.link.Stats().RecvBuffer/2, d.cfg.Window, turn*4096)}
		d.shares[peer] = s
	}
	s.users++
	return s
}

// leave ends what a queue pair has of a share.
func (s *share) leave(q *QP) {
	s.used -= q.underWay
	q.underWay = 0
	if q.waits {
		q.waits = false
		s.waiting = append(s.waiting[:s.head], slices.DeleteFunc(s.waiting[s.head:],
			func(w *QP) bool { return w == q })...)
	}
	if s.users--; s.users == 0 {
		delete(q.dev.shares, s.peer)
	}
	s.serve()
}

// room is how many packets a queue pair may put under way.
func (s *share) room(q *QP) int { return (s.limit - s.used) / q.cost }

// note notes how many packets a queue pair has under way.
func (s *share) note(q *QP) {
	now := q.engine.UnderWay() * q.cost
	s.used += now - q.underWay
	q.underWay = now
}

// wait has a queue pair wait for its turn.
func (s *share) wait(q *QP) {
	if !q.waits {
		q.waits = true
		s.waiting = append(s.waiting, q)
	}
}

// next takes the queue pair whose turn it is.
func (s *share) next() *QP {
	q := s.waiting[s.head]
	s.waiting[s.head] = nil
	if s.head++; s.head == len(s.waiting) {
		s.waiting, s.head = s.waiting[:0], 0
	} else if s.head > 64 && s.head > len(s.waiting)/2 {
		n := copy(s.waiting, s.waiting[s.head:])
		clear(s.waiting[n:])
		s.waiting, s.head = s.waiting[:n], 0
	}
	q.waits = false
	return q
}

// serve lets those that wait send while there is room for a turn.
func (s *share) serve() {
	if s.serving {
		return
	}
	s.serving = true
	for s.head != len(s.waiting) && s.room(s.waiting[s.head]) >= turn {
		s.next().transmitUpTo(turn)
	}
	s.serving = false
}
