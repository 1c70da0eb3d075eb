package sendside

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"ibverbx/shmem"
	"ibverbx/test/internal/hunt"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs/soft"
)

// shmemWorld is PEs that run the same program, and a model of their memory.
type shmemWorld struct {
	testbed
	plan     *shmemPlan
	all      *link // stands for all connections: a fault on one may fail any call
	peers    []*element
	cards    [][][]byte // by round of Exchange and PE
	ctx      context.Context
	sums     [counters]uint64
	patience int             // rounds without progress after which the world is at rest
	found    map[uint64]bool // values that atomics have found in this phase
}

// element is a PE with its program, and the model of its memory and its puts.
type element struct {
	t       *shmemWorld
	host    *lab.Host
	id      int
	pe      *shmem.PE
	rng     *rand.Rand
	phase   int
	failed  error
	closing bool   // Close was called
	cancel  func() // ends the context of a call in haste
	haste   int    // after how many rounds

	rounds  int // calls of Exchange
	entered int // barriers that it has entered
	left    int // the last barrier that it has left
	sides   []side
	heap
	calls
}

// heap is the symmetric memory that phases use.
type heap struct {
	area    shmem.Sym[byte]   // slots, each written by one PE
	scratch shmem.Sym[byte]   // sources of puts, a target of gets, and one of calls in haste
	words   shmem.Sym[uint64] // counters, words that are swapped, bits
	halves  shmem.Sym[uint32]
	signals shmem.Sym[uint64] // by PE: the signal that it sends
	signal  []uint64          // by PE: the last awaited value
	bits    uint64            // the PE's own part of the shared bits
}

// calls are a PE's incomplete calls. The possible results of gets that were begun are not recorded.
type calls struct {
	out   []*write // puts, in the order of the calls
	epoch int      // fences so far
	gets  int      // gets that were begun
}

// A slot is a piece of the area on a PE to which one other PE writes.
const (
	slotSize = 700
	slots    = 4 // of each writer, on each PE
	// scratches is how many pieces of the heap are sources of puts.
	scratches = 3
)

// write is a put.
type write struct {
	to, slot int
	key, n   int
	was      [][]byte // the possible earlier contents of the slot
	epoch    int
	src      []byte // in the heap: it must not change before Quiet; nil if it was copied
}

func (p *shmemPlan) run(log func(string)) *hunt.Violation {
	t := &shmemWorld{plan: p, found: map[uint64]bool{}, patience: fewRounds}
	return t.play(&p.bedPlan, log, t.moved, func() {
		t.LogPlan("each PE", p.config)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		t.ctx = ctx
		t.all = t.link("all", t.Hosts[0], t.Hosts[len(t.Hosts)-1])
		t.build = t.all
		t.cards = make([][][]byte, 2)
		for i, h := range t.Hosts {
			e := &element{t: t, host: h, id: i, rng: rand.New(rand.NewPCG(p.Seed, uint64(i)))}
			e.signal = make([]uint64, p.config.Size)
			t.peers = append(t.peers, e)
			t.start(sprintf("PE %d", i), h, e.program)
		}
		t.schedule()
		if len(t.waiting()) != 0 { // a PE waits for one that has given up
			if t.all.Blame == "" {
				t.Broken(lab.Liveness, "%s, and does not return", t.waiting()[0].name)
			}
			cancel()
			t.schedule()
		}
		if len(t.waiting()) != 0 {
			t.Broken(lab.Liveness, "%s still waits, though its context has ended", t.waiting()[0].name)
		}
		t.EndFaults(nil)
		t.checkEnd()
		t.Close()
	})
}

// These are the patience with a world, and with one in which PEs find out that they are in
// different calls: they poll for a thousand rounds before they ask.
const (
	fewRounds  = 40
	manyRounds = 1500
)

// schedule lets programs and the fabric move until nothing does.
func (t *shmemWorld) schedule() {
	for quiet, rounds := 0, 0; quiet < t.patience; rounds++ {
		if rounds > 200000 {
			t.Broken(lab.Liveness, "it does not come to rest")
		}
		list := t.waiting()
		if len(list) == 0 {
			return
		}
		quiet++
		if t.Movable() != 0 && t.Rng.IntN(3) != 0 {
			t.Steps(1 + t.Rng.IntN(6))
			quiet = 0
			continue
		}
		p := list[t.Rng.IntN(len(list))]
		before := t.progressOf()
		p.resume()
		if p.over || t.progressOf() != before {
			quiet = 0
		}
		if quiet > 20 {
			for _, p := range slices.Clone(t.waiting()) {
				p.resume()
			}
			if len(t.Strikes) != 0 {
				t.Heal()
				quiet = 0
			}
		}
	}
}

// progressOf returns a number that changes when a program makes progress.
func (t *shmemWorld) progressOf() (n int) {
	for _, e := range t.peers {
		n += e.phase + e.rounds + e.entered + len(e.out) + e.gets
	}
	return n
}

// exchange is Config.Exchange. The cards are in the world.
func (e *element) exchange(_ context.Context, mine []byte) ([][]byte, error) {
	t := e.t
	round := e.rounds
	e.rounds++
	if t.cards[round] == nil {
		t.cards[round] = make([][]byte, len(t.peers))
	}
	t.cards[round][e.id] = append([]byte{}, mine...)
	for _, o := range t.peers {
		for o.rounds <= round {
			t.idle()
		}
	}
	return t.cards[round], nil
}

// ok reports whether a call succeeded. A failure must have a cause.
func (e *element) ok(what string, err error) bool {
	if err == nil {
		return true
	}
	if e.t.all.Blame == "" {
		e.t.Broken(lab.Isolation, "PE %d: %s: %v", e.id, what, err)
	}
	e.t.Logf("  PE %d: %s: %v", e.id, what, err)
	if e.failed == nil {
		e.failed = err
	}
	return false
}

// errGaveUp ends the phases of a program in which a call has failed.
var errGaveUp = errors.New("gave up")

// must makes the program go straight to Close when a call has failed.
func (e *element) must(what string, err error) {
	if !e.ok(what, err) {
		panic(errGaveUp)
	}
}

// mustFail checks that a call fails with the given error.
func (e *element) mustFail(what string, err, want error) {
	if !errors.Is(err, want) {
		e.must(what, cmp.Or(err, errNotRefused))
	}
}

var errNotRefused = errors.New("was not refused")

// program is the program of a PE.
func (e *element) program() {
	t := e.t
	cfg := t.plan.config
	cfg.Rank, cfg.Exchange, cfg.Transport.Idle = e.id, e.exchange, e.idle
	var err error
	e.pe, err = shmem.Join(t.ctx, e.host.Dom, cfg)
	if !e.ok("join", err) {
		return
	}
	e.playAll()
	e.outlive()
	e.closing = true
	err = e.pe.Close(t.ctx)
	t.Logf("PE %d: close: %v", e.id, err)
	e.ok("close", err)
	e.leave()
}

// playAll plays the phases until a call fails.
func (e *element) playAll() {
	defer func() {
		if r := recover(); r != nil && r != errGaveUp { //nolint:errorlint // this very value
			panic(r)
		}
	}()
	t := e.t
	e.begin()
	for i, ph := range t.plan.Events {
		t.At = max(t.At, i+1)
		t.Logf("PE %d: phase %d, %v", e.id, i, ph.name)
		e.rng = rand.New(rand.NewPCG(ph.r, uint64(e.id)))
		common := rand.New(rand.NewPCG(ph.r, 1<<40)) // all PEs draw the same numbers from it
		ph.play(e, common)
		e.phase++
	}
}

// begin allocates the memory that phases use.
func (e *element) begin() {
	t, n := e.t, len(e.t.Hosts)
	e.area = alloc[byte](e, n*slots*slotSize)
	e.scratch = alloc[byte](e, (scratches+2)*slotSize)
	e.words = alloc[uint64](e, 8)
	e.halves = alloc[uint32](e, 4)
	e.signals = alloc[uint64](e, n)
	e.split()
	for _, o := range t.peers { // PEs that have allocated too have the same blocks
		if o.signals.Len() == n && o.signals.Offset() != e.signals.Offset() {
			t.Broken(lab.Content, "PE %d has a block at %d, PE %d at %d", e.id, e.signals.Offset(), o.id,
				o.signals.Offset())
		}
	}
	if s := e.pe.Stats(); s.HeapBlocks != 5 || s.HeapSize != heapSize || s.Barriers == 0 {
		t.Broken(lab.Content, "PE %d has allocated 5 blocks, and counts %+v", e.id, s)
	}
	if e.pe.Rank() != e.id || e.pe.Size() != n {
		t.Broken(lab.Content, "PE %d of %d says that it is %d of %d", e.id, n, e.pe.Rank(), e.pe.Size())
	}
}

func alloc[T byte | uint32 | uint64](e *element, n int) shmem.Sym[T] {
	s, err := shmem.Alloc[T](e.t.ctx, e.pe, n)
	e.must("alloc", err)
	return s
}

// barrier calls Barrier, and checks that all PEs have entered it and their puts have landed.
func (e *element) barrier() {
	t := e.t
	e.entered++
	k := e.entered
	e.must("barrier", e.pe.Barrier(t.ctx))
	for _, o := range t.peers {
		if o.entered < k {
			t.Broken(ruleFlush, "PE %d leaves barrier %d, which PE %d has not entered", e.id, k, o.id)
		}
		if o.left < k { // it is still in the barrier, and has put nothing since it entered
			o.settleOn(e)
		}
	}
	e.left = k
	e.quieted()
}

// settleOn checks that all puts of a PE to another one, before a barrier, have landed.
func (e *element) settleOn(o *element) {
	for _, w := range e.out {
		if w.to == o.id && e.newest(w) && !e.landed(w) {
			e.t.Broken(ruleFlush, "PE %d has left a barrier, and what PE %d put into its slot %d is not "+
				"there", o.id, e.id, w.slot)
		}
	}
}

// quiet calls Quiet, and checks that everything is complete.
func (e *element) quiet() {
	e.must("quiet", e.pe.Quiet(e.t.ctx))
	e.quieted()
}

// quieted checks that all calls of the PE are complete.
func (e *element) quieted() {
	t := e.t
	for _, w := range e.out {
		if e.newest(w) && !e.landed(w) {
			t.Broken(ruleFlush, "PE %d is quiet, and slot %d on PE %d does not hold what it put there", e.id,
				w.slot, w.to)
		}
		lab.Scribble(w.src)
	}
	e.out, e.gets = e.out[:0], 0
}

// newest reports whether a put is the last one to its slot.
func (e *element) newest(w *write) bool {
	for i := len(e.out) - 1; i >= 0; i-- {
		if o := e.out[i]; o.to == w.to && o.slot == w.slot {
			return o == w
		}
	}
	return true
}

// slot names a slot that PE by writes on others.
func (e *element) slot(by, slot int) shmem.Sym[byte] {
	i := (by*slots + slot) * slotSize
	return e.area.Slice(i, i+slotSize)
}

// target returns the memory that a put writes.
func (e *element) target(w *write) []byte {
	o := e.t.peers[w.to]
	return o.slot(e.id, w.slot).Local(o.pe)
}

func (e *element) landed(w *write) bool {
	return string(e.target(w)[:w.n]) == string(lab.Noise(w.key, w.n))
}

// touched reports whether some of a put has landed.
func (e *element) touched(w *write) bool {
	mem, want := e.target(w), lab.Noise(w.key, w.n)
	for i := range w.n {
		if mem[i] == want[i] && !mayBe(w.was, i, want[i]) {
			return true
		}
	}
	return false
}

// mayBe reports whether byte i of one of the list is v.
func mayBe(list [][]byte, i int, v byte) bool {
	return slices.ContainsFunc(list, func(b []byte) bool { return i < len(b) && b[i] == v })
}

// moved checks, after every action of the fabric, that fences hold.
func (t *shmemWorld) moved(a soft.Action) {
	if a.Kind != soft.Execute {
		return
	}
	for _, e := range t.peers {
		if e.epoch == 0 || e.failed != nil || len(e.out) < 2 {
			continue
		}
		for to := range t.peers {
			e.checkFence(to)
		}
	}
}

func (e *element) checkFence(to int) {
	if e.t.peers[to].closing {
		return
	}
	var hole *write
	for _, w := range e.out {
		switch {
		case w.to != to:
		case hole != nil && w.epoch > hole.epoch && e.touched(w):
			e.t.Broken(ruleFence, "PE %d: slot %d on PE %d has begun to change, and slot %d, before the "+
				"fence, has not", e.id, w.slot, to, hole.slot)
		case hole == nil && e.newest(w) && !e.landed(w):
			hole = w
		}
	}
}

// checkEnd checks that all PEs have played all phases.
func (t *shmemWorld) checkEnd() {
	for _, e := range t.peers {
		if e.failed == nil && t.all.Blame == "" && e.phase != len(t.plan.Events) {
			t.Broken(lab.Liveness, "PE %d has ended in phase %d", e.id, e.phase)
		}
		if e.failed != nil && t.all.Blame == "" {
			t.Broken(lab.Isolation, "PE %d: %v", e.id, e.failed)
		}
	}
}
