package sendside

import (
	"errors"
	"math/rand/v2"
	"slices"

	"ibverbx/shmem"
	"ibverbx/test/internal/lab"
)

// Shmem is the game of processing elements.
var Shmem = lab.Game("TestShmem", "./test/sendside", newShmemPlan, (*shmemPlan).run)

// shmemPlan describes a world of PEs, and the phases that all of them play.
type shmemPlan struct {
	bedPlan
	lab.Schedule[phase]
	config shmem.Config
}

// phase is a part of the program that all PEs run. The actions of each follow from r and from its
// number.
type phase struct {
	*phaseKind
	r uint64
}

// phaseKind is a kind of phase, and how often it is drawn. A phase that needs a barrier
// begins with one.
type phaseKind struct {
	name  string
	often int
	play  func(e *element, common *rand.Rand)
}

var phases = []phaseKind{
	{"scatter", 12, (*element).scatter}, // puts and gets
	{"signal", 6, func(e *element, common *rand.Rand) { e.sendSignal(false, common) }},
	{"flag", 6, func(e *element, common *rand.Rand) { e.sendSignal(true, common) }},
	{"count", 5, (*element).count},
	{"bits", 4, (*element).toggle},
	{"swap", 4, (*element).swap},
	{"barrier", 2, (*element).barriers},
	{"broadcast", 3, collective((*numbers).broadcast)},
	{"reduce", 3, collective((*numbers).reduce)},
	{"all-gather", 3, collective((*numbers).gather)},
	{"all-to-all", 3, collective((*numbers).trade)},
	{"started", 3, (*element).started},
	{"shrink", 1, collective((*numbers).shrink)},
	{"alloc", 4, (*element).allocate},
	{"mismatch", 1, (*element).mismatch},
	fault,
	{"hurry", 7, (*element).hurry}, // calls whose context ends
}

// These phases are also drawn separately. Nothing follows a misstep.
var (
	fault   = phaseKind{"fault", 3, (*element).meetFault}
	misstep = phaseKind{"misstep", 0, (*element).misstep}
)

func newShmemPlan(seed uint64) *shmemPlan {
	rng := rand.New(rand.NewPCG(seed, 0x73686d))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	p := &shmemPlan{bedPlan: newBedPlan(rng, seed)}
	p.Mood = lab.Mood(pick(int(lab.Calm), int(lab.Calm), int(lab.Faulty)))
	for i := range p.Hosts {
		p.Hosts[i] = p.Hosts[0] // all PEs have the same configuration
	}
	qp := p.qpConfig(rng)
	p.config = shmem.Config{
		// no world may depend on a clock
		Size: len(p.Hosts), HeapSize: heapSize, RegisterFrom: pick(-1, 300, 0),
		Transport: p.workerConfig(rng, qp, 0),
	}
	p.config.Transport.AMBuffers = 1
	p.config.Transport.QP.MaxMsgCntPerQP = 0
	p.Events = make([]phase, 1+rng.IntN(pick(2, 4, 8)))
	weights := make([]int, len(phases))
	for i := range phases {
		weights[i] = phases[i].often
	}
	for i := range p.Events {
		p.Events[i] = phase{&phases[lab.DrawWeighted(rng, weights)], rng.Uint64()}
	}
	if p.Mood == lab.Faulty && rng.IntN(2) == 0 {
		p.Events[rng.IntN(len(p.Events))].phaseKind = &fault
	}
	if rng.IntN(5) == 0 {
		p.Events = append(p.Events, phase{&misstep, rng.Uint64()})
	}
	return p
}

// heapSize is the symmetric heap of each PE.
const heapSize = 32 << 10

// barriers plays only barriers.
func (e *element) barriers(*rand.Rand) {
	e.barrier()
	e.barrier()
	e.must("sync", e.pe.Sync(e.t.ctx))
}

// meetFault injects a fault.
func (e *element) meetFault(*rand.Rand) {
	if e.id == 0 {
		e.t.strike(e.t.all, e.t.plan.Mood == lab.Calm || e.rng.IntN(2) == 0)
	}
}

// scatter puts and gets, with fences and quiets between, and ends in a barrier.
func (e *element) scatter(*rand.Rand) {
	for range 1 + e.rng.IntN(12) {
		switch e.rng.IntN(10) {
		case 0:
			e.quiet()
		case 1, 2:
			e.pe.Fence()
			e.epoch++
		case 3, 4:
			e.get()
		default:
			e.put()
		}
	}
	e.barrier()
}

// put writes into a slot that it has not written to since the last fence.
func (e *element) put() {
	w := &write{to: e.rng.IntN(len(e.t.peers)), slot: e.rng.IntN(slots), key: e.rng.IntN(lab.Keys),
		n: 1 + e.rng.IntN(slotSize), epoch: e.epoch}
	for _, o := range e.out {
		if o.to == w.to && o.slot == w.slot && o.epoch == w.epoch {
			return // no order is promised between the two
		}
	}
	w.was = e.mayHold(w.to, w.slot, slotSize)
	kind := e.rng.IntN(3)
	if kind == 0 {
		w.n = 1 // for P
	}
	src, inHeap := e.source(w)
	dst := e.slot(e.id, w.slot)
	e.out = append(e.out, w)
	var err error
	switch kind {
	case 0:
		err = shmem.P(e.t.ctx, e.pe, dst, src[0], w.to)
	case 1:
		err = shmem.Put(e.t.ctx, e.pe, dst, src, w.to)
	default:
		err = shmem.PutNBI(e.t.ctx, e.pe, dst, src, w.to)
		if inHeap {
			w.src = src // NICs may read it until Quiet
		}
	}
	e.t.Logf("  PE %d: put %d bytes into slot %d of PE %d: kind %d, from the heap %v, %v", e.id, w.n, w.slot,
		w.to, kind, inHeap, err)
	if w.src == nil {
		lab.Scribble(src)
	}
	e.must("put", err)
}

// source returns memory with the bytes of a put: a piece of the heap that no NIC may be reading, if
// there is one, or other memory.
func (e *element) source(w *write) (src []byte, inHeap bool) {
	inHeap = e.rng.IntN(2) != 0
	used := 0
	for _, o := range e.out {
		if o.src != nil {
			used++
		}
	}
	if !inHeap || used == scratches {
		return slices.Clone(lab.Noise(w.key, w.n)), false
	}
	// Pieces are used in order, and are all free after Quiet.
	src = e.scratch.Local(e.pe)[used*slotSize:][:w.n]
	copy(src, lab.Noise(w.key, w.n))
	return src, true
}

// get reads a slot of any PE.
func (e *element) get() {
	t := e.t
	by, from, slot := e.rng.IntN(len(t.peers)), e.rng.IntN(len(t.peers)), e.rng.IntN(slots)
	n := 1 + e.rng.IntN(slotSize)
	dst, writer, src := make([]byte, n), t.peers[by], e.slot(by, slot)
	wants := writer.mayHold(from, slot, n)
	if e.rng.IntN(3) == 0 {
		e.gets++
		e.must("get nbi", shmem.GetNBI(t.ctx, e.pe, dst, src, from))
		return
	}
	var err error
	switch e.rng.IntN(3) {
	case 0:
		dst = dst[:1]
		dst[0], err = shmem.G(t.ctx, e.pe, src, from)
	case 1:
		dst = e.scratch.Local(e.pe)[scratches*slotSize:][:n]
		fallthrough
	default:
		err = shmem.Get(t.ctx, e.pe, dst, src, from)
	}
	e.must("get", err)
	wants = append(wants, writer.mayHold(from, slot, n)...) // data put during the call
	for i, v := range dst {
		if !mayBe(wants, i, v) {
			t.Broken(lab.Content, "PE %d: get: byte %d of %d is %#x, which was never there", e.id, i, n, v)
		}
	}
}

// mayHold returns the possible contents of a slot: the present ones, and those on their way.
func (e *element) mayHold(to, slot, n int) (list [][]byte) {
	list = append(list, slices.Clone(e.target(&write{to: to, slot: slot})[:n]))
	for _, w := range e.out {
		if w.to == to && w.slot == slot {
			list = append(list, lab.Noise(w.key, w.n)[:min(n, w.n)])
			for _, b := range w.was {
				list = append(list, b[:min(n, len(b))])
			}
		}
	}
	return list
}

// sendSignal sends data and a signal to another PE, or data, a fence and a word, and waits for
// those of a third PE. The order of PEs is drawn.
func (e *element) sendSignal(flag bool, common *rand.Rand) {
	t := e.t
	order := common.Perm(len(t.peers))
	at := slices.Index(order, e.id)
	to, from := order[(at+1)%len(order)], order[(at+len(order)-1)%len(order)]
	n := 1 + common.IntN(slotSize)
	keys := make([]int, len(order))
	for i := range keys {
		keys[i] = common.IntN(lab.Keys)
	}
	add := common.IntN(2) == 0
	src := slices.Clone(lab.Noise(keys[e.id], n))
	dst, sig := e.slot(e.id, 0), e.signals.At(e.id)
	value := t.peers[to].signal[e.id] + 1 // of the word on the other PE, afterwards
	e.barrier()
	var err error
	switch {
	case flag:
		e.must("put", shmem.Put(t.ctx, e.pe, dst, src, to))
		e.pe.Fence()
		if add {
			e.must("p", shmem.P(t.ctx, e.pe, sig, value-1, to)) // unchanged
			e.pe.Fence()
			err = shmem.Add(t.ctx, e.pe, sig, 1, to)
		} else {
			err = shmem.P(t.ctx, e.pe, sig, value, to)
		}
	case add:
		err = shmem.PutSignal(t.ctx, e.pe, dst, src, sig, 1, shmem.SignalAdd, to)
	default:
		err = shmem.PutSignalNBI(t.ctx, e.pe, dst, src, sig, value, shmem.SignalSet, to)
	}
	lab.Scribble(src)
	e.must("put signal", err)
	mine := e.signal[from] + 1
	e.await(from, mine)
	got := e.slot(from, 0).Local(e.pe)[:n]
	if string(got) != string(lab.Noise(keys[from], n)) {
		t.Broken(ruleFence, "PE %d sees the signal of PE %d, and not its %d bytes", e.id, from, n)
	}
	e.barrier()
	e.signal[from] = mine
	e.must("sync", e.pe.Sync(t.ctx))
}

// await waits for the signal of a PE, with one of the waiting calls.
func (e *element) await(from int, value uint64) {
	t := e.t
	s := e.signals.Slice(from, from+1)
	switch e.rng.IntN(5) {
	case 0:
		i, err := shmem.WaitUntilAny(t.ctx, e.pe, s, shmem.EQ, value)
		if err == nil && i != 0 {
			t.Broken(lab.Content, "PE %d waits for one word, and it was word %d", e.id, i)
		}
		e.must("wait until any", err)
	case 1:
		e.must("wait until all", shmem.WaitUntilAll(t.ctx, e.pe, s, shmem.GT, value-1))
	case 2:
		for {
			there, err := shmem.Test(e.pe, s, shmem.GE, value)
			if there {
				return
			}
			e.must("test", errors.Join(err, t.ctx.Err()))
			t.idle()
		}
	case 3:
		e.must("wait until", shmem.WaitUntil(t.ctx, e.pe, s, shmem.NE, value-1))
	default:
		e.must("wait until", shmem.WaitUntil(t.ctx, e.pe, s, shmem.GE, value))
	}
}
