package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// creditBatch is the least share of a rail's credits, as a divisor, that is posted again at once: a
// post costs a crossing into the driver, and the credits not yet posted again are few.
const creditBatch = 8

// postCredits posts the credits that were used up, once 1/share of a rail's are. With the bank
// full, or too much held that came before its turn, it withholds them, which stops the sender
// without losing anything.
func (q *VirtualQP) postCredits(share int) {
	if q.killed || q.phase >= drainRecvs || q.state < verbs.StateRTR ||
		q.recv.bank.Len() >= q.cfg.MaxBanked || q.arrived.held > maxArrivals/2 {
		return
	}
	if q.owed == 0 {
		return
	}
	for _, rl := range q.rails {
		if rl.owed != 0 && !rl.shut && rl.owed*share >= rl.recvLimit {
			q.postRailCredits(rl)
		}
		if q.killed {
			return // a refusal has ended it: the other rails are in ERR by now
		}
	}
}

func (q *VirtualQP) postRailCredits(rl *rail) {
	for {
		// The inbox has a slot for every credit from the oldest not handled; none is posted beyond.
		room := rl.inbox.next + rl.inbox.mask + 1 - rl.credited
		batch := q.scratch[:min(rl.owed, len(q.scratch), int(room))]
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			batch[i].ID = wrid(kindCredit, rl.idBits, 0, rl.credited+uint64(i))
			if batch[i].SGL != nil {
				batch[i].SGL = nil
			}
		}
		n, err := rl.qp.PostRecv(batch)
		rl.owed -= n
		q.owed -= n
		rl.recvs += n
		rl.credited += uint64(n)
		if err != nil {
			q.recvRefused(rl, err, recvDirection(q.keptFor(), nil))
			return
		}
	}
}

// keptFor says what the receives are for that are no user's.
func (q *VirtualQP) keptFor() FailedPart {
	if q.cfg.Scheme == DQPLB {
		return PartCredit
	}
	return PartWatch
}

// creditCompleted takes in a message that used up a credit.
func (q *VirtualQP) creditCompleted(rl *rail, wc *verbs.WC) {
	box := &rl.inbox
	c := box.next + (wridNumber(wc.ID)-box.next)&wridNumberMask
	if c >= rl.credited || c-box.next > box.mask {
		q.counters.stale++
		return
	}
	if slot := &box.slots[c&box.mask]; slot.taken {
		q.counters.stale++
		return
	}
	rl.recvs--
	if wc.Status != verbs.StatusSuccess {
		q.recvError(rl, wc, recvDirection(q.keptFor(), nil))
		return
	}
	rl.owed++
	q.owed++
	if wc.Opcode != verbs.WCRecvRDMAWithImm || q.cfg.Scheme != DQPLB {
		q.protocolError(rl, fmt.Sprintf("%v on a data queue pair of %v", wc.Opcode, q.cfg.Scheme))
		return
	}
	if c != box.next {
		box.slots[c&box.mask] = creditArrival{imm: wc.Imm, bytes: wc.ByteLen, taken: true}
		return
	}
	box.next++
	q.arrive(rl, wc.Imm, wc.ByteLen)
	for slot := &box.slots[box.next&box.mask]; slot.taken; slot = &box.slots[box.next&box.mask] {
		slot.taken = false
		box.next++
		q.arrive(rl, slot.imm, slot.bytes)
	}
}

// arrive takes in the messages of one rail in the order in which the peer sent them.
func (q *VirtualQP) arrive(rl *rail, imm, bytes uint32) {
	if q.killed {
		return
	}
	box := &rl.inbox
	if box.awaitsImm {
		box.awaitsImm = false
		box.pending.imm = imm
		box.pending.state |= arrivedImm
		q.admit(rl, box.pendingNum, box.pending)
		return
	}
	v := seqImm(imm)
	num := v & seqMask
	a := arrival{bytes: bytes}
	if v&immLast != 0 {
		a.state = arrivedEnd
	}
	raw := v&immRaw != 0
	if num == seqMod || v&immReserved != 0 || raw && (!q.rawImm || v&immLast == 0) {
		q.protocolError(rl, fmt.Sprintf("immediate 0x%08x is no dqplb number", v))
		return
	}
	if raw {
		box.awaitsImm, box.pending, box.pendingNum = true, a, num
		return
	}
	q.admit(rl, num, a)
}

// admit puts a numbered message into order and delivers the notifications that have come due.
func (q *VirtualQP) admit(rl *rail, num uint32, a arrival) {
	switch q.arrived.admit(num, a) {
	case admitWaits:
		return
	case admitDuplicate:
		q.protocolError(rl, fmt.Sprintf("number %d came twice: expecting %d", num, q.arrived.next))
		return
	case admitFar:
		q.protocolError(rl, fmt.Sprintf("number %d is too far ahead: expecting %d", num, q.arrived.next))
		return
	}
	for {
		a, total, ok := q.arrived.take()
		if !ok {
			return
		}
		if a.state&arrivedEnd != 0 {
			q.notified(notification{bytes: total, imm: a.imm, hasImm: true})
		}
	}
}

// notified gives a notification to the oldest receive that waits for one, or banks it for the next.
func (q *VirtualQP) notified(n notification) {
	if q.recv.bank.Len() == 0 {
		if r := q.nextNotified(); r != nil {
			r.deliver(n)
			return
		}
	}
	q.recv.bank.Push(n)
	q.counters.banked++
}

// protocolError ends the virtual queue pair because the peer sent something impossible.
func (q *VirtualQP) protocolError(rl *rail, what string) {
	q.recvFailed(rl, recvDirection(PartUnknown, fmt.Errorf("%w: %s", ErrProtocol, what)))
}
