package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// passThrough is a virtual queue pair over one physical queue pair. Requests are posted unchanged,
// with the user's own ID, and complete as the NIC reports. Nothing is tracked, so unsignaled
// requests that are outstanding are unknown, and Drain, Close and Reset must ask the NIC: see
// drainProbes.
//
// It holds no memory region either. It refuses a closed region, because NICs reuse keys: the
// region's key may name other memory by now.
//
// Invariant: probes.posted is not negative.
type passThrough struct {
	rail  *rail
	rails *railSet // contains only rail
	qp    verbs.QP // of rail
	line  *line
	cq    *VirtualCQ
	batch *sendBatch // of the CQ; holds translated requests
	qpNum uint32     // of the virtual queue pair
	imms  immOrder

	sends, sendsDone, recvs, recvsDone uint64 // accepted, and successfully completed, in total
	bytes                              uint64 // bytes of the sends
	// ended counts the completions of sends and receives, and the requests that were dropped
	// because the queue pair was reset or destroyed.
	ended uint64

	probes drainProbes
	failed func(*FailedError) // Config.Events.Failed

	observer *observer // nil without Config.Timing and Config.Trace
}

// outstanding returns how many requests were accepted and have no completion. Successful unsignaled
// sends count until a reset; spurious completions are not recognised.
func (p *passThrough) outstanding() int { return int(p.sends + p.recvs - p.ended) }

// restart begins a connection. Nothing is outstanding.
func (p *passThrough) restart() {
	p.abandon()
	p.probes = drainProbes{unsignaledBefore: p.sends - p.sendsDone}
	if p.observer != nil {
		p.observer.forget(p.sendsDone)
	}
}

// abandon drops everything outstanding: the queue pair was reset or destroyed and holds nothing.
func (p *passThrough) abandon() { p.ended = p.sends + p.recvs }

// postSends posts requests to the queue pair, as many at a time as the batch holds.
func (p *passThrough) postSends(wrs []SendWR) (n int, err error) {
	b := p.batch
	for n < len(wrs) && err == nil {
		var bytes uint64
		if bytes, err = p.fill(b, wrs, n); b.tail == 0 {
			break // nothing is left to post
		}
		accepted, refusal := p.qp.PostSend(b.wrs[:b.tail])
		if refusal != nil {
			return p.refusedAt(b, wrs, n, accepted, refusal)
		}
		n += accepted
		p.sends += uint64(accepted)
		p.bytes += bytes
	}
	return n, err
}

// postSend is postSends for one request, without the cost of the loop (2 ns).
func (p *passThrough) postSend(wrs []SendWR) (n int, err error) {
	b := p.batch
	b.clear()
	bytes := p.translate(b, &wrs[0])
	if bytes == 0 {
		if bytes, err = p.translateOther(b, 0, &wrs[0]); err != nil {
			return 0, err
		}
	}
	if n, err = p.qp.PostSend(b.wrs[:1]); err != nil {
		return p.refusedAt(b, wrs, 0, n, err)
	}
	p.sends++
	p.bytes += bytes
	return 1, nil
}

// postObserved is postSends with an observer.
func (p *passThrough) postObserved(wrs []SendWR) (n int, err error) {
	p.observer.forwarding(len(wrs))
	n, err = p.postSends(wrs)
	p.observer.forwarded(p.rail, wrs[:n], p.sends)
	return n, err
}

// fill fills the batch with requests from wrs[n] on, up to the first that is refused, and returns
// their bytes.
func (p *passThrough) fill(b *sendBatch, wrs []SendWR, n int) (bytes uint64, err error) {
	for b.clear(); n < len(wrs) && b.tail < len(b.wrs); n++ {
		length := p.translate(b, &wrs[n])
		if length == 0 {
			if length, err = p.translateOther(b, n, &wrs[n]); err != nil {
				break
			}
		}
		bytes += length
	}
	return bytes, err
}

// refusedAt handles the refusal of a post of the requests from wrs[first] on, of which the queue
// pair has accepted some. It returns what postSends returns.
func (p *passThrough) refusedAt(b *sendBatch, wrs []SendWR, first, accepted int, refusal error) (int, error) {
	p.sends += uint64(accepted)
	for i := range b.wrs[:accepted] {
		p.bytes += b.wrs[i].Bytes()
	}
	n := first + accepted
	if p.refused(refusal) {
		p.end(describeForwarded(&wrs[n], refusal))
	}
	return n, refuseSend(n, &wrs[n], refusal, "")
}

// refused handles the refusal of a post, and reports whether it ends the virtual queue pair: the
// device is gone.
func (p *passThrough) refused(err error) (ends bool) {
	p.rail.stats.refused++
	return errors.Is(err, verbs.ErrDeviceGone)
}

// end records a failure, and makes the NIC flush what it still holds. If the NIC refuses, polling
// tries again.
func (p *passThrough) end(f *FailedError) {
	p.fail(f)
	p.rail.toError()
	if p.rail.stopErr != nil {
		p.cq.touch(p.rail.vqp)
	}
}

// fail records the first error.
func (p *passThrough) fail(f *FailedError) (first bool) {
	if p.observer != nil && p.line.err == nil {
		f.Recent = p.observer.recent()
	}
	first = p.line.fail(0, f.on(p.qpNum, p.rail))
	if first && p.failed != nil {
		p.failed(f)
	}
	return first
}

// plainFlags are the flags that change nothing about the payload of a request.
const plainFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited

// translate checks a request of the plain kind, adds it to the batch and returns its length; it
// returns 0 for any other request, and for one that must be refused. A plain request has one piece
// of registered memory and is not an atomic: all fields that are not checked here have their zero
// values.
func (p *passThrough) translate(b *sendBatch, wr *SendWR) (length uint64) {
	l, r, s := wr.Local.Keys, wr.Remote.Keys, p.rails
	length = wr.Local.Length
	if wr.Opcode > verbs.OpRDMARead || int(wr.Flags&^plainFlags)|len(wr.SGL)|len(wr.Inline) != 0 ||
		wr.EveryRail || length-1 >= p.rail.maxMessage ||
		!wr.Local.usable(s.localDevs) || !l.open() {
		return 0
	}
	to := &b.wrs[b.tail]
	if !wr.Opcode.IsSend() {
		if wr.Relaxed || r == nil || s.peerDevs&^r.have != 0 || length > wr.Remote.Length ||
			!r.covers(wr.Remote.Addr, length) {
			return 0
		}
		to.RemoteAddr, to.RKey = wr.Remote.Addr, r.at(p.rail.peerDev)
	}
	b.tail++
	to.ID, to.Opcode, to.Flags, to.Imm = wr.ID, wr.Opcode, wr.Flags, p.imms.turn(wr.Imm)
	sgl := b.setSGL(to, 1)
	sgl[0] = verbs.SGE{Addr: wr.Local.Addr, Length: uint32(length), LKey: l.at(p.rail.device)}
	return length
}

// translateOther checks a request of any kind, adds it to the batch and returns its length.
func (p *passThrough) translateOther(b *sendBatch, i int, wr *SendWR) (uint64, error) {
	length, err := p.checkSend(i, wr)
	if err != nil {
		return 0, err
	}
	to := b.add()
	to.ID, to.Opcode, to.Flags, to.Imm = wr.ID, wr.Opcode, wr.Flags, p.imms.turn(wr.Imm)
	to.RemoteAddr, to.RKey = wr.Remote.Addr, 0
	if length != 0 && !wr.Opcode.IsSend() { // an empty transfer needs no key
		to.RKey = wr.Remote.Keys.at(p.rail.peerDev)
	}
	to.CompareAdd, to.Swap = wr.CompareAdd, wr.Swap
	rl := p.rail
	switch {
	case wr.Flags&verbs.SendInline != 0:
		b.setInline(to, wr.Inline)
	case len(wr.SGL) != 0:
		sgl := appendSGL(b.setSGL(to, rl.maxSGE)[:0], wr.SGL, rl.device)
		b.setSGL(to, len(sgl))
	case length == 0:
		b.setSGL(to, 0)
	default:
		sgl := b.setSGL(to, 1)
		sgl[0] = verbs.SGE{Addr: wr.Local.Addr, Length: uint32(length), LKey: wr.Local.Keys.at(rl.device)}
	}
	return length, nil
}

// checkSend checks a request for the queue pair, and returns its length.
func (p *passThrough) checkSend(i int, wr *SendWR) (length uint64, err error) {
	s := p.rails
	if !wr.wellFormed() {
		return 0, malformed(i, wr)
	}
	if length, err = p.checkMemory(i, wr); err != nil {
		return 0, err
	}
	if wr.Relaxed || wr.EveryRail {
		if err := s.checkOrder(i, wr, length); err != nil {
			return 0, err
		}
	}
	if length > p.rail.maxMessage || len(wr.SGL) > p.rail.maxSGE {
		return 0, p.tooLarge(i, wr, length)
	}
	return length, p.checkRemote(i, wr, length)
}

// checkMemory checks the local memory of a request, or its inline payload, and returns the length.
func (p *passThrough) checkMemory(i int, wr *SendWR) (uint64, error) {
	length, _, err := p.rails.checkMemory(i, wr, p.rails.localDevs)
	if err != nil {
		return 0, err
	}
	if !wr.Local.open() {
		return 0, refuseSend(i, wr, ErrClosed, wr.Local.closedText())
	}
	if bad := closedPiece(wr.SGL); bad >= 0 {
		return 0, refuseSend(i, wr, ErrClosed, wr.SGL[bad].closedText())
	}
	return length, nil
}

// checkRemote checks the remote side of a request.
func (p *passThrough) checkRemote(i int, wr *SendWR, length uint64) error {
	s, k := p.rails, wr.Remote.Keys
	switch {
	case wr.Opcode.IsSend():
		return nil
	case length == 0:
		return s.checkEmpty(i, wr)
	case k == nil || s.peerDevs&^k.have != 0 || length > wr.Remote.Length ||
		!k.covers(wr.Remote.Addr, length):
		return s.checkRemote(i, wr, length)
	case wr.Opcode.IsAtomic():
		return s.checkAtomic(i, wr, length)
	}
	return nil
}

// tooLarge returns the error of a request that is longer, or has more pieces, than one message may.
func (p *passThrough) tooLarge(i int, wr *SendWR, length uint64) error {
	if r := p.rail; length > r.maxMessage {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%d bytes in one message: %s carries at most %d; "+
			"use several queue pairs, which fragment", length, r.qp.Device().Name(), r.maxMessage))
	}
	return refuseSend(i, wr, verbs.ErrInvalid, fmt.Sprintf("%d pieces: the queue pair takes %d", len(wr.SGL),
		p.rail.maxSGE))
}

// postRecvs posts receives to the queue pair.
func (p *passThrough) postRecvs(wrs []RecvWR) (n int, err error) {
	b := &p.cq.recvs
	for n < len(wrs) && err == nil {
		first, count := n, 0
		for count < len(b.wrs) && n < len(wrs) {
			if b.wrs[count].SGL, err = p.translateRecv(n, &wrs[n], b.list(count)); err != nil {
				break
			}
			b.wrs[count].ID = wrs[n].ID
			count++
			n++
		}
		if count == 0 {
			break
		}
		accepted, refusal := p.qp.PostRecv(b.wrs[:count])
		p.recvs += uint64(accepted)
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

// checkRecv checks a receive with memory.
func (p *passThrough) checkRecv(i int, wr *RecvWR, pieces []Segment) error {
	if err := p.rails.checkRecv(i, wr, pieces); err != nil {
		return err
	}
	if bad := closedPiece(pieces); bad >= 0 {
		return refuseRecv(i, wr, ErrClosed, pieces[bad].closedText())
	}
	return nil
}

// completed passes completions to the user, from wcs[i] up to the first of another queue pair, and
// returns the index of that. It clears undefined fields.
func (p *passThrough) completed(wcs []verbs.WC, i int, out *sink) int {
	for num := wcs[i].QPNum; i < len(wcs); i++ {
		wc := &wcs[i]
		if wc.QPNum != num {
			break
		}
		if (wc.Status != verbs.StatusSuccess || p.probes.posted != 0) && p.completedOther(wc, out) {
			continue
		}
		v := out.slot()
		v.ID, v.Status, v.Opcode, v.VendorErr, v.QPNum = wc.ID, verbs.StatusSuccess, wc.Opcode, 0, p.qpNum
		v.Imm, v.Flags, v.ByteLen = 0, 0, 0
		if !wc.Opcode.IsRecv() {
			p.sendsDone++
			p.ended++
			continue
		}
		p.recvsDone++
		p.ended++
		v.ByteLen = uint64(wc.ByteLen)
		if wc.Flags&verbs.WCWithImm != 0 {
			v.Imm, v.Flags = p.imms.turn(wc.Imm), verbs.WCWithImm
		}
	}
	return i
}

// completedObserved is completed with an observer.
func (p *passThrough) completedObserved(wcs []verbs.WC, i int, out *sink) int {
	end := i
	for p.observer.events && end < len(wcs) && wcs[end].QPNum == wcs[i].QPNum {
		end++
	}
	if p.probes.posted == 0 {
		p.observer.returned(p.rail, wcs[i:end])
	}
	end = p.completed(wcs, i, out)
	p.observer.forwardedDone(p.sendsDone)
	return end
}

// completedOther handles a completion of a probe, or an unsuccessful one; it reports false for any
// other.
func (p *passThrough) completedOther(wc *verbs.WC, out *sink) bool {
	if p.probes.owns(wc) {
		p.probeCompleted(wc)
		return true
	}
	if wc.Status == verbs.StatusSuccess {
		return false
	}
	p.ended++
	*out.slot() = WC{ID: wc.ID, Status: wc.Status, Opcode: verbs.WCUnknown, VendorErr: wc.VendorErr,
		QPNum: p.qpNum}
	if p.line.flushAsked(wc.Status) {
		return true // a receive under Drain: all sends have ended, or a failure is recorded
	}
	p.rail.stats.errors++
	f := noRequest(wc.Status)
	f.HasID, f.ID, f.VendorErr = true, wc.ID, wc.VendorErr
	p.fail(f)
	return true
}

// check panics if the invariant does not hold.
func (p *passThrough) check() {
	if p.probes.posted < 0 {
		broken("passThrough: %d probes posted", p.probes.posted)
	}
}
