package soft

import (
	"slices"

	"ibverbx/verbs"
)

// moment is the stage of a request at which a fault strikes it.
type moment uint8

const (
	atPost moment = iota + 1
	atPostRecv
	atExecution
	atArrival    // a message is about to consume a receive
	atCompletion // its completion is about to be raised
)

// retire removes the injection from the list of those that may strike.
func (i *Injection) retire() {
	if at := slices.Index(i.f.injections, i); at >= 0 {
		i.f.injections = slices.Delete(i.f.injections, at, at+1)
	}
}

// concerns reports whether the injection strikes at a moment and applies to q.
func (i *Injection) concerns(at moment, q *QP) bool {
	return int(i.fault.Kind) < len(faultKindText) && faultKindText[i.fault.Kind].at == at &&
		(i.fault.Device == nil || i.fault.Device == q.dev) &&
		(i.fault.QPNum == 0 || i.fault.QPNum == q.core.Num)
}

// matches reports whether the fault's Match selects request seq of q; without Match it selects
// every request.
func (i *Injection) matches(q *QP, seq uint64) bool {
	if i.fault.Match == nil {
		return true
	}
	wr := q.request(seq)
	return i.fault.Match(&wr)
}

// hit counts a matching request and reports whether the fault strikes it. This may shorten the list
// of injections.
func (i *Injection) hit() bool {
	if i.skip > 0 {
		i.skip--
		return false
	}
	i.hits++
	if i.left > 0 {
		if i.left--; i.left == 0 {
			i.retire()
		}
	}
	return true
}

// struckBy returns the injection that strikes request seq of q at a moment, or nil. about is the
// queue pair that the injection must name. The caller carries out its effect on others, because
// nothing may change the list during the walk.
func (f *Fabric) struckBy(at moment, about, q *QP, seq uint64) *Injection {
	for _, i := range f.injections {
		if i.concerns(at, about) && i.matches(q, seq) && i.hit() {
			return i
		}
	}
	return nil
}

// strike compares the head request of q with the injections, once. It returns false if the request
// does not execute now: it is held back, has failed, or was flushed. In the last case there is no
// head request any more.
func (f *Fabric) strike(q *QP) bool {
	r := &q.run
	if r.faultSeq == q.core.SQ.Executed+1 {
		return true
	}
	r.faultSeq = q.core.SQ.Executed + 1
	r.fault = nil
	i := f.struckBy(atExecution, q, q, q.core.SQ.Executed)
	if i == nil {
		return true
	}
	switch i.fault.Kind {
	case FailSend:
		f.fail(q, i.fault.Status, i.fault.VendorErr)
		return false
	case FailAfterData, PlaceLate:
		r.fault = i
	case StallQP:
		r.stall = i
		return false
	case Delay:
		r.wait = waitDelay
		f.engine.retryAfter(q, max(i.fault.Delay, 1))
		return false
	case FailQP:
		f.failWithEvent(q, verbs.EventQPFatal)
		return false
	case CutLink:
		if !q.dev.linkDown {
			q.dev.setLink(false, i)
		}
	case KillNIC:
		q.dev.kill(i)
		return false
	case Rewrite:
		q.rewrite(i.fault.Rewrite)
	case ArriveLate:
		f.strand(q, i)
		return false
	}
	return true
}

// strikeReceive compares a message of q that is about to consume a receive of p with the
// injections.
func (f *Fabric) strikeReceive(q, p *QP) *Injection {
	return f.struckBy(atArrival, p, q, q.core.SQ.Executed-1)
}

// strikeCompletion reports whether the completion of request seq of q overruns its queue.
func (f *Fabric) strikeCompletion(q *QP, seq uint64) bool {
	return f.struckBy(atCompletion, q, q, seq) != nil
}

// refuse compares a request that is being posted with the injections.
func (f *Fabric) refuse(q *QP, wr *verbs.SendWR) error {
	for _, i := range f.injections {
		if !i.concerns(atPost, q) {
			continue
		}
		if seen := *wr; (i.fault.Match == nil || i.fault.Match(&seen)) && i.hit() {
			return q.core.Err("post send", i.fault.Err, "injected")
		}
	}
	return nil
}

// refuseRecv compares a receive that is being posted with the injections.
func (f *Fabric) refuseRecv(q *QP) error {
	for _, i := range f.injections {
		if i.concerns(atPostRecv, q) && i.hit() {
			return q.core.Err("post recv", i.fault.Err, "injected")
		}
	}
	return nil
}

// rewrite alters the head request permanently: a retry sends the altered one. The slot itself can
// change, because the completion of a send shows none of the fields that may change.
func (q *QP) rewrite(change func(*verbs.SendWR)) {
	if change == nil {
		return
	}
	wr := q.request(q.core.SQ.Executed)
	// The originals belong to the queue and must not change.
	wr.SGL, wr.Inline = slices.Clone(wr.SGL), slices.Clone(wr.Inline)
	change(&wr)
	s := q.head()
	s.Imm, s.RKey, s.RemoteAddr = wr.Imm, wr.RKey, wr.RemoteAddr
	if withoutImm(wr.Opcode) == withoutImm(s.Opcode) {
		s.Opcode = wr.Opcode
	}
}

// withoutImm returns the variant of an operation without an immediate.
func withoutImm(o verbs.Opcode) verbs.Opcode {
	switch o {
	case verbs.OpRDMAWriteWithImm:
		return verbs.OpRDMAWrite
	case verbs.OpSendWithImm:
		return verbs.OpSend
	}
	return o
}

// request rebuilds the work request of a slot.
func (q *QP) request(seq uint64) verbs.SendWR {
	s := q.core.SQ.At(seq)
	wr := verbs.SendWR{
		ID:         s.ID,
		Opcode:     s.Opcode,
		Flags:      s.Flags,
		Imm:        s.Imm,
		RKey:       s.RKey,
		RemoteAddr: s.RemoteAddr,
		CompareAdd: s.CompareAdd,
		Swap:       s.Swap,
	}
	if s.Flags&verbs.SendInline != 0 {
		wr.Inline = q.core.SQ.Inlined(seq)
	} else {
		wr.SGL = q.core.SQ.SGL(seq)
	}
	return wr
}
