package sim

import (
	"encoding/json"
	"errors"
	"slices"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// This file makes wrong calls in the middle of traffic. Other tests check which calls are refused,
// each limit, and the text of the error. Here some calls of each kind show that a refusal changes
// nothing, whatever is under way.

// wrongCalls must be refused in any state, by an end or by its domain, virtual CQ or NICs.
var wrongCalls = []func(e *end) error{
	func(e *end) error { return last(ibverbx.NewDomain(e.devices()[0], e.devices()[0])) },
	func(e *end) error { return last(ibverbx.NewVirtualCQ(nil, nil)) },
	func(e *end) error { return last(ibverbx.NewVirtualQP(e.cq.cq, nil, nil, ibverbx.Config{})) },
	func(e *end) error {
		same := []verbs.QP{e.wires[0], e.wires[0]}
		return last(ibverbx.NewVirtualQP(e.cq.cq, same, nil, ibverbx.Config{NoNotifyQP: true}))
	},
	func(e *end) error { return last(ibverbx.Open(e.devices(), ibverbx.Config{MaxInline: -1})) },
	func(e *end) error { // each NIC has a CQ before one is found to be too shallow
		return last(ibverbx.Open(e.devices(), ibverbx.Config{MaxMsgCntPerQP: 1 << 14, QPsPerDevice: 100}))
	},
	func(e *end) error { return last(e.host.Dom.NewCQ(-1)) },
	func(e *end) error { return last(e.host.Dom.NewQP(e.cq.cq, ibverbx.Config{MaxSGE: -1})) },
	func(e *end) error { return last(e.host.Dom.Register(make([]byte, 8), verbs.AccessRemoteWrite)) },
	func(e *end) error { return e.vq.Drain(nil) }, //nolint:staticcheck // nil is the mistake
	func(e *end) error { return e.vq.Modify(verbs.QPAttr{State: verbs.StateSQE}, verbs.QPAttrState, nil) },
	func(e *end) error { return e.vq.Connect(ibverbx.BusinessCard{QPNums: make([]uint32, 77)}) },
	func(e *end) error { return e.vq.Connect(ibverbx.BusinessCard{QPNums: []uint32{1}, Credits: -1}) },
	func(e *end) error { return json.Unmarshal([]byte(`{"qpNums":["0"]}`), new(ibverbx.BusinessCard)) },
}

// last returns the error of a call with two results.
func last[T any](_ T, err error) error { return err }

// callWrongly makes one of the wrong calls.
func (e *end) callWrongly() {
	w, i := e.w, e.w.Rng.IntN(len(wrongCalls))
	worked := e.vq.Err() == nil
	before, sends, state := w.Fabric.Objects(), e.vq.Stats().Sends, e.vq.State()
	err := wrongCalls[i](e)
	w.Logf("  wrong call %d: %v", i, err)
	if err == nil {
		w.Broken(lab.Refusal, "%v: wrong call %d is accepted", e, i)
	}
	if worked && e.vq.Err() != nil {
		e.checkErr() // the call met a fault
		return
	}
	if after := w.Fabric.Objects(); after != before || e.vq.Stats().Sends != sends || e.vq.State() != state {
		w.Broken(lab.Leak, "%v: wrong call %d leaves %v open, before it were %v; %d sends, before %d; %v, "+
			"before %v", e, i, after, before, e.vq.Stats().Sends, sends, e.vq.State(), state)
	}
}

// devices returns the NICs of the end's host, without their taps.
func (e *end) devices() (list []verbs.Device) {
	for _, d := range e.host.NICs {
		list = append(list, d.Device)
	}
	return list
}

// spoiltSends are ways to spoil a write of a few bytes, over any queue pairs.
var spoiltSends = []func(e *end, wr *ibverbx.SendWR){
	func(_ *end, wr *ibverbx.SendWR) { wr.Opcode = 77 },
	func(_ *end, wr *ibverbx.SendWR) { wr.Flags |= 1 << 20 },
	func(_ *end, wr *ibverbx.SendWR) { wr.Inline = []byte{1} },
	func(_ *end, wr *ibverbx.SendWR) {
		wr.Flags, wr.Local, wr.Inline = wr.Flags|verbs.SendInline, ibverbx.Segment{}, make([]byte, 1000)
	},
	func(_ *end, wr *ibverbx.SendWR) { wr.SGL = []ibverbx.Segment{wr.Local} },
	func(_ *end, wr *ibverbx.SendWR) { wr.Relaxed = true },
	func(_ *end, wr *ibverbx.SendWR) { wr.EveryRail, wr.Local.Length = true, 0 },
	func(_ *end, wr *ibverbx.SendWR) { wr.Opcode, wr.Local = verbs.OpAtomicFetchAdd, ibverbx.Segment{} },
	func(_ *end, wr *ibverbx.SendWR) { wr.Local.Keys = nil },
	func(_ *end, wr *ibverbx.SendWR) { wr.Remote.Keys = nil },
	func(e *end, wr *ibverbx.SendWR) { wr.Local = e.host.MR.Slice(arenaSize-1, 8) },
	func(_ *end, wr *ibverbx.SendWR) { wr.Remote.Length = wr.Local.Length - 1 },
	func(e *end, wr *ibverbx.SendWR) { wr.Local = e.closedMemory() },
	func(e *end, wr *ibverbx.SendWR) {
		wr.SGL, wr.Local = []ibverbx.Segment{e.host.MR.Slice(0, 2), e.closedMemory()}, ibverbx.Segment{}
	},
}

// spoiltRecvs are ways to spoil a receive.
var spoiltRecvs = []func(e *end, wr *ibverbx.RecvWR){
	func(_ *end, wr *ibverbx.RecvWR) { wr.SGL = []ibverbx.Segment{wr.Local} },
	func(_ *end, wr *ibverbx.RecvWR) { wr.Local.Keys = nil },
	func(e *end, wr *ibverbx.RecvWR) { wr.Local = e.host.MR.Slice(arenaSize-1, 2) },
	func(e *end, wr *ibverbx.RecvWR) {
		wr.SGL, wr.Local = slices.Repeat([]ibverbx.Segment{wr.Local}, 50), ibverbx.Segment{}
	},
	func(e *end, wr *ibverbx.RecvWR) { wr.Local = e.closedMemory() },
}

// closedMemory names memory that was closed; nowhere if none is available now.
func (e *end) closedMemory() ibverbx.Segment {
	mr, err := e.host.Dom.Register(make([]byte, 64), verbs.AccessAll)
	if err != nil {
		return ibverbx.Segment{Addr: 4096, Length: 2}
	}
	e.w.Must("close memory", mr.Close())
	return mr.Slice(0, 2)
}

// spoiltSend returns a write of a few bytes that is spoilt in one of these ways.
func (e *end) spoiltSend() ibverbx.SendWR {
	wr := ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: e.host.MR.Slice(0, 4), Remote: e.peer.host.Remote.Slice(0, 4)}
	spoiltSends[e.drawWay(len(spoiltSends))](e, &wr)
	return wr
}

// spoiltRecv returns a receive that is spoilt in one of these ways.
func (e *end) spoiltRecv() ibverbx.RecvWR {
	wr := ibverbx.RecvWR{ID: 1, Local: e.host.MR.Slice(0, 4)}
	spoiltRecvs[e.drawWay(len(spoiltRecvs))](e, &wr)
	return wr
}

func (e *end) drawWay(of int) int {
	i := e.w.Rng.IntN(of)
	e.w.Logf("  the last is spoilt in way %d", i)
	return i
}

// batch is requests or receives that are posted together.
type batch struct {
	what      string
	first     int // index of the first one
	good, all int // how many; those behind the good ones are spoilt
	post      func() (int, error)
	counted   func() uint64   // how many the library has accepted
	posted    func(i int) any // the one with an index
	keep      func(n int)     // drops those from an index on, which were refused
	full      func() bool     // a single queue pair has no room
}

// post posts a batch. All good ones are accepted and counted, unless no post is allowed. A single
// queue pair returns its NIC's own errors.
func (e *end) post(b *batch) {
	if b.all == 0 {
		return
	}
	want, before := e.refusal(), b.counted()
	n, err := b.post()
	for i := range min(n, b.good) {
		e.w.Logf("  %v posts %v", e, b.posted(b.first+i))
	}
	if err != nil {
		e.w.Logf("  %v", err)
	}
	b.keep(b.first + min(n, b.good))
	spoilt := b.all != b.good
	switch {
	case want != nil && n == 0 && errors.Is(err, want) && errors.As(err, new(*ibverbx.PostError)):
	case want == nil && n == b.good && (err != nil) == spoilt && (!spoilt || b.counted()-before == uint64(n)):
	case want == nil && e.single && (!spoilt || n < b.good) &&
		(errors.Is(err, verbs.ErrQueueFull) && b.full() || lab.Injected(err) || e.conn.Blame != ""):
	default:
		e.w.Broken(lab.Refusal, "%v: of %d %ss, %d of them good, in state %v %d are accepted, %d counted, "+
			"error %v, want %v", e, b.all, b.what, b.good, e.state, n, b.counted()-before, err, want)
	}
}

func (e *end) sendQueueFull() bool { return len(e.wires[0].sends) >= e.wires[0].Cap().MaxSendWR }

func (e *end) recvQueueFull() bool { return len(e.wires[0].recvs) >= e.wires[0].Cap().MaxRecvWR }
