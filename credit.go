package ibverbx

import (
	"fmt"

	"ibverbx/internal/dqplb"
	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// creditBatch: a rail's credits are posted again when one in creditBatch has been used up. A post
// costs a crossing into the driver, and the credits not yet posted again are few.
const creditBatch = 8

// controlBytes marks a control message in an inbox: no message is so long.
const controlBytes = 1<<32 - 1

// postCredits posts the rails' own receives that are to be posted, where enough have come together
// or, with all set, wherever there are any.
func (q *VirtualQP) postCredits(all bool) {
	if q.recv.recvsToPost == 0 || !q.line.mayPostReceives() || q.line.state < verbs.StateRTR ||
		q.recv.creditsWait || q.recv.withholdsCredits() {
		return
	}
	for _, rl := range q.send.rails.data {
		few := rl.recvsToPost*creditBatch < rl.own
		if rl.recvsToPost == 0 || rl.recvsRefused || few && !all {
			continue
		}
		if err := q.recv.postCredits(rl); err != nil {
			q.recvRefused(&recvRefusal{rl, err, recvDirection(q.ownRecvPart(), nil)})
		}
		if q.line.dead {
			return // a refusal has ended it: the other rails are in ERR by now
		}
	}
}

// ownRecvPart says what the rails' own receives are: credits (DQPLB) or watches (Spray).
func (q *VirtualQP) ownRecvPart() FailedPart {
	if q.cfg.Scheme == DQPLB {
		return PartCredit
	}
	return PartWatch
}

// creditCompleted handles the completion of one of the rails' own receives: a message, or the flush
// that says that the queue pair has failed. It reports false when there is none that the completion
// can be of.
func (q *VirtualQP) creditCompleted(rl *rail, wc *verbs.WC) (known bool) {
	c, ok := rl.inbox.Resolve(wrid.Number(wc.ID), wrid.NumberMask, rl.creditsPosted)
	if !ok || rl.recvs == 0 {
		return false
	}
	rl.recvs--
	if wc.Status != verbs.StatusSuccess {
		rl.inbox.Fail(c)
		q.recvUnsuccessful(rl, wc, recvDirection(q.ownRecvPart(), nil))
		return true
	}
	q.recv.creditUsed(rl)
	imm, bytes := wc.Imm, wc.ByteLen
	switch {
	case q.failover != nil && wc.Opcode == verbs.WCRecv && wc.Flags&verbs.WCWithImm != 0 && bytes == 0:
		bytes = controlBytes
	case wc.Opcode != verbs.WCRecvRDMAWithImm || q.cfg.Scheme != DQPLB:
		rl.inbox.Fail(c)
		q.violation(rl, &wrongKindError{fmt.Sprintf("%v on a data queue pair of %v", wc.Opcode,
			q.cfg.Scheme)})
		return true
	}
	if !rl.inbox.Put(c, imm, bytes) {
		return true
	}
	q.arrived(rl, imm, bytes)
	for imm, bytes, ok := rl.inbox.Pop(); ok; imm, bytes, ok = rl.inbox.Pop() {
		q.arrived(rl, imm, bytes)
	}
	return true
}

// arrived handles the next message of a rail, in the order in which the peer sent it there.
func (q *VirtualQP) arrived(rl *rail, imm, bytes uint32) {
	if q.line.dead {
		return
	}
	if bytes == controlBytes {
		q.raise(q.failover.handleControl(rl, imm))
		return
	}
	if err := q.recv.arrived(rl, imm, bytes); err != nil {
		q.violation(rl, err)
	}
}

// begin prepares the rails' own receives, none being posted: in DQPLB the credits of every data
// rail; in Spray a watch on each but the one that carries SENDs. No message ever takes a watch. It
// is flushed when the queue pair fails, as after a remote access error of the peer, and without it
// a receiver would not learn of that. With failover control messages take them, on every data rail.
func (s *receiver) begin(rails *railSet, scheme Scheme, recovers bool) {
	own := rails.data
	if scheme == Spray && !recovers {
		own = own[1:]
	}
	for _, r := range own {
		n := r.recvLimit
		switch {
		case scheme == Spray:
			n = min(n, controlRecvs)
		case r == rails.sendRail:
			n -= n / 2 // the others are for receives that take SENDs
		}
		r.own, r.recvsToPost = n, n // since the reset it was 0
		s.recvsToPost += n
	}
}

// dropCredits forgets the receives of its own that a lost rail was to post.
func (s *receiver) dropCredits(rl *rail) {
	s.recvsToPost -= rl.recvsToPost
	rl.recvsToPost = 0
}

// creditUsed counts a credit that a message used up.
func (s *receiver) creditUsed(rl *rail) {
	if rl.role != failover.Data {
		return // it was for GO: see recovery.postOwn
	}
	rl.recvsToPost++
	s.recvsToPost++
}

// withholdsCredits reports whether the bank is full, or too much is held that came before its turn.
// Then credits stay used up, which stops the sender without losing anything.
func (s *receiver) withholdsCredits() bool {
	return s.bank.Len() >= s.maxBanked || s.order.Held() > dqplb.MaxHeld/2
}

// postCredits posts a rail's credits that were used up.
func (s *receiver) postCredits(rl *rail) error {
	for {
		// The inbox has a slot for every credit from the oldest not handled; none is posted beyond.
		batch := s.batch.wrs[:min(rl.recvsToPost, len(s.batch.wrs), rl.inbox.Room(rl.creditsPosted))]
		if len(batch) == 0 {
			return nil
		}
		for i := range batch {
			batch[i].ID = wrid.New(wrid.Credit, rl.idBits, 0, rl.creditsPosted+uint64(i))
			if batch[i].SGL != nil {
				batch[i].SGL = nil
			}
		}
		n, err := rl.qp.PostRecv(batch)
		rl.recvsToPost -= n
		s.recvsToPost -= n
		rl.recvs += n
		rl.creditsPosted += uint64(n)
		if rl.state != nil {
			rl.state.Posted(n)
		}
		if err != nil {
			return err
		}
	}
}

// arrived puts a rail's next message into the order of the connection and delivers the
// notifications that have come due. An error is a violation of the protocol by the peer.
func (s *receiver) arrived(rl *rail, imm, bytes uint32) error {
	n, due, err := s.order.Arrive(&rl.inbox, imm, bytes)
	if err != nil {
		return err
	}
	if due {
		s.notified(n)
	}
	for s.order.Ready() {
		if n, due = s.order.Take(); due {
			s.notified(n)
		}
	}
	return nil
}
