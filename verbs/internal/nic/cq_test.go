package nic

import (
	"testing"

	"ibverbx/verbs"
)

// Slots are free again when the completion of their request, or of a later one, was polled.
func TestSlotsAreFreedByPolling(t *testing.T) {
	r := newRig(t)
	r.ready()
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: r.sge(0, 8)}
	for i := range uint64(16) {
		wr.ID = i
		r.send(wr)
	}
	if err := r.qp.CheckSend(&wr); err == nil {
		t.Fatal("accepted more than the queue holds")
	}
	r.sent(3)
	refused(t, "before the poll", r.qp.CheckSend(&wr), verbs.ErrQueueFull, "the queue holds 16")
	wcs, err := r.poll()
	must(t, err)
	want := verbs.WC{ID: 3, Opcode: verbs.WCRDMAWrite, QPNum: r.qp.Num}
	if len(wcs) != 1 || wcs[0] != want {
		t.Fatalf("polled %+v, want %+v", wcs, want)
	}
	for range 4 {
		r.send(wr)
	}
	refused(t, "four slots were freed", r.qp.CheckSend(&wr), verbs.ErrQueueFull, "")
	must(t, r.qp.CheckInvariants())
}

// A completion in a used place of the ring has nothing of what was there before.
func TestCompletionsAreMadeAnew(t *testing.T) {
	r := newRig(t)
	r.ready()
	for range 70 { // more than the ring has places
		r.recv(verbs.RecvWR{ID: 5, SGL: r.sge(0, 64)})
		seq, _ := r.qp.RQ.Take()
		r.qp.Failed(r.cq.Next(true), Recv, seq, verbs.StatusLocProtErr, 77, garbage())
		wcs, _ := r.poll()
		if len(wcs) != 1 || wcs[0].ID != 5 || wcs[0].Status != verbs.StatusLocProtErr ||
			wcs[0].VendorErr != 77 || wcs[0].QPNum != r.qp.Num {
			t.Fatalf("failed receive: %+v", wcs)
		}
	}
	for range 70 {
		r.sent(r.send(verbs.SendWR{ID: 6, Opcode: verbs.OpRDMARead, SGL: r.sge(0, 24)}))
		wcs, _ := r.poll()
		want := verbs.WC{ID: 6, Opcode: verbs.WCRDMARead, ByteLen: 24, QPNum: r.qp.Num}
		if len(wcs) != 1 || wcs[0] != want {
			t.Fatalf("read: %+v, want %+v", wcs, want)
		}
	}
	for _, c := range []struct {
		m    Message
		want verbs.WC
	}{
		{Message{Opcode: verbs.OpSend, Length: 7, Imm: 1, SrcQP: 9},
			verbs.WC{Opcode: verbs.WCRecv, ByteLen: 7, SrcQP: 9}},
		{Message{Opcode: verbs.OpSendWithImm, Length: 7, Imm: 1, SrcQP: 9},
			verbs.WC{Opcode: verbs.WCRecv, ByteLen: 7, SrcQP: 9, Imm: 1, Flags: verbs.WCWithImm}},
		{Message{Opcode: verbs.OpRDMAWriteWithImm, Length: 7, Imm: 1, SrcQP: 9},
			verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, ByteLen: 7, SrcQP: 9, Imm: 1, Flags: verbs.WCWithImm}},
	} {
		r.recv(verbs.RecvWR{ID: 8})
		seq, _ := r.qp.RQ.Take()
		r.qp.Received(r.cq.Next(false), seq, &c.m)
		c.want.ID, c.want.QPNum = 8, r.qp.Num
		wcs, _ := r.poll()
		if len(wcs) != 1 || wcs[0] != c.want {
			t.Errorf("%v: %+v, want %+v", c.m.Opcode, wcs, c.want)
		}
	}
}

// An armed queue raises one event, for the completions that it was armed for.
func TestArming(t *testing.T) {
	r := newRig(t)
	r.ready()
	plain := func() { r.cq.Add(&Completion{QP: r.qp}) }
	solicited := func() { r.cq.Add(&Completion{QP: r.qp, Solicited: true}) }
	for i, c := range []struct {
		arm  []bool // solicitedOnly
		add  func()
		want bool
	}{
		{nil, plain, false}, {nil, solicited, false},
		{[]bool{false}, plain, true}, {[]bool{false}, solicited, true},
		{[]bool{true}, plain, false}, {nil, solicited, true}, // still armed
		{[]bool{true, false}, plain, true},
		{[]bool{false, true}, plain, true},
		{nil, plain, false}, {nil, solicited, false}, // once
	} {
		for _, solicitedOnly := range c.arm {
			must(t, r.cq.Arm(solicitedOnly))
		}
		if c.add(); r.signaled() != c.want {
			t.Errorf("step %d: event %v", i, !c.want)
		}
		if wcs, err := r.poll(); len(wcs) != 1 || err != nil {
			t.Errorf("step %d: polled %d, %v", i, len(wcs), err)
		}
	}
}

// Completions that are reserved take room. A queue without room is dead once it overruns: what it
// has is still polled, and then it says so.
func TestOverrun(t *testing.T) {
	r := newRig(t)
	events := make(chan verbs.Event, 2)
	defer r.dev.Watch(events)()
	r.cq.Reserve(2)
	for range 2 {
		if r.cq.Full() {
			t.Fatal("full too early")
		}
		r.cq.Add(&Completion{QP: r.qp})
	}
	if !r.cq.Full() {
		t.Fatal("two and two reserved do not fill a queue of four")
	}
	r.cq.Reserve(-1)
	if r.cq.Full() {
		t.Fatal("what was given back still takes room")
	}
	must(t, r.cq.Arm(true))
	r.cq.Overrun()
	if !r.cq.Dead() || !r.signaled() || len(events) != 1 || (<-events).Type != verbs.EventCQErr {
		t.Error("nobody is told of the overrun")
	}
	wcs, err := r.poll()
	if len(wcs) != 2 || err != nil {
		t.Errorf("polled %d, %v", len(wcs), err)
	}
	_, err = r.poll()
	refused(t, "empty", err, verbs.ErrOverrun, "the queue holds 4 completions")
	refused(t, "arm", r.cq.Arm(false), verbs.ErrOverrun, "")
}

// A reset drops the queue pair's completions and leaves those of others, in their order.
func TestResetForgetsCompletions(t *testing.T) {
	r := newRig(t)
	r.ready()
	other := r.newQP()
	for i := range uint64(4) {
		c := Completion{QP: r.qp, WC: verbs.WC{ID: i}}
		if i%2 == 1 {
			c.QP = other
		}
		r.cq.Add(&c)
	}
	r.send(verbs.SendWR{})
	r.recv(verbs.RecvWR{})
	r.qp.Reset()
	wcs, err := r.poll()
	if err != nil || len(wcs) != 2 || wcs[0].ID != 1 || wcs[1].ID != 3 {
		t.Errorf("polled %+v, %v", wcs, err)
	}
	if _, ok := r.qp.SQ.TakeUnended(); ok || !r.qp.RQ.Empty() || r.qp.State != verbs.StateReset ||
		r.qp.Attr != (verbs.QPAttr{}) {
		t.Errorf("after a reset: %+v", r.qp.Attr)
	}
	must(t, r.qp.CheckInvariants())
}

// What is outstanding is flushed once, oldest first.
func TestFlushOrder(t *testing.T) {
	r := newRig(t)
	r.ready()
	for i := range uint64(3) {
		r.send(verbs.SendWR{ID: 10 + i})
		r.recv(verbs.RecvWR{ID: 20 + i})
	}
	r.qp.SQ.Executed, r.qp.SQ.Acked = 2, 1
	r.qp.RQ.Take()
	for _, want := range []uint64{11, 12} {
		if seq, ok := r.qp.SQ.TakeUnended(); !ok || r.qp.SQ.At(seq).ID != want {
			t.Errorf("send %d, want %d", r.qp.SQ.At(seq).ID, want)
		}
		must(t, r.qp.CheckInvariants())
	}
	for _, want := range []uint64{21, 22} {
		if seq, ok := r.qp.RQ.Take(); !ok || r.qp.RQ.At(seq).ID != want {
			t.Errorf("receive %d, want %d", r.qp.RQ.At(seq).ID, want)
		}
	}
	send, sends := r.qp.SQ.TakeUnended()
	recv, recvs := r.qp.RQ.Take()
	if sends || recvs || send != 0 || recv != 0 {
		t.Errorf("flushed twice: send %d, %v, receive %d, %v", send, sends, recv, recvs)
	}
}
