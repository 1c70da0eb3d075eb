package rc

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"ibverbx/verbs"
)

// The model of the simulation: what the requests of an end do to the memory and the receives of
// its peer, packet by packet, and which completions and events that makes.

func (a *actor) mtu() int { return a.w.shape.mtu.Bytes() }

// carryOut lets the model do what the peer has done, by the number that it expects now: the model's
// memory then has to be the peer's.
func (a *actor) carryOut() {
	p := a.peer.e.q
	if a.peer.dead != alive || !p.Receptive() && p.State != verbs.StateErr {
		return
	}
	for a.carried < p.resp.expected && a.w.broken == nil {
		if len(a.stream) == 0 {
			a.w.violate("nothing from nowhere", "a packet was carried out that nobody has sent")
			return
		}
		r := &a.stream[0]
		if verdict := a.verdict(r); verdict != verbs.StatusSuccess && r.wr.Opcode != verbs.OpRDMARead {
			a.w.violate("rights", "%v %d was carried out, in spite of %v", r.wr.Opcode, r.wr.ID, verdict)
			return
		}
		a.packet(r, int(a.carried-r.first))
		if a.carried++; a.carried == r.first+seq(r.packets) {
			a.stream = a.stream[1:]
		}
	}
}

// packet carries out a packet of a request.
func (a *actor) packet(r *request, i int) {
	p, op := a.peer, r.wr.Opcode
	last := i+1 == r.packets
	piece := r.source
	if !op.IsAtomic() {
		piece = piece[min(i*a.mtu(), len(piece)):min((i+1)*a.mtu(), len(piece))]
	}
	switch {
	case op.IsAtomic():
		binary.NativeEndian.PutUint64(p.shadow[counterArea:], r.found+1)
	case op == verbs.OpRDMARead:
	case op.IsSend():
		if p.used == len(p.recvs) {
			a.w.violate("receives", "SEND %d was carried out without a receive", r.wr.ID)
			return
		}
		copy(p.shadow[p.recvs[p.used].off+p.filled:], piece)
		p.filled += len(piece)
	default:
		copy(p.shadow[r.target+i*a.mtu():], piece)
	}
	if last && (op.IsSend() || op.HasImm()) {
		if p.used == len(p.recvs) {
			a.w.violate("receives", "%v %d was carried out without a receive", op, r.wr.ID)
			return
		}
		p.due = append(p.due, arrival{p.recvs[p.used].id, r.size, op, r.wr.Imm})
		p.used++
		p.filled = 0
	}
}

// verdict is what the peer must say to the next packet of a request, success if nothing.
func (a *actor) verdict(r *request) verbs.Status {
	p, op := a.peer, r.wr.Opcode
	i := int(a.carried - r.first)
	need := verbs.AccessFlags(0)
	switch {
	case op == verbs.OpRDMARead:
		need = verbs.AccessRemoteRead
	case op.IsAtomic():
		need = verbs.AccessRemoteAtomic
	case !op.IsSend():
		need = verbs.AccessRemoteWrite
	}
	n := min(r.size-min(r.size, i*a.mtu()), a.mtu())
	switch {
	case i == 0 && a.w.shape.access[p.e.id]&need != need:
		return verbs.StatusRemInvReqErr
	case op.IsSend() || op.HasImm() && i+1 == r.packets:
		if p.used == len(p.recvs) {
			return verbs.StatusSuccess // not ready
		}
		recv := &p.recvs[p.used]
		switch {
		case !op.IsSend():
		case p.filled+n > recv.size:
			return verbs.StatusRemInvReqErr
		case recv.bad && n > 0 && p.filled == 0: // its first element
			return verbs.StatusRemOpErr
		default:
			return verbs.StatusSuccess
		}
	}
	switch {
	case op.IsAtomic() && r.wr.RemoteAddr%8 != 0:
		return verbs.StatusRemInvReqErr
	case !op.IsSend() && r.size != 0 && (r.badKey || r.victim && p.victim == nil):
		return verbs.StatusRemAccessErr
	}
	return verbs.StatusSuccess
}

// repeats checks that all is sent again, also what the peer had kept, from the request on for which
// the receiver was not ready.
func (a *actor) repeats() {
	r := &a.e.q.req
	if r.refused {
		a.ready = 0 // it is not asked again
	}
	for s := max(a.again, r.una); a.again != 0 && !r.refused && s < r.next; s++ {
		if state := r.at(s).state; state == kept || state == flying && r.at(s).sentAt != a.w.now {
			a.w.violate("receivers that are not ready", "%d behind the oldest is not sent again", s-r.una)
		}
	}
	a.again = 0
}

// observe takes the completions and events that there are, and compares them with what must be.
func (a *actor) observe() {
	a.hear()
	if a.dead == alive && a.e.q.State == verbs.StateSQD && a.e.q.req.next > a.limit {
		a.w.violate("SQD", "a request has begun")
	}
	wcs := a.e.poll()
	for i := range wcs {
		if a.w.broken != nil {
			return
		}
		// The opcode of a failed completion means nothing: only the identity tells the queue.
		if wc := &wcs[i]; len(a.recvs) > 0 && wc.ID == a.recvs[0].id {
			a.received(wc)
		} else {
			a.sent(wc)
		}
	}
	if a.w.broken != nil {
		return
	}
	if len(a.due) != 0 {
		a.w.violate("receives", "no completion of receive %d", a.due[0].id)
	}
	if a.dead != alive {
		a.skipUnsignaled(0)
		if a.e.q.State != verbs.StateErr || len(a.posted)+len(a.recvs) != 0 {
			a.w.violate("flush", "in %v, with %d requests and %d receives", a.e.q.State, len(a.posted),
				len(a.recvs))
		}
	} else if a.e.q.State == verbs.StateErr {
		a.w.violate("errors", "in ERR without a reason")
	}
}

// events checks the events: one for a queue pair that refuses what it is asked for, unless a
// receive fails with it.
func (a *actor) events() {
	for _, event := range a.e.raise {
		status := a.peer.refusedNow(event)
		want := verbs.EventQPReqErr
		if status == verbs.StatusRemAccessErr {
			want = verbs.EventQPAccessErr
		}
		if a.peer.dead != alive && a.victim == nil && event == verbs.EventQPAccessErr {
			status, want = verbs.StatusRemAccessErr, event // an answer to a read that has been flushed
		}
		if a.dead != alive || event != want || status == verbs.StatusSuccess {
			a.w.violate("events", "%v, where the verdict is %v", event, status)
			return
		}
		a.dead = asResponder
	}
	a.e.raise = a.e.raise[:0]
}

// refusedNow notes that the peer refuses the next packet of this end with an event, and returns the
// status that this must have.
func (a *actor) refusedNow(event verbs.EventType) verbs.Status {
	// A read whose answer is under way may be refused because its region is gone since.
	for i := range a.posted {
		r := &a.posted[i]
		if event == verbs.EventQPAccessErr && r.wr.Opcode == verbs.OpRDMARead && r.victim &&
			a.peer.victim == nil && r.first < a.carried {
			a.refused, a.culprit = verbs.StatusRemAccessErr, r.wr.ID
			return a.refused
		}
	}
	return a.refusedNext()
}

// refusedNext is refusedNow where the next packet must be the one.
func (a *actor) refusedNext() verbs.Status {
	if len(a.stream) == 0 {
		return verbs.StatusSuccess
	}
	a.refused, a.culprit = a.verdict(&a.stream[0]), a.stream[0].wr.ID
	return a.refused
}

// received checks the completion of the oldest receive.
func (a *actor) received(wc *verbs.WC) {
	r, verdict := a.recvs[0], verbs.StatusSuccess
	if wc.Status != verbs.StatusSuccess && wc.Status != verbs.StatusWRFlushErr {
		verdict = a.peer.refusedNext()
	}
	a.recvs = a.recvs[1:]
	switch wc.Status {
	case verbs.StatusSuccess:
		if len(a.due) == 0 || a.due[0].id != r.id {
			a.w.violate("receives", "receive %d completes with what nobody sent", r.id)
			return
		}
		a.used--
		d := a.due[0]
		a.due = a.due[1:]
		wantOp := verbs.WCRecv
		if !d.op.IsSend() {
			wantOp = verbs.WCRecvRDMAWithImm
		}
		if int(wc.ByteLen) != d.size || d.op.HasImm() != (wc.Flags == verbs.WCWithImm) ||
			d.op.HasImm() && wc.Imm != d.imm || wc.Opcode != wantOp {
			a.w.violate("receives", "receive %d: %+v, want %+v", r.id, wc, d)
		}
	case verbs.StatusWRFlushErr:
		a.skipUnsignaled(0)
		a.flushed = true
		// Of a requester that fails, requests are flushed before receives.
		if a.dead == alive || len(a.posted) != 0 {
			a.w.violate("flush", "receive %d is flushed", r.id)
		}
	default:
		want := verbs.StatusSuccess
		switch verdict {
		case verbs.StatusRemInvReqErr:
			want = verbs.StatusLocLenErr
		case verbs.StatusRemOpErr:
			want = verbs.StatusLocProtErr
		}
		if a.dead != alive || wc.Status != want {
			a.w.violate("errors", "receive %d: %v, want %v", r.id, wc.Status, want)
		}
		a.dead = asResponder
		a.used = 0
	}
}

// sent checks the completion of a request.
func (a *actor) sent(wc *verbs.WC) {
	a.skipUnsignaled(wc.ID)
	if len(a.posted) == 0 || a.posted[0].wr.ID != wc.ID {
		a.w.violate("order", "completion of %d: %v", wc.ID, wc.Status)
		return
	}
	r := a.posted[0]
	a.posted = a.posted[1:]
	switch wc.Status {
	case verbs.StatusSuccess:
		if a.dead != alive || r.unsigned {
			a.w.violate("order", "%d completes, unsignaled %v, after %v", wc.ID, r.unsigned, a.dead)
		}
		a.complete(&r)
		if wc.Opcode != r.wr.Opcode.WCOpcode() {
			a.w.violate("order", "%d: %v", wc.ID, wc.Opcode)
		}
	case verbs.StatusWRFlushErr:
		a.flushed = true
		if a.dead == alive {
			a.w.violate("flush", "%d is flushed", wc.ID)
		}
	default:
		if why := a.justify(&r, wc.Status); a.dead != alive || why != "" {
			a.w.violate("errors", "%v %d: %v: %s", r.wr.Opcode, wc.ID, wc.Status, why)
		}
		a.dead = asRequester
	}
}

// skipUnsignaled ends the requests without a completion before that with an ID: before anything was
// flushed, they ended well.
func (a *actor) skipUnsignaled(id uint64) {
	for !a.flushed && len(a.posted) > 0 && a.posted[0].unsigned && a.posted[0].wr.ID != id &&
		a.w.broken == nil {
		a.complete(&a.posted[0])
		a.posted = a.posted[1:]
	}
}

// complete checks that a request that ended well was carried out.
func (a *actor) complete(r *request) {
	op := r.wr.Opcode
	if a.carried < r.first+seq(r.packets) && a.peer.dead == alive || r.local != verbs.StatusSuccess ||
		r.badKey && r.size != 0 {
		a.w.violate("completions", "%v %d completes and was not carried out: %v, key %v, %d bytes", op,
			r.wr.ID, r.local, r.badKey, r.size)
		return
	}
	want := r.source
	if op.IsAtomic() {
		want = binary.NativeEndian.AppendUint64(nil, r.found)
	}
	if op.IsAtomic() || op == verbs.OpRDMARead {
		if !bytes.Equal(a.e.mem[r.land:][:r.size], want) {
			a.w.violate("answers", "%v %d of %d bytes: wrong bytes", op, r.wr.ID, r.size)
			return
		}
		a.landed = append(a.landed, landing{r.land, want})
		if len(a.landed) > simDepth {
			a.landed = a.landed[1:]
		}
	}
}

// justify returns why a request may not end with a status, "" if it may.
func (a *actor) justify(r *request, s verbs.Status) string {
	q := a.e.q
	switch s {
	case verbs.StatusLocProtErr:
		if r.local == s || r.mine && a.victim == nil {
			return ""
		}
	case verbs.StatusRemAccessErr, verbs.StatusRemInvReqErr, verbs.StatusRemOpErr:
		// With a read of a region that is gone, two may be refused, and the read comes first.
		isGone := r.wr.Opcode == verbs.OpRDMARead && r.size != 0 && r.victim && a.peer.victim == nil
		switch {
		case a.refused == s && a.culprit == r.wr.ID,
			s == verbs.StatusRemAccessErr && (a.refused == s && r.size != 0 && r.badKey ||
				a.refused != verbs.StatusSuccess && isGone):
			return ""
		}
		return fmt.Sprintf("the peer refused %d with %v", a.culprit, a.refused)
	case verbs.StatusRNRRetryExcErr:
		if q.Attr.RNRRetry != verbs.RNRRetryForever && a.mostRNRs > int(q.Attr.RNRRetry) &&
			(r.wr.Opcode.IsSend() || r.wr.Opcode.HasImm()) {
			return ""
		}
		return fmt.Sprintf("%d RNR NAKs in a row, %d retries", a.mostRNRs, q.Attr.RNRRetry)
	case verbs.StatusRetryExcErr:
		if since := a.w.now - a.progress; since < a.patience() {
			return fmt.Sprintf("after %d, its patience is %d", since, a.patience())
		}
		w := a.w
		if w.perfect && a.refused != verbs.StatusSuccess {
			return fmt.Sprintf("the peer refused %d with %v", a.culprit, a.refused)
		}
		if r.victim && r.wr.Opcode == verbs.OpRDMARead && a.peer.victim == nil {
			return "" // asked for again, after the region was closed: there is no answer any more
		}
		if a.peer.dead == alive && w.outages == 0 && w.vanish == 0 && w.harm.lose < 0.05 &&
			w.shape.retries == 7 && w.shape.rate == 0 {
			return "the peer and the network are well"
		}
		return ""
	}
	return "no reason"
}

// finish checks the end of a connection.
func (a *actor) finish() {
	for i := range a.posted {
		if r := &a.posted[i]; !r.unsigned {
			a.w.violate("completions", "no completion of %v %d", r.wr.Opcode, r.wr.ID)
		}
		a.complete(&a.posted[i])
	}
	if a.w.broken != nil {
		return
	}
	if a.dead == alive && a.peer.dead == alive && len(a.stream) != 0 {
		a.w.violate("completions", "%d requests ended and were not carried out", len(a.stream))
	}
	for _, l := range a.landed {
		if !bytes.Equal(a.e.mem[l.at:][:len(l.want)], l.want) {
			a.w.violate("answers", "what has landed was overwritten")
		}
	}
	if string(a.e.mem[:watched]) != string(a.shadow) {
		a.w.violate("memory", "%s", a.difference())
	}
}

// difference says where the memory differs from the model's.
func (a *actor) difference() string {
	for i := range a.shadow {
		if a.e.mem[i] != a.shadow[i] {
			return fmt.Sprintf("end %d, byte %d", a.e.id, i)
		}
	}
	return ""
}
