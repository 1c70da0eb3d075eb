package sendside

import (
	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// opKind is what an operation does.
type opKind uint8

const (
	amShort opKind = iota
	amBcopy
	amZcopy
	putShort
	putBcopy
	putZcopy
	getBcopy
	getZcopy
	fetchAdd
	compareSwap
	flushLocal
	flushRemote
	opKinds
)

var opNames = [opKinds]string{"am short", "am bcopy", "am zcopy", "put short", "put bcopy", "put zcopy",
	"get bcopy", "get zcopy", "fetch add", "compare swap", "flush", "flush remote"}

func (k opKind) String() string { return opNames[k] }

func (k opKind) am() bool     { return k <= amZcopy }
func (k opKind) put() bool    { return k >= putShort && k <= putZcopy }
func (k opKind) get() bool    { return k == getBcopy || k == getZcopy }
func (k opKind) atomic() bool { return k == fetchAdd || k == compareSwap }
func (k opKind) flush() bool  { return k >= flushLocal }

// completes says whether the kind has a completion.
func (k opKind) completes() bool { return k == amZcopy || k >= putZcopy }

// bounces says whether the kind always uses a bounce buffer.
func (k opKind) bounces() bool {
	return k == amBcopy || k == amZcopy || k == putBcopy || k == getBcopy
}

// op is an operation: it is drawn, perhaps accepted, and then ends.
type op struct {
	e     *end
	kind  opKind
	group *group // its completion; nil for none

	n      int        // bytes of data
	key    int        // the noise that is sent or read
	src    lab.Span   // in the memory of its host
	dst    lab.Span   // of a put: in the peer's memory; of a get: in its own
	pieces []lab.Span // of zcopy: those of the local memory
	amOp
	getOp
	atomicOp
	flushOp

	ownBuffer bool // it took a bounce buffer of the endpoint's own

	seq   int // index among the accepted ones of its endpoint
	fence int // those before this index must land before it does
	ended bool
	err   error
}

// amOp is what only active messages have.
type amOp struct {
	id     transport.AMID
	hdrKey int // the noise of the header
	hdr    int // bytes of header
}

// getOp is what only gets have.
type getOp struct {
	from     lab.Span // in the peer's memory
	fromPut  *op      // the put that has written there; nil for memory that never changes
	fromSure bool     // that put must have landed
}

// atomicOp is what only atomics have.
type atomicOp struct {
	add           uint64
	compare, swap uint64
	old           *uint64 // where the NIC puts the value that it finds; may be nil
	word          int     // offset in the peer's memory
}

// flushOp is what only remote flushes have.
type flushOp struct {
	reads []uint64 // by rail: how many reads of a flush there were before
	must  bool     // something was written since the last remote flush
}

func (o *op) String() string { return sprintf("%v: %v %d (%d bytes)", o.e, o.kind, o.seq, o.n) }

// newOp draws an operation. It reports false when there is no memory left.
func (e *end) newOp() (*op, bool) {
	w := e.w
	k := opKind(w.Rng.IntN(int(flushLocal)))
	o := &op{e: e, kind: k}
	limits := e.ep.Limits()
	limit := [...]int{limits.AMShort, limits.AMBcopy, limits.AMZcopy, limits.PutShort, limits.PutBcopy, 700,
		limits.GetBcopy, 700, 8, 8}[k]
	if k.am() {
		o.id = transport.AMID(w.Rng.IntN(amIDs))
		o.hdr = min(w.Pick(0, 0, 1, 8, 40, 64), limit)
		o.hdrKey = w.Rng.IntN(lab.Keys)
		limit -= o.hdr
	}
	o.n = w.Rng.IntN(limit + 1)
	if w.OneIn(4) {
		o.n = limit
	}
	o.key = w.Rng.IntN(lab.Keys)
	if !o.giveMemory() {
		return nil, false
	}
	if k.completes() && !w.OneIn(4) {
		o.group = w.newGroup()
	}
	return o, true
}

// giveMemory gives an operation memory on both sides.
func (o *op) giveMemory() (ok bool) {
	e := o.e
	w, own := e.w, e.site.Memory
	switch k := o.kind; {
	case k.atomic():
		o.atomicAt()
		return true
	case k.get():
		o.dst, ok = own.Alloc(o.n)
		return ok && o.drawSource()
	case k.put():
		if o.dst, ok = e.peer.site.Memory.Alloc(o.n); !ok {
			return false
		}
	}
	if o.src, ok = own.Alloc(o.n); !ok {
		if o.kind.put() {
			e.peer.site.Memory.Settle(o.dst, lab.AsItIs, "memory for a put that was not made")
		}
		return false
	}
	copy(own.Bytes(o.src), lab.Noise(o.key, o.n))
	switch o.kind {
	case amZcopy:
		o.pieces = cut(&w.Testbed, o.src, e.ep.Limits().Pieces)
	case putZcopy:
		o.pieces = cut(&w.Testbed, o.src, e.mostPieces())
	}
	return true
}

// mostPieces is how many pieces a put or get may have: a single queue pair has the NIC's limit.
func (e *end) mostPieces() int {
	if e.w.testbed.plan.rails == 1 {
		return e.site.cfg.QP.MaxSGE
	}
	return 12
}

// drawSource draws what a get reads: memory that never changes, or the target of an earlier put.
func (o *op) drawSource() bool {
	e := o.e
	w := e.w
	if n := len(e.puts); n != 0 && !w.OneIn(3) {
		p := e.puts[max(0, n-1-w.Rng.IntN(4))]
		o.n = min(o.n, p.n)
		o.dst.N = o.n
		at := w.Rng.IntN(p.n - o.n + 1)
		o.from, o.key, o.fromPut = p.dst.Part(at, o.n), p.key+at, p
	} else {
		o.n = min(o.n, library-libraryAt)
		o.dst.N = o.n
		at := w.Rng.IntN(library - libraryAt - o.n + 1)
		o.from, o.key = lab.Span{Off: libraryAt + at, N: o.n}, at
	}
	if o.kind == getZcopy {
		o.pieces = cut(&w.Testbed, o.dst, e.mostPieces())
	}
	return true
}

// step is what every atomic addition adds.
const step = 1<<33 + 3

// The words of a host's memory: counters to add to, and words to compare and swap.
const (
	counters   = 2
	swapsAt    = 8 * counters
	swapsSlots = libraryAt/8 - counters
)

// atomicAt draws the word of an atomic and its operands.
func (o *op) atomicAt() {
	e := o.e
	w := e.w
	if !w.OneIn(3) {
		o.old = new(uint64)
		*o.old = 1 // neither a sum nor a value that is swapped in
	}
	if o.kind == fetchAdd {
		o.word, o.add = 8*w.Rng.IntN(counters), step
		return
	}
	c := e.peer.site.chains
	i := w.Rng.IntN(swapsSlots)
	o.word = swapsAt + 8*i
	o.compare = c[i].values[max(0, len(c[i].values)-1-w.Rng.IntN(2))]
	c[i].next++
	o.swap = uint64(c[i].next)<<8 | 0xee
	c[i].values = append(c[i].values, o.swap)
}

// call makes the call on a view of the endpoint.
func (o *op) call(face *transport.Endpoint) (done bool, err error) {
	e := o.e
	own := e.site.Memory
	data := own.Bytes(o.src)
	header := lab.Noise(o.hdrKey, o.hdr)
	var comp *transport.Completion
	if o.group != nil {
		comp = &o.group.comp
	}
	packs, n, refusing := 0, 0, e.w.Refusing() // a NIC refuses what is packed already
	pack := func(dst []byte) int {
		packs++
		return copy(dst, data)
	}
	switch o.kind {
	case amShort:
		err = face.AMShort(o.id, header, data)
	case amBcopy:
		n, err = face.AMBcopy(o.id, header, pack)
	case amZcopy:
		err = face.AMZcopy(comp, o.id, header, e.site.segments(o.pieces)...)
	case putShort:
		err = face.PutShort(data, e.remote(o.dst))
	case putBcopy:
		n, err = face.PutBcopy(pack, e.remote(o.dst))
	case putZcopy:
		done, err = face.PutZcopy(comp, e.remote(o.dst), e.site.segments(o.pieces)...)
	case getBcopy:
		done, err = face.GetBcopy(comp, own.Bytes(o.dst), e.remote(o.from))
	case getZcopy:
		done, err = face.GetZcopy(comp, e.remote(o.from), e.site.segments(o.pieces)...)
	case fetchAdd:
		err = face.FetchAdd(comp, o.old, e.remoteAt(o.word, 8), o.add)
	case compareSwap:
		err = face.CompareSwap(comp, o.old, e.remoteAt(o.word, 8), o.compare, o.swap)
	case flushLocal:
		done, err = face.StartFlush(transport.FlushLocal, comp)
	case flushRemote:
		done, err = face.StartFlush(transport.FlushRemote, comp)
	}
	if packs > 1 || packs != 0 && err == transport.ErrNoResource && !refusing {
		e.w.Broken(ruleNoEffect, "%v: pack ran %d times; %v", o, packs, err)
	}
	if (o.kind == amBcopy || o.kind == putBcopy) && err == nil && n != o.n {
		e.w.Broken(lab.Content, "%v: %d bytes, it says", o, n)
	}
	if o.kind == putShort && o.n == 0 || o.kind == putBcopy && o.n == 0 {
		done = true
	}
	return done, err
}

// segments names pieces of the host's memory.
func (s *site) segments(list []lab.Span) (segs []ibverbx.Segment) {
	for _, p := range list {
		segs = append(segs, s.Segment(p))
	}
	return segs
}

// remote names memory of the peer.
func (e *end) remote(s lab.Span) ibverbx.RemoteSegment {
	return e.peer.site.RemoteSegment(s)
}

func (e *end) remoteAt(off, n int) ibverbx.RemoteSegment {
	return e.remote(lab.Span{Off: off, N: n})
}

// forget ends an operation that was not accepted: it must have had no effect.
func (o *op) forget() {
	e := o.e
	switch {
	case o.kind.put():
		if !e.peer.site.Memory.Untouched(o.dst) {
			e.w.Broken(ruleNoEffect, "%v was refused, and its data has landed", o)
		}
		e.peer.site.Memory.Settle(o.dst, lab.AsItIs, "the target of a put that was refused")
	case o.kind.get():
		if !e.site.Memory.Untouched(o.dst) {
			e.w.Broken(ruleNoEffect, "%v was refused, and has data", o)
		}
		e.site.Memory.Settle(o.dst, lab.AsItIs, "the target of a get that was refused")
	case o.kind == compareSwap:
		e.peer.site.chain(o).refused(o.swap)
	}
	e.site.Memory.Reuse(o.src, "the source of a refused call")
}

// landed says whether the data of a put is all there.
func (o *op) landed() bool {
	return !o.kind.put() || o.e.peer.site.Memory.Holds(o.dst, o.key)
}

// checkPartly checks that the memory which an operation writes to holds nothing else.
func (o *op) checkPartly() {
	switch {
	case o.kind.put() && !o.e.peer.site.Memory.Partly(o.dst, o.key):
		o.e.w.Broken(lab.Content, "%v: its target holds what was never sent", o)
	case o.kind.get() && !o.e.site.Memory.Partly(o.dst, o.key):
		o.e.w.Broken(lab.Content, "%v: what came is not what is there", o)
	}
}

// end notes that an operation has ended, with its error as far as that is known.
func (o *op) end(err error) {
	if o.ended {
		return
	}
	e := o.e
	w := e.w
	o.ended, o.err = true, err
	switch {
	case o.kind.put():
		o.checkPartly()
		target := e.peer.site.Memory
		if err != nil {
			target.Settle(o.dst, lab.AsItIs, sprintf("the target of %v, which has failed", o))
			break
		}
		if !o.landed() {
			w.Broken(lab.Content, "%v has succeeded, and its data is not there", o)
		}
		target.Settle(o.dst, o.key, sprintf("the target of %v", o))
	case o.kind.get():
		o.endGet(err)
	case o.kind.atomic():
		o.endAtomic(err)
	case o.kind == flushRemote && err == nil && o.must:
		rails := 0
		for i, q := range e.wires {
			if q.readsOf(e.flushAt) > o.reads[i] {
				rails++
			}
		}
		if rails < w.testbed.plan.rails {
			w.Broken(ruleFlush, "%v: something was read behind the data on %d of %d rails", o, rails,
				w.testbed.plan.rails)
		}
	}
	if !o.kind.get() && !o.kind.atomic() && o.kind.completes() {
		e.site.Memory.Reuse(o.src, sprintf("the source of %v", o))
	}
}

func (o *op) endGet(err error) {
	m := o.e.site.Memory
	o.checkPartly()
	switch {
	case err != nil:
		m.Settle(o.dst, lab.AsItIs, sprintf("the target of %v, which has failed", o))
		return
	case o.fromPut == nil || o.fromSure:
		if !m.Holds(o.dst, o.key) {
			o.e.w.Broken(lab.Content, "%v has succeeded, and brought something else", o)
		}
	}
	m.Settle(o.dst, lab.AsItIs, sprintf("the target of %v", o))
}

// readsOf counts the reads at an address or behind it, as long as the flush area is.
func (q *wire) readsOf(at uint64) (n uint64) {
	for _, addr := range q.reads {
		if addr >= at && addr < at+8*ibverbx.MaxRails {
			n++
		}
	}
	return n
}
