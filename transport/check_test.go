package transport

import (
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/flow"
	"ibverbx/internal/guard"
	"ibverbx/internal/ring"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// checkedPeer is an open endpoint of a worker with four AM buffers, and nothing beneath it.
func checkedPeer() *peerState {
	p := &peerState{w: &Worker{cfg: Config{AMBuffers: 4}}}
	p.sending.ops, p.sending.limit = ring.NewWindow[op](), 2
	p.credits = flow.New(4)
	p.credits.Connect(4)
	p.receiving.messages = make([]Message, 4+controlSlots)
	p.ending.move(stageOpen)
	return p
}

// Each invariant that is broken is found.
func TestChecksFindBrokenInvariants(t *testing.T) {
	if err := checkedPeer().check(); err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(p *peerState){
		"an error in an open endpoint":     func(p *peerState) { p.ending.err = errors.New("x") },
		"failed without an error":          func(p *peerState) { p.ending.stage = stageFailed },
		"failedBusy of an open endpoint":   func(p *peerState) { p.ending.failedBusy = true },
		"a negative number of control ops": func(p *peerState) { p.sending.controlOps = -1 },
		"more control ops than ops":        func(p *peerState) { p.sending.controlOps = 1 },
		"more operations than the limit": func(p *peerState) {
			for range 3 {
				p.sending.ops.Push()
			}
		},
		"too many control operations": func(p *peerState) {
			for range controlSlots + 1 {
				p.sending.pushControl(opCredits)
			}
		},
		"a flush before everything": func(p *peerState) { p.sending.ops.Push().kind = opFlush },
		"a request without a turn": func(p *peerState) {
			req := &Pending{}
			p.sending.pending.list.PushBack(&req.link, req)
		},
		"a credit that is not counted": func(p *peerState) { p.credits.Arrive() },
		"a message without a credit": func(p *peerState) {
			p.receiving.messages[0].state = messageKept
		},
		"a credit given for a posted buffer": func(p *peerState) { p.credits.Free(1) },
		"a kept buffer to be posted": func(p *peerState) {
			p.credits.Arrive()
			p.receiving.messages[0].state = messageKept
			p.receiving.toRepost = []uint32{0}
		},
		"released with operations": func(p *peerState) {
			p.sending.ops.Push()
			p.ending.fail(stageAborted, ErrCanceled, true)
			p.ending.move(stageReleased)
		},
	} {
		p := checkedPeer()
		damage(p)
		if p.check() == nil {
			t.Errorf("%s is not found", name)
		}
	}
}

// Every stage can come to its end, and in builds with the race detector a move that the table does
// not have panics.
func TestStagesOnlyMoveForward(t *testing.T) {
	for from, next := range nextStages {
		if (next == 0) != (stage(from) == stageReleased) || next&(1<<from-1|1<<from) != 0 {
			t.Errorf("from %v to %b", stage(from), next)
		}
	}
	defer func() {
		if (recover() != nil) != guard.Checked {
			t.Errorf("checking %v, and a move back to open panics: %v", guard.Checked, !guard.Checked)
		}
	}()
	p := checkedPeer()
	p.ending.fail(stageViolated, ErrProtocol, false)
	p.ending.move(stageOpen)
}

// The worker's own invariants count endpoints and bounce buffers: each that is broken panics.
func TestChecksFindBrokenInvariantsOfAWorker(t *testing.T) {
	healthy := func() (*Worker, *peerState) {
		p := checkedPeer()
		w := p.w
		w.cfg.BounceBuffers = 4
		w.bounce = bouncePool{free: []int32{1, 2}}
		p.sending.limit, p.sending.ownBuffers = 4, 1<<1
		w.endpoints.add(p)
		for _, buf := range []int32{0, noBuffer, firstOwn, 3} {
			p.sending.ops.Push().buf = buf
		}
		return w, p
	}
	w, _ := healthy()
	w.mustHold()
	for name, damage := range map[string]func(w *Worker, p *peerState){
		"an endpoint is counted twice":  func(w *Worker, _ *peerState) { w.endpoints.open++ },
		"an endpoint is not counted":    func(w *Worker, _ *peerState) { w.endpoints.open-- },
		"a shared buffer is lost":       func(w *Worker, _ *peerState) { w.bounce.free = w.bounce.free[1:] },
		"a shared buffer is held twice": func(_ *Worker, p *peerState) { p.sending.ops.At(2).buf = 3 },
		"an own buffer is lost":         func(_ *Worker, p *peerState) { p.sending.ownBuffers = 0 },
		"an own buffer is free and held": func(_ *Worker, p *peerState) {
			p.sending.ownBuffers = 1<<ownBuffers - 1
		},
		"an endpoint is broken": func(_ *Worker, p *peerState) { p.sending.controlOps = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			w, p := healthy()
			damage(w, p)
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "invariant broken") {
					t.Errorf("the check panics with %q", text)
				}
			}()
			w.mustHold()
		})
	}
}

// Credits that come with a buffer once it is posted again are owed already; the buffers of the
// transport's own messages owe none.
func TestBuffersToPostAgainOweTheirCredits(t *testing.T) {
	p := checkedPeer()
	p.w.bounce = bouncePool{}
	p.sending.ownBuffers = 1<<ownBuffers - 1
	p.w.endpoints.add(p)
	e := &Endpoint{peer: p}
	if owed := e.Stats().Owed; owed != 0 {
		t.Errorf("%d credits are owed before a message", owed)
	}
	for slot := range uint32(2) { // of active messages
		if !p.credits.Arrive() {
			t.Fatal("no credit")
		}
		p.receiving.messages[slot].returnsCredit = true
		p.receiving.toRepost = append(p.receiving.toRepost, slot)
	}
	p.receiving.toRepost = append(p.receiving.toRepost, 4, 5) // of the transport's own
	if owed := e.Stats().Owed; owed != 2 {
		t.Errorf("%d credits are owed for two active messages", owed)
	}
	p.receiving.messages[0].returnsCredit = false
	p.receiving.toRepost = p.receiving.toRepost[1:]
	p.credits.Free(1)
	if owed := e.Stats().Owed; owed != 2 {
		t.Errorf("%d credits are owed, one of whose buffers is posted", owed)
	}
}

// The operation that failed is named, not one that is outstanding before it. What was never posted
// is named by its opcode, a receive by what it is for.
func TestNameOfOneOfSeveral(t *testing.T) {
	p := checkedPeer()
	kinds := []opKind{opPut, opGet, opFetchAdd}
	next := p.sending.ops.Tail
	for _, k := range kinds {
		p.sending.ops.Push().kind = k
	}
	for n, k := range kinds {
		f := &ibverbx.FailedError{HasID: true, ID: next + uint64(n), Opcode: verbs.WCCompSwap}
		if got := p.nameOf(f); got != opNames[k] {
			t.Errorf("operation %d: %q, want %q", n, got, opNames[k])
		}
	}
	for opcode, want := range map[verbs.WCOpcode]string{
		verbs.WCSend: "active message", verbs.WCRDMAWrite: "put", verbs.WCRDMARead: "get",
		verbs.WCFetchAdd: "fetch add", verbs.WCCompSwap: "compare swap", verbs.WCRecv: "",
	} {
		f := &ibverbx.FailedError{HasID: true, ID: p.sendID(), Opcode: opcode}
		if got := p.nameOf(f); got != want {
			t.Errorf("%v: %q, want %q", opcode, got, want)
		}
		f.ID = p.recvID(1)
		if got := p.nameOf(f); got != "receive of messages" {
			t.Errorf("a receive: %q", got)
		}
		f.HasID = false
		if got := p.nameOf(f); got != "" {
			t.Errorf("without an id: %q", got)
		}
	}
}

// The table finds endpoints by their ids, gives free places away again, and stops when asked to.
func TestTableOfEndpoints(t *testing.T) {
	var table endpointTable
	list := make([]*peerState, 4)
	for i := range list {
		if id := table.free(); id != i || table.at(uint32(i)) != nil {
			t.Fatalf("place %d is free, want %d", id, i)
		}
		list[i] = &peerState{id: uint32(i)}
		table.add(list[i])
	}
	table.remove(list[1])
	if table.open != 3 || table.free() != 1 || table.at(1) != nil || table.at(3) != list[3] ||
		table.at(4) != nil || table.at(1<<31) != nil {
		t.Errorf("%d open, place %d is free", table.open, table.free())
	}
	var all []*peerState
	for p := range table.all {
		if all = append(all, p); len(all) == 2 {
			break
		}
	}
	if len(all) != 2 || all[0] != list[0] || all[1] != list[2] {
		t.Errorf("yielded %v", all)
	}
	for p := range table.all {
		table.remove(p)
	}
	if table.open != 0 || table.free() != 0 {
		t.Errorf("%d open after all were removed", table.open)
	}
}

// The kinds of callbacks have names, for the error of a worker that one has ended.
func TestNamesOfCallbacks(t *testing.T) {
	if e, p := callbackEvent.String(), callbackPending.String(); p != "a pending function" ||
		e != "a handler, completion function or error function" {
		t.Errorf("%q and %q", e, p)
	}
}

// The parts of an endpoint's memory lie in order and apart: receive buffers, bounce buffers of its
// own, cells, scratch words. All begin at multiples of eight bytes, which atomics need, and nothing
// is wasted but for that.
func TestPartsOfASlab(t *testing.T) {
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	const buffers, rails = 3, 2
	for _, size := range []int{1, 7, 8, 9, 15, 16, 17, 100, 8192} {
		for _, ops := range []int{1, 2, 3, 4, 7, 8, 9} {
			s, err := newSlab(dom, buffers, size, ops, rails)
			if err != nil {
				t.Fatal(err)
			}
			at := uint64(0)
			part := func(what string, got ibverbx.Segment, n, room int) {
				t.Helper()
				if got.Addr-s.mr.Addr() != at || got.Length != uint64(n) {
					t.Fatalf("buffers of %d, %d operations: %s has %d bytes at %d, want %d at %d", size, ops,
						what, got.Length, got.Addr-s.mr.Addr(), n, at)
				}
				at += uint64(room)
			}
			stride := (size + 7) / 8 * 8
			for slot := range uint32(buffers) {
				part("a receive buffer", s.receive(slot), size, stride)
				if b := s.bytes(slot); len(b) != size || &b[0] != &s.mem[int(slot)*stride] {
					t.Errorf("receive buffer %d: %d bytes elsewhere", slot, len(b))
				}
			}
			for k := range int32(ownBuffers) {
				part("an own buffer", s.ownSegment(k, size), size, stride)
				if b := s.ownBytes(k); len(b) != size || cap(b) != size {
					t.Errorf("own buffer %d: %d bytes, room for %d", k, len(b), cap(b))
				}
			}
			cells := 2
			for cells <= ops {
				cells *= 2
			}
			for n := range uint64(cells) {
				part("a cell", s.cell(n), 8, 8)
				s.cellBytes(n)[0] = byte(n + 1)
				if again := s.cellBytes(n + uint64(cells)); len(again) != 8 || again[0] != byte(n+1) ||
					s.cellValue(n) == 0 {
					t.Errorf("%d operations: cell %d is not that of operation %d", ops, n, n+uint64(cells))
				}
			}
			part("the scratch words", s.scratch(8*rails), 8*rails, 8*rails)
			if at != uint64(len(s.mem)) {
				t.Errorf("buffers of %d, %d operations: %d bytes, %d are used", size, ops, len(s.mem), at)
			}
			if err := s.mr.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A buffer is lent once: of those that all share the one given back last, and the endpoint's own
// when there is no other.
func TestBuffersAreLentOnce(t *testing.T) {
	dom, err := ibverbx.NewDomain(verbstest.NewNull(1).Device(0))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := newBouncePool(dom, 2, 24)
	if err != nil {
		t.Fatal(err)
	}
	p := &peerState{w: &Worker{bounce: pool}}
	if p.mem, err = newSlab(dom, 1, 24, 1, 1); err != nil {
		t.Fatal(err)
	}
	p.sending.ownBuffers = 1<<ownBuffers - 1
	for range 2 {
		var taken []int32
		seen := map[uint64]bool{}
		for p.hasBuffer() {
			i := p.takeBuffer()
			b, s := p.bufferBytes(i), p.bufferSegment(i, 20)
			if len(b) != 24 || cap(b) != 24 || s.Length != 20 || seen[s.Addr] {
				t.Fatalf("buffer %d: %d bytes, room for %d, %v", i, len(b), cap(b), s)
			}
			seen[s.Addr] = true
			if own := len(taken) >= 2; own != (i <= firstOwn) {
				t.Errorf("buffer %d comes as number %d", i, len(taken))
			}
			taken = append(taken, i)
		}
		if len(taken) != 2+ownBuffers {
			t.Fatalf("%d buffers: %v", len(taken), taken)
		}
		for _, i := range taken {
			if p.putBuffer(i); !p.hasBuffer() {
				t.Fatalf("buffer %d was given back, and there is none", i)
			}
			if again := p.takeBuffer(); again != i {
				t.Errorf("given back %d, lent %d", i, again)
			}
		}
		for _, i := range []int32{taken[3], taken[1], taken[2], taken[0]} {
			p.putBuffer(i)
		}
		if last := p.takeBuffer(); last != taken[0] {
			t.Errorf("lent %d, and %d was given back last", last, taken[0])
		} else {
			p.putBuffer(last)
		}
		pool.free[0], pool.free[1] = 1, 0
	}
}
