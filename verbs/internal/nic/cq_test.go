package nic

import (
	"runtime"
	"testing"
	"time"

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

// Whoever waits is counted while it waits and no longer: each WakeQuiet wakes all who wait, and
// without one it has nothing to do.
func TestAwaitQuietAgainAndAgain(t *testing.T) {
	var l Lock
	woken := make(chan struct{}, 3)
	for _, waiting := range []int{1, 3, 2, 1} {
		for n := 1; n <= waiting; n++ {
			go func() {
				l.Lock()
				l.AwaitQuiet()
				l.Unlock()
				woken <- struct{}{}
			}()
			for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
				l.Lock()
				waiters := l.waiters
				l.Unlock()
				if waiters == n {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d wait, want %d", waiters, n)
				}
			}
		}
		l.Lock()
		l.WakeQuiet()
		l.Unlock()
		for range waiting {
			select {
			case <-woken:
			case <-time.After(10 * time.Second):
				t.Fatal("one that waits is not woken")
			}
		}
		if l.Lock(); l.waiters != 0 {
			t.Errorf("%d wait after all were woken", l.waiters)
		}
		l.Unlock()
	}
}
