package sendside

import (
	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/transport"
)

// opKind is the kind of an operation.
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

// completes reports whether the kind has a completion.
func (k opKind) completes() bool { return k == amZcopy || k >= putZcopy }

// bounces reports whether the kind always uses a bounce buffer.
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

// amOp has the fields of active messages.
type amOp struct {
	id     transport.AMID
	hdrKey int // the noise of the header
	hdr    int // bytes of header
}

// getOp has the fields of gets.
type getOp struct {
	from     lab.Span // in the peer's memory
	fromPut  *op      // the put that has written there; nil for memory that never changes
	fromSure bool     // that put must have landed
}

// atomicOp has the fields of atomics.
type atomicOp struct {
	add           uint64
	compare, swap uint64
	old           *uint64 // where the NIC puts the value that it finds; may be nil
	word          int     // offset in the peer's memory
	forgotten     bool    // it was refused
}

// flushOp has the fields of remote flushes.
type flushOp struct {
	reads []uint64 // by rail: how many reads for flushes there were before
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
	own := e.site.Memory
	switch k := o.kind; {
	case k.atomic():
		o.atomicAt()
		return true
	case k.get():
		if o.dst, ok = own.Alloc(o.n, o); ok {
			o.drawSource()
		}
		return ok
	}
	if o.src, ok = own.Alloc(o.n, o); ok && o.kind.put() {
		o.dst, ok = e.peer.site.Memory.Alloc(o.n, o)
	}
	if !ok {
		return false
	}
	own.Fill(o.src, o.key)
	if o.kind == amZcopy || o.kind == putZcopy {
		o.pieces = cut(&e.w.Testbed, o.src, o.mostPieces())
	}
	return true
}

// mostPieces returns how many pieces local memory may have: a single queue pair has the NIC's
// limit.
func (o *op) mostPieces() int {
	switch {
	case o.kind == amZcopy:
		return o.e.ep.Limits().Pieces
	case o.e.w.testbed.plan.rails == 1:
		return o.e.site.cfg.QP.MaxSGE
	}
	return 12
}

// drawSource draws the source of a get: memory that never changes, or the target of an earlier put.
func (o *op) drawSource() {
	e := o.e
	w := e.w
	if n := len(e.puts); n != 0 && !w.OneIn(3) {
		p := e.puts[max(0, n-1-w.Rng.IntN(4))]
		o.n = min(o.n, p.n)
		at := w.Rng.IntN(p.n - o.n + 1)
		o.from, o.key, o.fromPut = p.dst.Part(at, o.n), p.key+at, p
	} else {
		o.n = min(o.n, library-libraryAt)
		at := w.Rng.IntN(library - libraryAt - o.n + 1)
		o.from, o.key = lab.Span{Off: libraryAt + at, N: o.n}, at
	}
	o.dst.N = o.n
	if o.kind == getZcopy {
		o.pieces = cut(&w.Testbed, o.dst, o.mostPieces())
	}
}

// step is the number that every atomic addition adds.
const step = 1<<33 + 3

// These are the words of a host's memory: counters to add to, and words to compare and swap.
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
		*o.old = 1 // neither a sum nor a swapped value
	}
	if o.kind == fetchAdd {
		o.word, o.add = 8*w.Rng.IntN(counters), step
		return
	}
	i := w.Rng.IntN(swapsSlots)
	c := &e.peer.site.chains[i]
	o.word = swapsAt + 8*i
	o.compare, o.swap = c.value(max(0, len(*c)-w.Rng.IntN(2))), c.value(len(*c)+1)
	*c = append(*c, o)
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
	packs, n, refusing := 0, 0, e.w.Refusing() // a NIC may refuse data that is already packed
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
		err = face.AMZcopy(comp, o.id, header, e.site.Segments(o.pieces)...)
	case putShort:
		err = face.PutShort(data, e.remote(o.dst))
	case putBcopy:
		n, err = face.PutBcopy(pack, e.remote(o.dst))
	case putZcopy:
		done, err = face.PutZcopy(comp, e.remote(o.dst), e.site.Segments(o.pieces)...)
	case getBcopy:
		done, err = face.GetBcopy(comp, own.Bytes(o.dst), e.remote(o.from))
	case getZcopy:
		done, err = face.GetZcopy(comp, e.remote(o.from), e.site.Segments(o.pieces)...)
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

// remote names memory of the peer.
func (e *end) remote(s lab.Span) ibverbx.RemoteSegment {
	return e.peer.site.RemoteSegment(s)
}

func (e *end) remoteAt(off, n int) ibverbx.RemoteSegment {
	return e.remote(lab.Span{Off: off, N: n})
}

// target returns the memory to which a put or a get writes; nil for all others.
func (o *op) target() *lab.Memory {
	switch {
	case o.kind.put():
		return o.e.peer.site.Memory
	case o.kind.get():
		return o.e.site.Memory
	}
	return nil
}

// forget ends an operation that was not accepted: it must have had no effect.
func (o *op) forget() {
	e := o.e
	if m := o.target(); m != nil {
		if !m.Untouched(o.dst) {
			e.w.Broken(ruleNoEffect, "%v was refused, and its data is there", o)
		}
		m.Settle(o.dst, lab.AsItIs)
	}
	o.forgotten = true
	e.site.Memory.Reuse(o.src)
}

// landed reports whether all data of a put is there.
func (o *op) landed() bool { return !o.kind.put() || o.target().Holds(o.dst, o.key) }

// checkPartly checks that the memory to which an operation writes holds nothing else.
func (o *op) checkPartly() {
	if m := o.target(); m != nil && !m.Partly(o.dst, o.key) {
		o.e.w.Broken(lab.Content, "%v: its target holds what was never sent, or is not where it reads", o)
	}
}

// end records that an operation has ended, with its error if that is known.
func (o *op) end(err error) {
	if o.ended {
		return
	}
	o.ended, o.err = true, err
	if m := o.target(); m != nil {
		o.checkPartly()
		known := o.fromPut == nil || o.fromSure // of a get: its source had all its data
		if err == nil && known && !m.Holds(o.dst, o.key) {
			o.e.w.Broken(lab.Content, "%v has succeeded, and its data is not there", o)
		}
		m.Settle(o.dst, lab.AsItIs)
	}
	switch {
	case o.kind.atomic():
		o.endAtomic(err)
	case o.kind == flushRemote && err == nil && o.must:
		o.checkFlush()
	case o.kind == amZcopy, o.kind == putZcopy:
		o.e.site.Memory.Reuse(o.src)
	}
}

// checkFlush checks that a remote flush has read behind the data on every rail.
func (o *op) checkFlush() {
	rails, all := 0, o.e.w.testbed.plan.rails
	for i, q := range o.e.wires {
		if q.readsOf(o.e.flushAt) > o.reads[i] {
			rails++
		}
	}
	if rails < all {
		o.e.w.Broken(ruleFlush, "%v: something was read behind the data on %d of %d rails", o, rails, all)
	}
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

// mistakes are calls with wrong arguments. Other tests check how each is refused; here they show
// that a refusal has no effect, whatever is under way.
var mistakes = []func(e *end) error{
	func(e *end) error { return e.ep.AMShort(0, nil, make([]byte, e.ep.Limits().AMShort+1)) },
	func(e *end) error { return e.ep.AMShort(amIDs, nil, nil) },
	func(e *end) error { return errorOf(e.ep.AMBcopy(0, nil, func(dst []byte) int { return len(dst) + 1 })) },
	func(e *end) error { return e.ep.AMZcopy(nil, 0, nil, ibverbx.Segment{Addr: 4096, Length: 8}) },
	func(e *end) error { return e.ep.PutShort(make([]byte, 8), e.remoteAt(arenaSize-7, 7)) },
	func(e *end) error {
		return errorOf(e.ep.PutBcopy(func([]byte) int { return -1 }, e.remoteAt(library, 8)))
	},
	func(e *end) error {
		return errorOf(e.ep.PutBcopy(func([]byte) int { return 9 }, e.remoteAt(library, 8)))
	},
	func(e *end) error {
		return errorOf(e.ep.PutZcopy(nil, e.remoteAt(library, 64), e.site.MR.Slice(arenaSize-8, 9)))
	},
	func(e *end) error { return errorOf(e.ep.GetBcopy(nil, make([]byte, 9), e.remoteAt(arenaSize-8, 8))) },
	func(e *end) error {
		return errorOf(e.ep.GetZcopy(nil, e.remoteAt(0, 64), ibverbx.Segment{Addr: 4096, Length: 8}))
	},
	func(e *end) error { return e.ep.FetchAdd(nil, nil, e.remoteAt(4, 8), 1) },
	func(e *end) error { return e.ep.CompareSwap(nil, nil, e.remoteAt(0, 4), 0, 1) },
	func(e *end) error { return e.ep.Connect(e.card) },
	func(e *end) error { return e.ep.Pending(&transport.Pending{}) },
	func(e *end) error { return e.site.worker.Handle(0, e.site.handle) },
}

// misuse makes one of the mistakes.
func (e *end) misuse() {
	w := e.w
	if !e.connected || e.ends() {
		return
	}
	i := w.Rng.IntN(len(mistakes))
	before := e.gauge()
	w.calling++
	err := mistakes[i](e)
	w.calling--
	w.Logf("  mistake %d: %v", i, err)
	if after := e.gauge(); err == nil || after != before {
		w.Broken(ruleNoEffect, "%v: mistake %d: %v; %+v before, %+v after", e, i, err, before, after)
	}
}
