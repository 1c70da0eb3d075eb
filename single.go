package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// passBatch is how many requests are translated for a queue pair at a time: as many as a caller
// usually posts at once.
const passBatch = 64

// passSends hands requests straight to the only queue pair. Nothing is tracked: the completion
// brings the user's own ID.
func (q *VirtualQP) passSends(wrs []SendWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := q.canSend(); err != nil {
		return 0, q.stateError("post send", wrs[0].ID, err)
	}
	rl := q.rails[0]
	b := &rl.batch
	for n < len(wrs) && err == nil {
		first := n
		for b.tail < len(b.wrs) && n < len(wrs) {
			if err = q.translate(rl, n, &wrs[n]); err != nil {
				break
			}
			n++
		}
		if b.tail == 0 {
			break // nothing is left to post, so the NIC has no say
		}
		accepted, refusal := rl.qp.PostSend(b.wrs[:b.tail])
		b.tail = 0
		q.countPassed(rl, b.wrs[:accepted])
		if refusal != nil {
			rl.stats.refused++
			n = first + accepted
			if errors.Is(refusal, verbs.ErrDeviceGone) {
				q.fail(rl, describePassed(&wrs[n], refusal))
				q.kill() // what it still holds is to end
			}
			return n, q.sendError(n, &wrs[n], refusal, "")
		}
	}
	return n, err
}

// countPassed counts what the NIC has accepted.
func (q *VirtualQP) countPassed(rl *rail, wrs []verbs.SendWR) {
	q.counters.sends += uint64(len(wrs))
	rl.stats.fragments += uint64(len(wrs))
	for i := range wrs {
		rl.stats.bytes += wrs[i].Bytes()
	}
	q.inflight += len(wrs)
}

// translate checks a request and adds it to the rail's batch.
func (q *VirtualQP) translate(rl *rail, i int, wr *SendWR) error {
	if !wr.Opcode.Valid() {
		return q.sendError(i, wr, ErrOpcode, wr.Opcode.String())
	}
	if wr.Flags&^knownSendFlags != 0 {
		return q.sendError(i, wr, verbs.ErrInvalid, fmt.Sprintf("flags %v: unknown bits", wr.Flags))
	}
	if len(wr.Inline) != 0 && wr.Flags&verbs.SendInline == 0 {
		return q.sendError(i, wr, verbs.ErrInvalid, "Inline is set and the flag SendInline is not")
	}
	length := wr.Local.Length
	if len(wr.SGL) == 0 && wr.Flags&verbs.SendInline == 0 {
		if k := wr.Local.Keys; length != 0 &&
			(k == nil || q.localDevs&^k.have != 0 || !k.covers(wr.Local.Addr, length)) {
			return q.checkSegment(i, wr, wr.Local, q.localDevs)
		}
	} else {
		var err error
		if length, err = q.checkPieces(i, wr, q.localDevs); err != nil {
			return err
		}
	}
	if wr.Relaxed || wr.EveryRail {
		if err := q.checkOrder(i, wr, length); err != nil {
			return err
		}
	}
	if length > maxMessage || len(wr.SGL) > rl.maxSGE {
		return q.passTooLarge(i, wr, length)
	}
	p := rl.batch.add()
	p.ID, p.Opcode, p.Flags, p.Imm = wr.ID, wr.Opcode, wr.Flags, wr.Imm
	if !wr.Opcode.IsSend() {
		if err := q.translateRemote(rl, i, wr, p, length); err != nil {
			rl.batch.tail--
			return err
		}
	}
	q.translateLocal(rl, wr, p, length)
	return nil
}

// translateRemote gives the physical request its remote side. A transfer of no bytes needs none.
func (q *VirtualQP) translateRemote(rl *rail, i int, wr *SendWR, p *verbs.SendWR, length uint64) error {
	p.RemoteAddr = wr.Remote.Addr
	k := wr.Remote.Keys
	if length == 0 {
		p.RKey = 0
		return nil
	}
	if k == nil || q.peerDevs&^k.have != 0 || length > wr.Remote.Length || !k.covers(wr.Remote.Addr, length) {
		return q.checkRemote(i, wr, length)
	}
	p.RKey = k.at(rl.peerDev)
	p.CompareAdd, p.Swap = wr.CompareAdd, wr.Swap
	if wr.Opcode.IsAtomic() {
		return q.checkAtomic(i, wr, length)
	}
	return nil
}

// translateLocal gives the physical request its payload.
func (q *VirtualQP) translateLocal(rl *rail, wr *SendWR, p *verbs.SendWR, length uint64) {
	switch {
	case wr.Flags&verbs.SendInline != 0:
		rl.batch.setInline(p, wr.Inline)
	case len(wr.SGL) != 0:
		sgl := appendSGL(rl.batch.setSGL(p, rl.maxSGE)[:0], wr.SGL, rl.device)
		rl.batch.setSGL(p, len(sgl))
	case length == 0:
		rl.batch.setSGL(p, 0)
	default:
		sgl := rl.batch.setSGL(p, 1)
		sgl[0] = verbs.SGE{Addr: wr.Local.Addr, Length: uint32(length), LKey: wr.Local.Keys.at(rl.device)}
	}
}

func (q *VirtualQP) passTooLarge(i int, wr *SendWR, length uint64) error {
	if length > maxMessage {
		return q.sendError(i, wr, ErrLength, fmt.Sprintf("%d bytes in one message: a message carries at "+
			"most 2 GiB; use several queue pairs, which fragment", length))
	}
	return q.sendError(i, wr, verbs.ErrInvalid, fmt.Sprintf("%d pieces: the queue pair takes %d", len(wr.SGL),
		q.rails[0].maxSGE))
}

// passRecvs hands receives straight to the only queue pair.
func (q *VirtualQP) passRecvs(wrs []RecvWR) (n int, err error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	if err := q.canRecv(); err != nil {
		return 0, q.stateError("post recv", wrs[0].ID, err)
	}
	rl := q.rails[0]
	width := max(1, rl.qp.Cap().MaxRecvSGE)
	if q.scratch == nil {
		q.scratch, q.recv.sges = make([]verbs.RecvWR, passBatch), make([]verbs.SGE, passBatch*width)
	}
	for n < len(wrs) && err == nil {
		first, count := n, 0
		for count < passBatch && n < len(wrs) {
			sgl := q.recv.sges[count*width : count*width : (count+1)*width]
			if q.scratch[count].SGL, err = q.translateRecv(n, &wrs[n], sgl); err != nil {
				break
			}
			q.scratch[count].ID = wrs[n].ID
			count++
			n++
		}
		if count == 0 {
			break
		}
		accepted, refusal := rl.qp.PostRecv(q.scratch[:count])
		q.counters.recvs += uint64(accepted)
		q.inflight += accepted
		if refusal != nil {
			rl.stats.refused++
			n = first + accepted
			if errors.Is(refusal, verbs.ErrDeviceGone) {
				q.fail(rl, describePassedRecv(&wrs[n], refusal))
				q.kill() // what it still holds is to end
			}
			return n, recvError(n, &wrs[n], refusal, "")
		}
	}
	return n, err
}

// translateRecv checks a receive and appends its pieces of memory to sgl, which has room for as
// many as the queue pair takes.
func (q *VirtualQP) translateRecv(i int, wr *RecvWR, sgl []verbs.SGE) ([]verbs.SGE, error) {
	if len(wr.SGL) == 0 {
		if wr.Local.Length == 0 {
			return nil, nil
		}
		pieces := [1]Segment{wr.Local}
		if err := q.checkRecv(i, wr, pieces[:]); err != nil {
			return nil, err
		}
		return append(sgl, verbs.SGE{Addr: wr.Local.Addr, Length: uint32(wr.Local.Length),
			LKey: wr.Local.Keys.at(q.rails[0].device)}), nil
	}
	if wr.Local != (Segment{}) {
		return nil, recvError(i, wr, verbs.ErrInvalid, "both Local and SGL are set: use one")
	}
	if err := q.checkRecv(i, wr, wr.SGL); err != nil {
		return nil, err
	}
	return appendSGL(sgl, wr.SGL, q.rails[0].device), nil
}

// passCompletion hands a completion straight to the user, with the fields that are undefined
// cleared.
func (q *VirtualQP) passCompletion(rl *rail, wc *verbs.WC, out *sink) {
	if q.own.owns(wc) {
		q.ownCompleted(rl, wc)
		return
	}
	v := q.cq.slot(out)
	*v = WC{ID: wc.ID, Status: wc.Status, QPNum: q.num}
	q.inflight--
	if wc.Status != verbs.StatusSuccess {
		v.Opcode, v.VendorErr = verbs.WCUnknown, wc.VendorErr
		if q.flushAsked(wc.Status) {
			return // under Drain it is a receive: all sends have ended, or there is a failure already
		}
		rl.stats.errors++
		f := noRequest(wc.Status)
		f.HasID, f.ID, f.VendorErr = true, wc.ID, wc.VendorErr
		q.fail(rl, f)
		return
	}
	v.Opcode = wc.Opcode
	if wc.Opcode.IsRecv() {
		q.counters.recvsDone++
		v.ByteLen = uint64(wc.ByteLen)
		if wc.Flags&verbs.WCWithImm != 0 {
			v.Imm, v.Flags = wc.Imm, verbs.WCWithImm
		}
	} else {
		q.counters.sendsDone++
	}
}
