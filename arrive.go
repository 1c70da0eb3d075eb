package ibverbx

import (
	"fmt"

	"ibverbx/internal/failover"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// process handles one physical completion of a rail among several. Only its work-request id says
// which request it belongs to: in a failed completion nothing else is defined, not even the opcode.
// A completion that fits nothing is counted as stale and dropped: it belongs to an earlier
// connection or an earlier owner of the queue pair's number, or is spurious.
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

// handleLostRail handles a completion that shows that its rail is lost, or that comes from a lost
// rail. It reports false for any other.
func (q *VirtualQP) handleLostRail(rl *rail, wc *verbs.WC) bool {
	x := q.failover
	if rl.works() {
		if !x.takenOut(rl, wc) {
			return false
		}
		q.cq.touch(q) // even if the completion itself is stale
	}
	known := false
	switch kind := wrid.Kind(wc.ID); {
	case rl.back.state.Stage() != failover.StageDying || !x.outstanding(rl, wc.ID):
	case kind != wrid.Recv && kind != wrid.Credit:
		var failed bool
		if known, failed = x.sendReturned(rl, wc); failed {
			n, _ := q.send.resolve(wc.ID)
			q.sendFailed(rl, n, wc)
		}
	case failover.LosesRail(wc.Status):
		x.recvReturned(rl, wc.ID)
		known = true
	case kind == wrid.Credit:
		known = q.creditCompleted(rl, wc)
	default:
		r := q.recv.completed(&q.send.rails, rl, wc)
		if known = r != nil; known && r.status != verbs.StatusSuccess {
			q.recvEnded(rl, wc, r)
		}
	}
	if !known {
		q.stale++
		return true
	}
	q.raise(x.handleFlushed(rl))
	q.cq.touch(q)
	return true
}

// controlCompleted handles the completion of a control message that was sent on a working rail. It
// reports false if none is outstanding.
func (q *VirtualQP) controlCompleted(rl *rail, wc *verbs.WC) (known bool) {
	if q.failover == nil {
		return false
	}
	known, failed := q.failover.controlCompleted(rl, wc)
	q.raise(failed)
	return known
}

// controlBytes marks a control message in an inbox: no message is that long.
const controlBytes = 1<<32 - 1

// creditCompleted handles the completion of one of the rails' own receives: a message, or the flush
// that shows that the queue pair has failed. It reports false if the completion fits no such
// receive.
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
	q.handleArrival(rl, imm, bytes)
	for imm, bytes, ok := rl.inbox.Pop(); ok; imm, bytes, ok = rl.inbox.Pop() {
		q.handleArrival(rl, imm, bytes)
	}
	return true
}

// handleArrival handles the next message of a rail, in the order in which the peer sent it there.
func (q *VirtualQP) handleArrival(rl *rail, imm, bytes uint32) {
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

// creditBatch is the fraction of a rail's credits that may be used up before they are posted again,
// one in creditBatch. Each post costs a call of the driver, and few credits are missing in between.
const creditBatch = 8

// postDueCredits posts the rails' own receives that are due: on rails where enough have
// accumulated, or with all set on every rail that has any.
func (q *VirtualQP) postDueCredits(all bool) {
	if q.recv.recvsToPost == 0 || !q.line.mayPostReceives() || q.line.state < verbs.StateRTR ||
		q.recv.creditsWait {
		return
	}
	if q.recv.withholdsCredits() {
		if q.recv.bank.Len() >= q.recv.maxBanked { // and not data that is held out of order
			q.noteWithheld()
		}
		return
	}
	q.recv.withheld = q.recv.withheld && q.recv.bank.Len() != 0
	for _, rl := range q.send.rails.data {
		few := rl.recvsToPost*creditBatch < rl.own
		if rl.recvsToPost == 0 || rl.recvsRefused || few && !all {
			continue
		}
		if err := q.recv.postCredits(rl); err != nil {
			q.recvRefused(&recvRefusal{rl, err, recvDirection(q.ownRecvPart(), nil)})
		}
		if q.line.dead {
			return // a refusal has ended the connection: the other rails are in ERR
		}
	}
}

// noteWithheld reports, once, that this end makes its peer wait for receives.
func (q *VirtualQP) noteWithheld() {
	if !q.recv.withheld && q.cfg.Events.Withheld != nil {
		q.cfg.Events.Withheld(WithheldEvent{q.num, q.recv.bank.Len()})
	}
	q.recv.withheld = true
}

// ownRecvPart returns what the rails' own receives are: credits (DQPLB) or watches (Spray).
func (q *VirtualQP) ownRecvPart() FailedPart {
	if q.cfg.Scheme == DQPLB {
		return PartCredit
	}
	return PartWatch
}
