package roce

import (
	"math"
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
	// postponed is set while the share is in sender.postponed.
	postponed bool
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
		// which half is left for others.
		s = &share{peer: peer, limit: max(d.link.Stats().RecvBuffer/2, turn*4096)}
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

// room is how many packets a queue pair may put under way: any number while it is alone.
func (s *share) room(q *QP) int {
	if s.isAlone(q) {
		return math.MaxInt
	}
	return (s.limit - s.used) / q.cost
}

// isAlone reports whether no other queue pair has anything under way, or waits.
func (s *share) isAlone(q *QP) bool {
	waiting := len(s.waiting) - s.head
	return s.used == q.underWay && (waiting == 0 || waiting == 1 && q.waits)
}

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

// serve lets those that wait send while there is room for a turn and the socket takes packets.
// While it does not, they keep their places here: had all moved to sender.waiting, the first to
// leave that would find nobody waiting here, and take all the room.
func (s *share) serve() {
	if s.serving {
		return
	}
	s.serving = true
	for s.head != len(s.waiting) && s.room(s.waiting[s.head]) >= turn {
		q := s.waiting[s.head]
		if sender := &q.dev.sender; sender.isClogged() {
			sender.postpone(s)
			break
		}
		s.next().transmitUpTo(turn)
	}
	s.serving = false
}
