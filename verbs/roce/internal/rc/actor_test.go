package rc

import (
	"encoding/binary"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// actor is a program at an end, and the model of what must come of what it asks for.
type actor struct {
	notified int64 // when the last CNP left
	echoes   bool  // the next answer must tell of a mark
	answered seq   // behind the answers that have left
	w        *world
	e        *end
	peer     *actor
	victim   *nic.MR // the region that may be closed; nil once it is
	left     int     // requests to post
	id       uint64
	at       [4]int // next free byte of the areas that this end fills
	counter  uint64 // value of the peer's counter when all that was posted is carried out

	posted  []request // that have not ended, oldest first
	stream  []request // that the peer has not carried out wholly, oldest first
	carried seq       // the number up to which it has
	end     seq       // of what was posted
	recvs   []receive // that have not ended, oldest first
	used    int       // of them, those that the model has given a message
	filled  int       // bytes in the next one
	due     []arrival // completions of receives that must be there
	landed  []landing // what has landed in this end's memory
	shadow  []byte    // what the memory before watched must be

	dead     death
	flushed  bool         // something was
	refused  verbs.Status // the peer refused a request of this end with it
	culprit  uint64       // which
	rnrs     int          // RNR NAKs that arrived since the last progress
	fresh    int          // in this step
	mostRNRs int          // the most that rnrs was
	progress int64        // when the peer was last heard, or began to be awaited
	heard    int          // a sum that changes with progress
	waited   bool         // something was awaited
	ready    int64        // until when the receiver of the peer is not ready
	again    seq          // the receiver of the peer was found not ready for it in this step
	stop     seq          // the peer has refused a request: no number from it on may leave; 0 is none
	limit    seq          // in SQD: no number from it on may leave
}

// death is how an end came to ERR.
type death uint8

const (
	alive death = iota
	asRequester
	asResponder
)

type request struct {
	wr       verbs.SendWR
	first    seq
	packets  int
	size     int
	source   []byte // what it carries
	target   int    // of a write: where at the peer
	land     int    // of a read: where here
	victim   bool   // at the peer it names the region that may be closed
	mine     bool   // so it does here
	local    verbs.Status
	badKey   bool
	unsigned bool   // no completion
	found    uint64 // of an atomic: what it must find
	fenced   bool
}

type receive struct {
	id   uint64
	off  int
	size int
	bad  bool
}

type arrival struct {
	id   uint64
	size int
	op   verbs.Opcode
	imm  uint32
}

type landing struct {
	at   int
	want []byte
}

func newActor(w *world, e *end) *actor {
	a := &actor{w: w, e: e, shadow: make([]byte, watched), victim: new(nic.MR)}
	for j := readArea; j < simMemory; j += 8 {
		binary.LittleEndian.PutUint64(e.mem[j:], w.rng.Uint64())
	}
	e.must(a.victim.Register(&e.pd, e.mem[victimArea:], verbs.AccessAll))
	return a
}

// begin begins a connection.
func (a *actor) begin(psn uint32) {
	*a = actor{w: a.w, e: a.e, peer: a.peer, victim: a.victim, left: 12 + a.w.rng.IntN(20), id: a.id,
		at:     a.at,
		shadow: append([]byte(nil), a.e.mem[:watched]...), carried: firstSeq(psn), end: firstSeq(psn)}
	a.counter = binary.NativeEndian.Uint64(a.peer.e.mem[counterArea:])
}

// take takes n bytes of an area, in turn.
func (a *actor) take(area, n int) int {
	if a.at[area]+n > areaLen {
		a.at[area] = 0
	}
	off := a.at[area]
	a.at[area] += n
	return off
}

// pieces is memory from an offset on, in up to four pieces.
func (a *actor) pieces(off, n int, mr *nic.MR) (sgl []verbs.SGE) {
	piece := func(n int) {
		sgl = append(sgl, verbs.SGE{Addr: a.e.mr.Addr() + uint64(off), Length: uint32(n), LKey: mr.LKey()})
		off += n
	}
	for k := a.w.rng.IntN(4); k > 0 && n > 1; k-- {
		cut := 1 + a.w.rng.IntN(n-1)
		piece(cut)
		n -= cut
	}
	piece(n)
	return sgl
}

var simOps = []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm,
	verbs.OpRDMARead, verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp}

// post posts a random request.
func (a *actor) post() {
	w, rng := a.w, a.w.rng
	if a.left == 0 || a.dead != alive || a.e.q.CheckSend(&verbs.SendWR{Opcode: verbs.OpSend}) != nil {
		return // the queue may be full of requests that have no completion
	}
	op := w.ops[rng.IntN(len(w.ops))]
	size := rng.IntN(300)
	switch {
	case op.IsAtomic():
		size = 8
	case rng.IntN(3) == 0:
		size = rng.IntN(simMax)
	}
	a.id++
	r := request{size: size, wr: verbs.SendWR{ID: a.id, Opcode: op, Imm: rng.Uint32(),
		RKey: a.peer.e.mr.RKey()}}
	if r.unsigned = rng.IntN(4) == 0 && len(a.posted) < simDepth-2; !r.unsigned {
		r.wr.Flags |= verbs.SendSignaled
	}
	if r.fenced = rng.IntN(8) == 0; r.fenced {
		r.wr.Flags |= verbs.SendFence
	}
	if op.IsSend() && rng.IntN(2) == 0 {
		r.wr.Flags |= verbs.SendSolicited
	}
	a.aim(&r)
	a.spoil(&r)
	a.left--
	r.first = a.end
	r.packets = 1
	if !op.IsAtomic() {
		r.packets = max((size+w.shape.mtu.Bytes()-1)/w.shape.mtu.Bytes(), 1)
	}
	a.end += seq(r.packets)
	a.posted, a.stream = append(a.posted, r), append(a.stream, r)
	a.e.send(r.wr)
}

// aim chooses the memory of a request, here and at the peer.
func (a *actor) aim(r *request) {
	rng, p := a.w.rng, a.peer
	op := r.wr.Opcode
	if op == verbs.OpRDMARead || op.IsAtomic() {
		r.land = landArea + a.take(0, r.size)
		r.wr.SGL = a.pieces(r.land, r.size, &a.e.mr)
		switch {
		case op.IsAtomic():
			r.wr.RemoteAddr = p.e.mr.Addr() + counterArea
			r.wr.CompareAdd, r.wr.Swap = 1, a.counter+1
			if op == verbs.OpAtomicCmpAndSwp {
				r.wr.CompareAdd = a.counter
			}
			r.found = a.counter
			a.counter++
		default:
			from := readArea + rng.IntN(areaLen-r.size)
			if r.victim = p.victim != nil && rng.IntN(4) == 0; r.victim {
				from += victimArea - readArea
				r.wr.RKey = p.victim.RKey()
			}
			r.wr.RemoteAddr = p.e.mr.Addr() + uint64(from)
			r.source = append(r.source, p.e.mem[from:from+r.size]...)
		}
		return
	}
	off := sourceArea + a.take(1, r.size)
	for i := range r.size {
		a.e.mem[off+i] = byte(rng.Uint32())
	}
	r.source = append(r.source, a.e.mem[off:off+r.size]...)
	region := &a.e.mr
	switch {
	case r.size <= 64 && rng.IntN(2) == 0:
		r.wr.Flags |= verbs.SendInline
		r.wr.Inline = r.source
	case a.victim != nil && rng.IntN(8) == 0:
		r.mine = true
		region = a.victim
		off = victimArea + rng.IntN(areaLen-r.size)
		r.source = append(r.source[:0], a.e.mem[off:off+r.size]...)
		fallthrough
	default:
		r.wr.SGL = a.pieces(off, r.size, region)
	}
	if !op.IsSend() {
		r.target = writeArea + rng.IntN(areaLen-r.size)
		r.wr.RemoteAddr = p.e.mr.Addr() + uint64(r.target)
	}
}

// spoil makes some requests wrong.
func (a *actor) spoil(r *request) {
	if !a.w.chance(a.w.bad) {
		return
	}
	op := r.wr.Opcode
	switch a.w.rng.IntN(3) {
	case 0:
		if !op.IsSend() {
			r.badKey = true
			r.wr.RKey ^= 0x5a00
		}
	case 1:
		if r.size != 0 && r.wr.Flags&verbs.SendInline == 0 {
			r.wr.SGL[0].LKey ^= 0x5a00
			r.local = verbs.StatusLocProtErr
		}
	case 2:
		if op.IsAtomic() {
			r.wr.RemoteAddr++
		}
	}
}

// receive posts a receive for messages of the peer.
func (a *actor) receive() {
	if a.dead != alive || len(a.recvs) >= simDepth {
		return
	}
	a.id++
	r := receive{id: a.id, size: simMax}
	if a.w.chance(a.w.bad) {
		r.size = a.w.rng.IntN(simMax)
	}
	r.off = recvArea + a.take(2, r.size)
	wr := verbs.RecvWR{ID: r.id, SGL: a.pieces(r.off, r.size, &a.e.mr)}
	if r.bad = a.w.chance(a.w.bad) && r.size > 0; r.bad {
		wr.SGL[0].LKey ^= 0x5a00
	}
	a.recvs = append(a.recvs, r)
	a.e.recv(wr)
}

// pause takes the end to SQD, and back.
func (a *actor) pause() {
	w := a.w
	if a.dead != alive {
		return
	}
	if a.e.q.State == verbs.StateSQD {
		if w.rng.IntN(30) == 0 {
			a.limit = 0
			a.e.modify(w.now, verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState)
		}
		return
	}
	if a.e.q.State != verbs.StateRTS || !w.chance(w.pauses) {
		return
	}
	a.e.modify(w.now, verbs.QPAttr{State: verbs.StateSQD}, verbs.QPAttrState)
	a.limit = a.begun()
	w.paused = w.paused || a.e.q.req.quiet != 0
}

// begun is the number behind those of the requests of which something has left.
func (a *actor) begun() seq {
	next := a.e.q.req.next
	for _, r := range a.posted {
		if r.first < next && next < r.first+seq(r.packets) {
			return r.first + seq(r.packets)
		}
	}
	return next
}

// closeRegion closes the region that may be.
func (a *actor) closeRegion() {
	if a.victim == nil || !a.w.chance(a.w.closings) {
		return
	}
	a.e.must(a.victim.Close())
	a.victim = nil
}
