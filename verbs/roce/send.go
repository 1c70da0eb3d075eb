package roce

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// sender sends the packets of a NIC's queue pairs. The NIC's lock guards it.
//
// When the socket's send buffer is full, the packets that did not fit are copied to the backlog,
// since their payloads may be gone once the lock is released. Nothing else is sent until a
// goroutine has seen the socket take them.
type sender struct {
	dev     *Device
	batch   rc.Batch
	packets [rc.BatchPackets]udp.Packet

	backlog []held
	waiting []*QP // queue pairs that have something to send, oldest first
	delayed []*QP // queue pairs with a delayed acknowledgement
	// postponed are shares that had room but could not be served: they are served once the socket
	// takes packets and no engine is running.
	postponed []*share

	draining bool // drain runs
	drained  sync.WaitGroup

	// put gives packets to the link, and awaitRoom begins to wait until it has room again; tests
	// replace them.
	put       func(to destination, packets []udp.Packet, segment bool) (int, error)
	awaitRoom func()
}

// held is a packet in the backlog.
type held struct {
	qp    *QP
	to    destination
	bytes []byte
}

func (s *sender) init(d *Device) {
	s.dev, s.put = d, destination.Send
	s.awaitRoom = func() {
		s.drained.Add(1)
		go s.drain()
	}
}

// transmit sends what a queue pair has to send and may, and sets its timer. Then queue pairs that
// wait for the room that it has freed send.
func (q *QP) transmit() {
	share := q.path.share
	if share == nil {
		q.transmitUpTo(0)
		q.dev.sender.servePostponed()
		return
	}
	share.note(q)
	most := 0
	if share.head == len(share.waiting) {
		most = share.room(q)
	}
	if q.engine.Probing() {
		most = max(most, 1) // its answer shows which of the packets before it are lost
	}
	q.transmitUpTo(most)
	share.serve()
	q.dev.sender.servePostponed()
}

// transmitUpTo sends what a queue pair has to send, puts at most that many packets under way, and
// sets its timer.
func (q *QP) transmitUpTo(most int) {
	d := q.dev
	s := &d.sender
	q.ackDelayed = false
	if q.path.to != nil && !q.blocked {
		now := d.now()
		q.engine.Allow(most)
		for more := true; more; {
			if len(s.backlog) != 0 {
				q.blocked = true
				s.waiting = append(s.waiting, q)
				break
			}
			beginLanding()
			more = q.engine.Transmit(now, &s.batch)
			endLanding()
			s.send(q)
		}
		q.path.share.note(q)
		if q.engine.HeldBack() {
			q.path.share.wait(q)
		}
	}
	d.timers.arm(&q.timer, q.engine.Deadline())
}

// delayAck delays the acknowledgement of a queue pair that has nothing else to send.
func (s *sender) delayAck(q *QP) {
	q.ackDelayed = true
	s.delayed = append(s.delayed, q)
	q.path.share.note(q)
	q.path.share.serve()
	s.dev.timers.arm(&q.timer, q.engine.Deadline())
}

// sendDelayedAck sends the delayed acknowledgement before the queue pair leaves its state. The
// request was carried out, so the peer must learn that whatever happens to the queue pair.
func (q *QP) sendDelayedAck() {
	if q.ackDelayed {
		q.transmit()
	}
}

// sendDelayed sends the delayed acknowledgements that have not left with anything else.
func (s *sender) sendDelayed() {
	for i, q := range s.delayed {
		if q.ackDelayed {
			q.transmit()
		}
		s.delayed[i] = nil
	}
	s.delayed = s.delayed[:0]
}

// send sends the batch.
func (s *sender) send(q *QP) {
	from := s.batch.Packets()
	if len(from) == 0 {
		return
	}
	defer s.batch.Reset()
	if s.dev.down {
		return
	}
	packets := s.packets[:len(from)]
	for i := range from {
		packets[i] = udp.Packet(from[i])
	}
	segment := q.sendsBursts()
	s.seal(q, packets, segment)
	packetsOrder()
	q.path.to.SetECT(q.engine.WantsECT())
	n, err := s.put(q.path.to, packets, segment)
	switch {
	case err == nil:
	case errors.Is(err, udp.ErrAgain):
		s.hold(q, packets[n:])
	default:
		// As if lost on the way: the requester sends it again, or runs out of retries.
		s.dev.counts.Unsendable += uint64(len(packets) - n)
	}
}

// sendsBursts reports whether packets leave in bursts. The peer must accept their identifications:
// see [Config].ForeignGSO.
func (q *QP) sendsBursts() bool {
	isAccepted := q.engine.IsOurs() || q.dev.cfg.ForeignGSO || !q.path.peer.Addr().Is4()
	return isAccepted && q.path.to.Segments()
}

// leavesOutICRC reports whether packets have 0 in place of an ICRC. The kernel hands packets
// between two addresses of its host over in memory, where nothing can corrupt them; it leaves out
// UDP's own checksum there, too. Foreign ends of the same host still get one.
func (q *QP) leavesOutICRC() bool { return q.path.sameHost && q.engine.IsOurs() }

// seal writes pad and ICRC behind the packets. In a burst they carry the identifications 0, 1, 2
// and so on, if they are IPv4.
func (s *sender) seal(q *QP, packets []udp.Packet, segment bool) {
	if q.leavesOutICRC() {
		for i := range packets {
			clear(packets[i].Trailer)
		}
		return
	}
	for len(packets) > 0 {
		burst := 1
		if segment {
			burst = udp.Burst(packets)
		}
		for i := range packets[:burst] {
			p := &packets[i]
			pad := len(p.Trailer) - wire.ICRCSize
			clear(p.Trailer[:pad])
			sum := q.path.out.Sum(uint16(i), p.Header, p.Payload, pad)
			binary.LittleEndian.PutUint32(p.Trailer[pad:], sum)
		}
		packets = packets[burst:]
	}
}

// hold copies packets to the backlog. Each leaves by itself, with the identification 0 if it is
// IPv4, whatever its place in a burst was.
func (s *sender) hold(q *QP, packets []udp.Packet) {
	if !s.draining {
		s.draining = true
		s.awaitRoom()
	}
	s.seal(q, packets, false)
	for i := range packets {
		p := &packets[i]
		s.backlog = append(s.backlog, held{q, q.path.to, slices.Concat(p.Header, p.Payload, p.Trailer)})
	}
	s.dev.counts.Retried += uint64(len(packets))
}

// drain waits until the socket has taken the backlog, and lets the waiting queue pairs continue.
func (s *sender) drain() {
	defer s.drained.Done()
	for more := true; more; {
		err := s.dev.link.WaitWritable(time.Time{})
		if errors.Is(err, verbs.ErrClosed) {
			return
		}
		more = s.roomAgain(err)
	}
}

// roomAgain sends the backlog when the link has room again, or cannot tell because of err. It
// returns true if there still is a backlog.
func (s *sender) roomAgain(err error) (more bool) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err != nil {
		s.giveUp()
	}
	if s.flush() {
		s.resume()
	}
	s.draining = len(s.backlog) != 0
	return s.draining
}

// flush sends the backlog. It returns false if the send buffer is full again.
func (s *sender) flush() bool {
	for i := range s.backlog {
		h := &s.backlog[i]
		switch _, err := s.put(h.to, []udp.Packet{{Header: h.bytes}}, false); {
		case errors.Is(err, udp.ErrAgain):
			s.backlog = slices.Delete(s.backlog, 0, i)
			return false
		case err != nil:
			s.dev.counts.Unsendable++
		}
	}
	s.backlog = nil
	return true
}

// giveUp drops the backlog: the socket cannot tell when it has room.
func (s *sender) giveUp() {
	s.dev.counts.Unsendable += uint64(len(s.backlog))
	s.backlog = nil
}

// resume lets the waiting queue pairs send, until the send buffer is full again. The one that fills
// it waits behind the others.
func (s *sender) resume() {
	for len(s.waiting) != 0 && len(s.backlog) == 0 {
		q := s.waiting[0]
		s.waiting = slices.Delete(s.waiting, 0, 1)
		q.blocked = false
		q.transmit()
	}
	s.servePostponed()
}

// isClogged reports whether the backlog, or a queue pair that it has blocked, must go first.
func (s *sender) isClogged() bool { return len(s.backlog)+len(s.waiting) != 0 }

// postpone lists a share to be served later.
func (s *sender) postpone(x *share) {
	if !x.postponed {
		x.postponed = true
		s.postponed = append(s.postponed, x)
	}
}

// servePostponed serves the postponed shares that need not wait longer.
func (s *sender) servePostponed() {
	for len(s.postponed) != 0 && !s.isClogged() {
		x := s.postponed[0]
		s.postponed = slices.Delete(s.postponed, 0, 1)
		x.postponed = false
		x.serve()
	}
}

// forget removes a queue pair's packets from the backlog, and the queue pair from those that wait.
func (s *sender) forget(q *QP) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w *QP) bool { return w == q })
	s.backlog = slices.DeleteFunc(s.backlog, func(h held) bool { return h.qp == q })
	s.delayed = slices.DeleteFunc(s.delayed, func(o *QP) bool { return o == q })
	q.blocked = false
}
