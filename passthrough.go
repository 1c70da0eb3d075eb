package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// passThrough is a virtual queue pair over one physical queue pair. Requests go out as they are,
// with the user's own ID, and complete as the NIC says. Nothing is tracked, so it cannot tell which
// of the unsignaled requests are still outstanding, and Drain, Close and Reset must ask the NIC:
// see drainProbes.
//
// It holds no memory region either. A region that is closed already is refused: NICs give keys
// again, and its key may name other memory by now.
//
// outstanding counts the requests that were accepted less the completions that came: unsignaled
// sends that succeed have none and count until a reset, and what a NIC invents is not recognised.
//
// Invariant: nothing is staged between calls; probes.posted is not negative.
type passThrough struct {
	rail  *rail
	rails *railSet // of rail alone
	line  *line
	cq    *VirtualCQ
	qpNum uint32 // of the virtual queue pair

	outstanding int
	probes      drainProbes
	scratch     []verbs.RecvWR // for posting receives in batches; made with the first
	sges        []verbs.SGE    // scatter lists of the receives in scratch

	sends, sendsDone, recvs, recvsDone uint64 // accepted, and completed with success, ever
}

// newPassThrough makes the pass-through of a virtual queue pair with one rail. The rail has the
// NIC's own limits, and its batch serves to translate requests only.
func newPassThrough(q *VirtualQP) *passThrough {
	rails := &q.send.rails
	r := rails.data[0]
	r.slots, r.recvLimit = r.qp.Cap().MaxSendWR, r.qp.Cap().MaxRecvWR
	r.limit = r.slots
	r.batch = newSendBatch(max(1, min(r.slots, postBatch)), r.maxSGE)
	rails.sendRail = r
	rails.recount()
	return &passThrough{rail: r, rails: rails, line: &q.line, cq: q.cq}
}

// restart begins a connection, nothing being outstanding.
func (p *passThrough) restart() {
	p.outstanding = 0
	p.probes = drainProbes{unsignaledBefore: p.sends - p.sendsDone}
}

// abandon forgets what is outstanding: the queue pair was reset or destroyed and holds nothing.
func (p *passThrough) abandon() { p.outstanding = 0 }

// postSends hands requests to the queue pair.
func (p *passThrough) postSends(wrs []SendWR) (n int, err error) {
	rl := p.rail
	b := &rl.batch
	for n < len(wrs) && err == nil {
		first := n
		for b.tail < len(b.wrs) && n < len(wrs) {
			if err = p.translate(n, &wrs[n]); err != nil {
				break
			}
			n++
		}
		if b.tail == 0 {
			break // nothing is left to post, so the NIC has no say
		}
		accepted, refusal := rl.qp.PostSend(b.wrs[:b.tail])
		b.tail = 0
		p.countSends(b.wrs[:accepted])
		if refusal != nil {
			n = first + accepted
			if p.refused(refusal) {
				p.end(describeForwarded(&wrs[n], refusal))
			}
			return n, refuseSend(n, &wrs[n], refusal, "")
		}
	}
	return n, err
}

// countSends counts what the NIC has accepted.
func (p *passThrough) countSends(wrs []verbs.SendWR) {
	p.sends += uint64(len(wrs))
	p.rail.stats.fragments += uint64(len(wrs))
	for i := range wrs {
		p.rail.stats.bytes += wrs[i].Bytes()
	}
	p.outstanding += len(wrs)
}

// refused handles the refusal of a post, and reports whether it ends the virtual queue pair: the
// device is gone.
func (p *passThrough) refused(err error) (ends bool) {
	p.rail.stats.refused++
	return errors.Is(err, verbs.ErrDeviceGone)
}

// end records a failure, and has the NIC flush what it still holds.
func (p *passThrough) end(f *FailedError) {
	p.fail(f)
	p.line.dead = true
	p.rail.toError()
}

// fail records the first error.
func (p *passThrough) fail(f *FailedError) (first bool) {
	return p.line.fail(0, f.on(p.qpNum, p.rail))
}

// translate checks a request and adds it to the rail's batch.
func (p *passThrough) translate(i int, wr *SendWR) error {
	rl, s := p.rail, p.rails
	if !wr.Opcode.Valid() {
		return refuseSend(i, wr, ErrOpcode, wr.Opcode.String())
	}
	if wr.Flags&^knownSendFlags != 0 {
		return refuseSend(i, wr, verbs.ErrInvalid, fmt.Sprintf("flags %v: unknown bits", wr.Flags))
	}
	if len(wr.Inline) != 0 && wr.Flags&verbs.SendInline == 0 {
		return refuseSend(i, wr, verbs.ErrInvalid, "Inline is set and the flag SendInline is not")
	}
	length := wr.Local.Length
	if len(wr.SGL) == 0 && wr.Flags&verbs.SendInline == 0 {
		k := wr.Local.Keys
		if k == nil || s.localDevs&^k.have != 0 || !k.covers(wr.Local.Addr, length) || !k.open() {
			if err := p.checkPiece(i, wr); err != nil {
				return err
			}
		}
	} else {
		var err error
		if length, err = s.checkPieces(i, wr, s.localDevs); err != nil {
			return err
		}
		if bad := closedPiece(wr.SGL); bad >= 0 {
			return refuseSend(i, wr, ErrClosed, wr.SGL[bad].closedText())
		}
	}
	if wr.Relaxed || wr.EveryRail {
		if err := s.checkOrder(i, wr, length); err != nil {
			return err
		}
	}
	if length > maxMessage || len(wr.SGL) > rl.maxSGE {
		return p.tooLarge(i, wr, length)
	}
	to := rl.batch.add()
	to.ID, to.Opcode, to.Flags, to.Imm = wr.ID, wr.Opcode, wr.Flags, wr.Imm
	if !wr.Opcode.IsSend() {
		if err := p.translateRemote(i, wr, to, length); err != nil {
			rl.batch.tail--
			return err
		}
	}
	p.translateLocal(wr, to, length)
	return nil
}

// checkPiece says what is wrong with a request's one piece of local memory.
func (p *passThrough) checkPiece(i int, wr *SendWR) error {
	if err := p.rails.checkSegment(i, wr, wr.Local, p.rails.localDevs); err != nil {
		return err
	}
	if !wr.Local.open() {
		return refuseSend(i, wr, ErrClosed, wr.Local.closedText())
	}
	return nil
}

// translateRemote gives the physical request its remote side. A transfer of no bytes needs none.
func (p *passThrough) translateRemote(i int, wr *SendWR, to *verbs.SendWR, length uint64) error {
	s := p.rails
	to.RemoteAddr = wr.Remote.Addr
	k := wr.Remote.Keys
	if length == 0 {
		to.RKey = 0
		return s.checkEmpty(i, wr)
	}
	if k == nil || s.peerDevs&^k.have != 0 || length > wr.Remote.Length || !k.covers(wr.Remote.Addr, length) {
		return s.checkRemote(i, wr, length)
	}
	to.RKey = k.at(p.rail.peerDev)
	to.CompareAdd, to.Swap = wr.CompareAdd, wr.Swap
	if wr.Opcode.IsAtomic() {
		return s.checkAtomic(i, wr, length)
	}
	return nil
}

// translateLocal gives the physical request its payload.
func (p *passThrough) translateLocal(wr *SendWR, to *verbs.SendWR, length uint64) {
	rl := p.rail
	switch {
	case wr.Flags&verbs.SendInline != 0:
		rl.batch.setInline(to, wr.Inline)
	case len(wr.SGL) != 0:
		sgl := appendSGL(rl.batch.setSGL(to, rl.maxSGE)[:0], wr.SGL, rl.device)
		rl.batch.setSGL(to, len(sgl))
	case length == 0:
		rl.batch.setSGL(to, 0)
	default:
		sgl := rl.batch.setSGL(to, 1)
		sgl[0] = verbs.SGE{Addr: wr.Local.Addr, Length: uint32(length), LKey: wr.Local.Keys.at(rl.device)}
	}
}

// tooLarge says why a request is longer, or has more pieces, than one message.
func (p *passThrough) tooLarge(i int, wr *SendWR, length uint64) error {
	if length > maxMessage {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%d bytes in one message: a message carries at "+
			"most 2 GiB; use several queue pairs, which fragment", length))
	}
	return refuseSend(i, wr, verbs.ErrInvalid, fmt.Sprintf("%d pieces: the queue pair takes %d", len(wr.SGL),
		p.rail.maxSGE))
}

// postRecvs hands receives to the queue pair.
func (p *passThrough) postRecvs(wrs []RecvWR) (n int, err error) {
	width := max(1, p.rail.qp.Cap().MaxRecvSGE)
	if p.scratch == nil {
		p.scratch, p.sges = make([]verbs.RecvWR, postBatch), make([]verbs.SGE, postBatch*width)
	}
	for n < len(wrs) && err == nil {
		first, count := n, 0
		for count < postBatch && n < len(wrs) {
			sgl := p.sges[count*width : count*width : (count+1)*width]
			if p.scratch[count].SGL, err = p.translateRecv(n, &wrs[n], sgl); err != nil {
				break
			}
			p.scratch[count].ID = wrs[n].ID
			count++
			n++
		}
		if count == 0 {
			break
		}
		accepted, refusal := p.rail.qp.PostRecv(p.scratch[:count])
		p.recvs += uint64(accepted)
		p.outstanding += accepted
		if refusal != nil {
			n = first + accepted
			if p.refused(refusal) {
				p.end(describeForwardedRecv(&wrs[n], refusal))
			}
			return n, refuseRecv(n, &wrs[n], refusal, "")
		}
	}
	return n, err
}

// translateRecv checks a receive and appends its pieces of memory to sgl, which has room for as
// many as the queue pair takes.
func (p *passThrough) translateRecv(i int, wr *RecvWR, sgl []verbs.SGE) ([]verbs.SGE, error) {
	if len(wr.SGL) == 0 {
		if wr.Local.Length == 0 {
			return nil, nil
		}
		pieces := [1]Segment{wr.Local}
		if err := p.checkRecv(i, wr, pieces[:]); err != nil {
			return nil, err
		}
		return append(sgl, verbs.SGE{Addr: wr.Local.Addr, Length: uint32(wr.Local.Length),
			LKey: wr.Local.Keys.at(p.rail.device)}), nil
	}
	if wr.Local != (Segment{}) {
		return nil, refuseRecv(i, wr, verbs.ErrInvalid, "both Local and SGL are set: use one")
	}
	if err := p.checkRecv(i, wr, wr.SGL); err != nil {
		return nil, err
	}
	return appendSGL(sgl, wr.SGL, p.rail.device), nil
}

// checkRecv says what is wrong with a receive that has memory.
func (p *passThrough) checkRecv(i int, wr *RecvWR, pieces []Segment) error {
	if err := p.rails.checkRecv(i, wr, pieces); err != nil {
		return err
	}
	if bad := closedPiece(pieces); bad >= 0 {
		return refuseRecv(i, wr, ErrClosed, pieces[bad].closedText())
	}
	return nil
}

// completed hands a completion to the user, with the fields that are undefined cleared.
func (p *passThrough) completed(wc *verbs.WC, out *sink) {
	if p.probes.owns(wc) {
		p.probeCompleted(wc)
		return
	}
	v := out.slot()
	*v = WC{ID: wc.ID, Status: wc.Status, QPNum: p.qpNum}
	p.outstanding--
	if wc.Status != verbs.StatusSuccess {
		v.Opcode, v.VendorErr = verbs.WCUnknown, wc.VendorErr
		if p.line.flushAsked(wc.Status) {
			return // under Drain it is a receive: all sends have ended, or there is a failure already
		}
		p.rail.stats.errors++
		f := noRequest(wc.Status)
		f.HasID, f.ID, f.VendorErr = true, wc.ID, wc.VendorErr
		p.fail(f)
		return
	}
	v.Opcode = wc.Opcode
	if wc.Opcode.IsRecv() {
		p.recvsDone++
		v.ByteLen = uint64(wc.ByteLen)
		if wc.Flags&verbs.WCWithImm != 0 {
			v.Imm, v.Flags = wc.Imm, verbs.WCWithImm
		}
	} else {
		p.sendsDone++
	}
}

// check panics where the invariant does not hold.
func (p *passThrough) check() {
	if p.rail.staged() != 0 {
		broken("passThrough: %d requests stay staged", p.rail.staged())
	}
	if p.probes.posted < 0 {
		broken("passThrough: %d probes posted", p.probes.posted)
	}
}
