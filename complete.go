package ibverbx

import (
	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// process handles one physical completion of a rail among several. Which request it belongs to is
// read from its work-request id alone: of a failed completion nothing else is defined, the opcode
// included. A completion that fits nothing is counted as stale and dropped: it belongs to an
// earlier connection or an earlier owner of the queue pair's number, or is spurious.
func (q *VirtualQP) process(rl *rail, wc *verbs.WC) {
	if wrid.Rail(wc.ID) != rl.index() {
		q.stale++
		return
	}
	if q.failover != nil && (rl.down || wc.Status != verbs.StatusSuccess) && q.handleLostRail(rl, wc) {
		return
	}
	n, known := uint64(0), false
	switch wrid.Kind(wc.ID) {
	case wrid.Data, wrid.Numbered, wrid.Imm:
		n = q.send.dataCompleted(rl, wc)
	case wrid.Final:
		n = q.send.finalCompleted(rl, wc)
	case wrid.Message:
		n = q.send.messageCompleted(rl, wc)
	case wrid.Recv:
		r := q.recv.completed(&q.send.rails, rl, wc)
		if known = r != nil; known && r.status != verbs.StatusSuccess {
			q.recvEnded(rl, wc, r)
		}
	case wrid.Credit:
		known = q.creditCompleted(rl, wc)
	default: // wrid.Control: an eighth case would make the compiler take a jump table (a SEND: 3 ns)
		known = q.controlCompleted(rl, wc)
	}
	switch {
	case n != 0:
		if wc.Status != verbs.StatusSuccess {
			q.sendFailed(rl, n, wc)
		}
	case !known:
		q.stale++
		return
	}
	q.cq.touch(q)
}

// dataCompleted handles the completion of a fragment, marker, atomic or raw immediate. It returns
// the request, or 0 if there is none that the completion can be of.
func (s *sender) dataCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.left == 0 || rl.role != failover.Data || !rl.onNIC() || s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.left--
	s.rails.giveData(rl, s.waiting(), wc.Status == verbs.StatusSuccess)
	if wc.Status != verbs.StatusSuccess {
		return n
	}
	if wrid.Kind(wc.ID) == wrid.Numbered {
		s.numbers.Ack(wrid.Aux(wc.ID))
	}
	if n == s.dataDone && r.left == 0 && r.dispatched {
		s.advanceDataDone()
	}
	return n
}

// finalCompleted handles the completion of a request's final message. It returns the request, or 0.
func (s *sender) finalCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.final != finalPosted || rl != s.carrier(r) || !rl.onNIC() ||
		s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.final = finalDone
	s.rails.give(rl, s.waiting())
	s.sprayed = s.sprayed || r.plan != planNone && wc.Status == verbs.StatusSuccess
	return n
}

// messageCompleted handles the completion of a relaxed SEND. It returns the request, or 0.
func (s *sender) messageCompleted(rl *rail, wc *verbs.WC) uint64 {
	n, ok := s.resolve(wc.ID)
	if !ok {
		return 0
	}
	r := s.win.At(n)
	if r.plan != planMessage || r.left == 0 || rl != s.rails.sendRail || !rl.onNIC() ||
		s.logs && !rl.log.Complete(wc.ID) {
		return 0
	}
	r.left = 0
	s.rails.give(rl, s.waiting())
	if wc.Status == verbs.StatusSuccess && n == s.dataDone {
		s.advanceDataDone()
	}
	return n
}

// advanceDataDone moves the cursor over every request whose data is acknowledged.
func (s *sender) advanceDataDone() {
	for s.dataDone != s.next && s.win.At(s.dataDone).dataComplete() {
		s.dataDone++
	}
	if s.finals == 0 {
		s.finalsPosted = s.dataDone
	}
}
