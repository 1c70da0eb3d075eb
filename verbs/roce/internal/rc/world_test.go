package rc

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
	"ibverbx/verbs/roce/internal/wire"
)

// The memory of an end: what its peer writes to, where it receives, a counter, what the peer reads,
// what it sends from, where answers land, and the same again that lies in a region that may be
// closed.
const (
	areaLen     = 20 << 10
	writeArea   = 0
	recvArea    = writeArea + areaLen
	counterArea = recvArea + areaLen
	readArea    = counterArea + 64
	watched     = readArea // what lies before it changes by what the peer asks for alone
	sourceArea  = readArea + areaLen
	landArea    = sourceArea + areaLen
	victimArea  = landArea + areaLen
	simMemory   = victimArea + areaLen
)

const (
	simDepth = 8
	simMax   = 1900 // the longest message, bytes
)

// world is a run of the simulation.
type world struct {
	*network
	seed   uint64
	rng    *rand.Rand
	shape  shape
	step   int
	actors [2]*actor
	late   []datagram // copies of some packets, for the next connection
	broken *broken

	ops      []verbs.Opcode
	bad      int   // one request in so many is wrong; 0 is none
	outages  int   // one step in so many begins a blackout; 0 is none
	pauses   int   // one step in so many takes an end to SQD
	closings int   // one step in so many closes a region
	vanish   int   // the step in which the network goes down for good; 0 is never
	perfect  bool  // the network harms nothing
	most     int64 // the longest blackout
}

// violate notes a broken promise, unless one was broken before.
func (w *world) violate(rule, format string, args ...any) {
	if w.broken == nil {
		w.broken = &broken{w.seed, w.step, rule, fmt.Sprintf(format, args...) +
			fmt.Sprintf("\n%v\n%v", w.ends[0], w.ends[1])}
	}
}

// chance is one in n; 0 is never.
func (w *world) chance(n int) bool { return n != 0 && w.rng.IntN(n) == 0 }

// newWorld draws a world.
func newWorld(t *testing.T, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 99))
	w := &world{seed: seed, rng: rng}
	mtus := []verbs.MTU{verbs.MTU256, verbs.MTU256, verbs.MTU512, verbs.MTU1024}
	w.shape = shape{ours: rng.IntN(2) == 0, memory: simMemory, reads: uint8(1 + rng.IntN(6)), rndSeed: seed,
		timeout: uint8(10 + rng.IntN(4)), cqDepth: 256, mtu: mtus[rng.IntN(len(mtus))], queueDepth: simDepth}
	s := &w.shape
	if !s.ours { // both find out that they are ours, one is and the peer ignores it, or neither
		s.announce = [2]bool{seed*2654435761>>20&3 != 0, seed*2654435761>>22&3 != 0}
	}
	if rng.IntN(2) == 0 {
		s.retries, s.rnrRetry = uint8(1+rng.IntN(7)), uint8(1+rng.IntN(7))
	}
	if rng.IntN(8) == 0 {
		s.rate = 1e6 * float64(1+rng.IntN(100))
	}
	if rng.IntN(12) == 0 {
		rights := []verbs.AccessFlags{verbs.AccessRemoteRead, verbs.AccessRemoteWrite,
			verbs.AccessRemoteAtomic}
		s.access[rng.IntN(2)] = verbs.AccessAll &^ rights[rng.IntN(3)]
	}
	for i := range s.psn {
		s.psn[i] = rng.Uint32N(1 << 24)
		if rng.IntN(3) == 0 {
			s.psn[i] = psnMask - rng.Uint32N(50)
		}
	}
	if s.defaults(); seed%4 == 0 {
		s.window = 3 * s.mtu.Bytes()
	}
	w.network = newNetwork(t, seed, *s)
	if w.perfect = rng.IntN(6) == 0; !w.perfect {
		share := func(most float64) float64 {
			if rng.IntN(2) == 0 {
				return 0
			}
			return rng.Float64() * most
		}
		w.harm = harm{share(0.1), share(0.1), share(0.2)}
		if w.chance(4) {
			w.outages, w.most = 200, int64(verbs.AckTimeout(s.timeout))*int64(1+rng.IntN(4))
		}
		if w.chance(6) {
			w.vanish = 1 + rng.IntN(600)
		}
	}
	if w.chance(3) {
		w.lazy = 2 + rng.IntN(8)
	}
	if w.ops = simOps; w.chance(4) {
		w.ops = simOps[len(simOps)-3:] // what is answered
	}
	if w.chance(3) {
		w.bad = 20 + rng.IntN(60)
	}
	if w.chance(4) {
		w.pauses = 100
	}
	if w.chance(4) {
		w.closings = 300
	}
	for i := range w.actors {
		w.actors[i] = newActor(w, w.ends[i])
	}
	w.actors[0].peer, w.actors[1].peer = w.actors[1], w.actors[0]
	w.seen = w.packetArrives
	w.left = func(from int, h *wire.Header) { w.actors[from].leaves(h) }
	w.begin()
	return w
}

// begin begins a connection.
func (w *world) begin() {
	for i, a := range w.actors {
		a.begin(w.shape.psn[i])
	}
}

// playWorld plays the world of a seed, and returns the promise that was broken first.
func playWorld(t *testing.T, seed uint64) (stats Stats, b *broken) {
	w := newWorld(t, seed)
	defer func() {
		if p := recover(); p != nil {
			b = &broken{seed, w.step, "panic", fmt.Sprintf("%v\n%s", p, debug.Stack())}
		}
	}()
	for range 1 + w.rng.IntN(3)/2 { // a second connection in one world of three
		w.play()
		if w.broken != nil {
			return stats, w.broken
		}
		if w.rng.IntN(2) == 0 { // of what is under way, a part arrives in the next connection
			w.reconnect()
		}
	}
	for _, e := range w.ends {
		stats.add(e.q.Stats())
	}
	return stats, nil
}

// play plays a connection to its end.
func (w *world) play() {
	const limit = 60000
	for from := w.step; w.broken == nil; w.step++ {
		w.events()
		moved := w.network.step()
		w.after()
		if w.step-from > limit {
			w.violate("it ends", "%d steps", limit)
		}
		if moved {
			continue
		}
		if w.over() {
			w.finish()
			return
		}
		if w.idle() {
			w.violate("it ends", "nothing happens any more")
		}
	}
}

// events lets programs and owners do something.
func (w *world) events() {
	if w.vanish != 0 && w.step == w.vanish {
		w.dark = Never
	}
	if w.chance(w.outages) && w.now >= w.dark {
		w.dark = w.now + w.rng.Int64N(w.most)
	}
	for _, a := range w.actors {
		for range 4 {
			if w.rng.IntN(6) == 0 {
				a.post()
			}
		}
		if w.rng.IntN(10) == 0 {
			a.receive()
		}
		a.pause()
		a.closeRegion()
		if w.lazy == 0 {
			w.flush(a.e.id)
		}
		a.hear()
		a.fresh = 0
	}
}

// after compares both ends with the model after a step.
func (w *world) after() {
	for _, e := range w.ends {
		if err := e.q.Check(); err != nil {
			w.violate("invariants", "%v", err)
		}
	}
	for _, a := range w.actors {
		a.repeats()
		a.carryOut()
	}
	for _, a := range w.actors {
		a.events()
	}
	for _, a := range w.actors {
		a.observe()
	}
	if w.acted < 0 {
		return
	}
	a := w.actors[w.acted]
	if string(a.e.mem[:watched]) != string(a.shadow) {
		w.violate("memory", "%s", a.difference())
	}
}

// idle reports whether no program can post anything.
func (w *world) idle() bool {
	for _, a := range w.actors {
		if a.dead == alive && (a.left > 0 && a.e.q.SQ.Acked == a.e.q.SQ.Posted || len(a.recvs) < simDepth ||
			a.e.q.State == verbs.StateSQD) {
			return false
		}
	}
	return true
}

// over reports whether both programs have come to their end.
func (w *world) over() bool {
	for _, a := range w.actors {
		sq := &a.e.q.SQ
		if a.dead == alive && (a.left != 0 || sq.Acked != sq.Posted) {
			return false
		}
	}
	return true
}

// finish checks the end of a connection.
func (w *world) finish() {
	var resent, rnr uint64
	for _, a := range w.actors {
		a.finish()
		s := a.e.q.Stats()
		resent += s.Resent + s.Timeouts + s.Probes
		rnr += s.RNRNAKs
		if a.dead != alive {
			rnr++
		}
	}
	if w.perfect && rnr == 0 && resent != 0 && w.shape.rate == 0 {
		w.violate("a network without harm", "%d packets were sent again", resent)
	}
}

// reconnect begins another connection between the same queue pairs, while packets of the one before
// are under way.
func (w *world) reconnect() {
	for _, e := range w.ends {
		e.q.Enter(w.now, verbs.StateReset)
		e.raise = nil
	}
	w.dark, w.vanish, w.perfect = 0, 0, false
	s := &w.shape
	for i := range s.psn {
		s.psn[i] = (s.psn[i] + 1<<20 + w.rng.Uint32N(1<<23)) & psnMask
	}
	for i, e := range w.ends {
		e.connect(w.now, s, uint32(101-i), s.psn[i], s.psn[1-i])
		if s.ours {
			e.q.PeerIsOurs()
		}
	}
	for range 1 + w.rng.IntN(3) {
		for _, d := range w.late {
			w.next++
			d.at, d.number = w.now+w.rng.Int64N(50*w.latency), w.next
			w.flight = append(w.flight, d)
		}
	}
	w.begin()
}

// actor is a program at an end, and the model of what must come of what it asks for.
type actor struct {
	w       *world
	e       *end
	peer    *actor
	victim  *nic.MR // the region that may be closed; nil once it is
	left    int     // requests to post
	id      uint64
	at      [4]int // next free byte of the areas that this end fills
	counter uint64 // value of the peer's counter when all that was posted is carried out

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

// packetArrives watches what arrives at an end.
func (w *world) packetArrives(to int, h *wire.Header, payload []byte) {
	a := w.actors[to]
	if h.Opcode == wire.Acknowledge || h.TellsGap() {
		a.negative(h)
	}
	if h.Opcode == wire.Acknowledge && h.Syndrome.IsRNR() {
		a.rnrs++
		a.fresh++
		a.mostRNRs = max(a.mostRNRs, a.rnrs) // the requests before it may take time to end
	}
	if len(w.late) < 40 && w.rng.IntN(20) == 0 {
		h := *h
		b := make([]byte, wire.MaxHeader+len(payload)+int(h.Pad)+wire.ICRCSize)
		n := h.Put(b)
		copy(b[n:], payload)
		w.late = append(w.late, datagram{to: to, bytes: b[:n+len(payload)+int(h.Pad)+wire.ICRCSize]})
	}
}

// add adds what another QP has done.
func (s *Stats) add(o Stats) {
	s.Sent += o.Sent
	s.Received += o.Received
	s.Resent += o.Resent
	s.Timeouts += o.Timeouts
	s.Probes += o.Probes
	s.NAKs += o.NAKs
	s.RNRNAKs += o.RNRNAKs
	s.Duplicates += o.Duplicates
	s.Ahead += o.Ahead
	s.Unexpected += o.Unexpected
	s.Broken += o.Broken
}
