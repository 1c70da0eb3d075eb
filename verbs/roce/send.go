package roce

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"ibverbx/verbs/roce/internal/rc"
	"ibverbx/verbs/roce/internal/udp"
	"ibverbx/verbs/roce/internal/wire"
)

// sender sends the packets of a NIC's queue pairs. The NIC's lock guards it.
//
// When the socket's send buffer is full, the packets that did not fit are copied to the backlog,
// since their payloads may be gone when the lock is given up, and nothing else is sent until a
// goroutine has seen the socket take them.
type sender struct {
	dev      *Device
	batch    rc.Batch
	packets  [rc.BatchPackets]udp.Packet
	trailers [rc.BatchPackets][3 + wire.ICRCSize]byte

	backlog []held
	waiting []*QP // queue pairs that have something to send, oldest first
}

// held is a packet in the backlog.
type held struct {
	to    *udp.Destination
	bytes []byte
}

func (s *sender) init(d *Device) { s.dev = d }

// transmit sends what a queue pair has to send, and sets its timer.
func (q *QP) transmit() {
	d := q.dev
	s := &d.sender
	if q.path.to != nil && !q.blocked {
		now := d.now()
		for more := true; more; {
			if len(s.backlog) != 0 {
				q.blocked = true
				s.waiting = append(s.waiting, q)
				break
			}
			more = q.engine.Transmit(now, &s.batch)
			s.send(q)
		}
	}
	d.timers.arm(&q.timer, q.engine.Deadline())
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
		p := &from[i]
		packets[i] = udp.Packet{Header: p.Header[:p.Len], Payload: p.Payload,
			Trailer: s.trailers[i][:int(p.Pad)+wire.ICRCSize]}
	}
	segment := q.engine.IsOurs() && q.path.to.Segments()
	s.seal(q, packets, segment)
	packetsOrder()
	n, err := q.path.to.Send(packets, segment)
	switch {
	case err == nil:
	case errors.Is(err, udp.ErrAgain):
		s.hold(q.path.to, packets[n:])
	default:
		// As if it was lost on the way: the requester finds out, or runs out of retries.
		s.dev.counts.Unsendable += uint64(len(packets) - n)
	}
}

// seal writes pad and ICRC behind the packets. In a burst they carry the identifications 0, 1, 2
// and so on, if they are IPv4.
func (s *sender) seal(q *QP, packets []udp.Packet, segment bool) {
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

// hold copies packets to the backlog.
func (s *sender) hold(to *udp.Destination, packets []udp.Packet) {
	if len(s.backlog) == 0 {
		go s.drain()
	}
	for i := range packets {
		p := &packets[i]
		b := slices.Concat(p.Header, p.Payload, p.Trailer)
		s.backlog = append(s.backlog, held{to, b})
	}
	s.dev.counts.Retried += uint64(len(packets))
}

// drain waits until the socket has taken the backlog, and lets those go on that wait.
func (s *sender) drain() {
	d := s.dev
	for {
		if err := d.conn.WaitWritable(time.Time{}); err != nil {
			return // the NIC is closed
		}
		d.mu.Lock()
		if s.flush() {
			waiting := s.waiting
			s.waiting = nil
			for _, q := range waiting {
				q.blocked = false
				q.transmit()
			}
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
	}
}

// flush sends the backlog. It returns false if the send buffer is full again.
func (s *sender) flush() bool {
	for len(s.backlog) > 0 {
		h := &s.backlog[0]
		// Sealed for a place in a burst: alone it would have identification 0.
		if _, err := h.to.Send([]udp.Packet{{Header: h.bytes}}, false); errors.Is(err, udp.ErrAgain) {
			return false
		}
		s.backlog = s.backlog[1:]
	}
	s.backlog = nil
	return true
}

// forget removes a queue pair that is closed.
func (s *sender) forget(q *QP) {
	s.waiting = slices.DeleteFunc(s.waiting, func(w *QP) bool { return w == q })
}
