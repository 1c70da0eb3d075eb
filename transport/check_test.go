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
		w.bounce = &bouncePool{free: []int32{1, 2}}
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
	p.w.bounce = &bouncePool{}
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
