package nic

import (
	"errors"
	"testing"

	"ibverbx/verbs"
)

// A completion queue may be as deep as the NIC allows; without a wish it is 256 deep, or as deep.
func TestDepthsOfCompletionQueues(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		most, wish, depth int // 0 where it is refused
	}{
		{64, 0, 64}, {256, 0, 256}, {1000, 0, 256}, {1000, 1000, 1000}, {1000, 1, 1}, {1000, 257, 257},
		{1000, 1001, 0}, {1000, -1, 0},
	} {
		r.dev.Limits.MaxCQE = c.most
		var cq CQ
		err := cq.Init(&r.dev, nil, verbs.CQConfig{Depth: c.wish})
		if c.depth == 0 {
			refused(t, "depth", err, verbs.ErrInvalid, "the NIC allows 1 to 1000")
			continue
		}
		must(t, err)
		if cq.Depth() != c.depth {
			t.Errorf("%d of %d: depth %d, want %d", c.wish, c.most, cq.Depth(), c.depth)
		}
		for i := range c.depth {
			if cq.Full() {
				t.Fatalf("%d of %d: full with %d", c.wish, c.most, i)
			}
			cq.Add(&Completion{QP: r.qp, WC: verbs.WC{ID: uint64(i)}})
		}
		if !cq.Full() {
			t.Errorf("%d of %d: not full", c.wish, c.most)
		}
		wcs := make([]verbs.WC, c.depth+1)
		if n, err := cq.Poll(wcs); n != c.depth || err != nil || wcs[n-1].ID != uint64(n-1) {
			t.Errorf("%d of %d: polled %d, %v", c.wish, c.most, n, err)
		}
		must(t, cq.Close())
	}
}

// Rings are powers of two.
func TestSizesOfRings(t *testing.T) {
	for n, want := range map[int]int{1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 64: 64, 65: 128} {
		if got := ceilPow2(n); got != want {
			t.Errorf("%d for %d, want %d", got, n, want)
		}
	}
}

// A poll leaves what it has no room for, and an empty queue wants no attention.
func TestPollsOfAFew(t *testing.T) {
	r := newRig(t)
	r.ready()
	if wcs, err := r.poll(); len(wcs) != 0 || err != nil || r.cq.Attention() {
		t.Fatalf("polled %v, %v of a new queue", wcs, err)
	}
	for round := range uint64(3) {
		for i := range uint64(3) {
			r.cq.Add(&Completion{QP: r.qp, WC: verbs.WC{ID: i}})
		}
		var one [1]verbs.WC
		for i := range uint64(3) {
			if n, err := r.cq.Poll(nil); n != 0 || err != nil || !r.cq.Attention() {
				t.Fatalf("polled %d, %v without room, attention %t", n, err, r.cq.Attention())
			}
			if n, err := r.cq.Poll(one[:]); n != 1 || err != nil || one[0].ID != i {
				t.Fatalf("round %d: polled %d, %v: %+v, want %d", round, n, err, one[0], i)
			}
		}
		if n, err := r.cq.Poll(one[:]); n != 0 || err != nil || r.cq.Attention() {
			t.Fatalf("polled %d, %v of an empty queue, attention %t", n, err, r.cq.Attention())
		}
	}
	r.cq.Add(&Completion{QP: r.qp})
	r.cq.Overrun()
	if n, err := r.cq.Poll(nil); n != 0 || err != nil {
		t.Errorf("polled %d, %v: there is a completion before the overrun", n, err)
	}
	if wcs, err := r.poll(); len(wcs) != 1 || err != nil {
		t.Errorf("polled %d, %v", len(wcs), err)
	}
	for range 2 {
		if _, err := r.poll(); !errors.Is(err, verbs.ErrOverrun) || !r.cq.Attention() {
			t.Errorf("%v, attention %t", err, r.cq.Attention())
		}
	}
}

// Only a queue with a channel, and that is open, can be armed.
func TestQueuesThatCannotBeArmed(t *testing.T) {
	r := newRig(t)
	var cq CQ
	must(t, cq.Init(&r.dev, nil, verbs.CQConfig{}))
	refused(t, "without a channel", cq.Arm(false), verbs.ErrInvalid, "without a completion channel")
	must(t, cq.Close())
	refused(t, "closed", cq.Arm(false), verbs.ErrClosed, "")
	refused(t, "closed", cq.Close(), verbs.ErrClosed, "")
	if r.open.CQs != 1 {
		t.Errorf("%d queues are open", r.open.CQs)
	}
}

// A request that ended well completes where it was asked to, or where all of its queue pair do.
func TestWhoIsSignaled(t *testing.T) {
	for _, c := range []struct{ flag, all, want bool }{
		{false, false, false}, {true, false, true}, {false, true, true}, {true, true, true},
	} {
		s := &SendSlot{Flags: verbs.SendFence}
		if c.flag {
			s.Flags |= verbs.SendSignaled
		}
		if got := (&QP{SignalAll: c.all}).Signaled(s); got != c.want {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

// Each field of a completion is set, whatever was in its place.
func TestFieldsOfCompletions(t *testing.T) {
	r := newRig(t)
	r.ready()
	used := Completion{QP: &QP{}, Seq: 77, Dir: 7, Solicited: true, WC: verbs.WC{ID: 99, Status: 9,
		VendorErr: 9, Opcode: 99, ByteLen: 9, Imm: 9, QPNum: 9, SrcQP: 9, Flags: 9}}
	r.recv(verbs.RecvWR{ID: 4})
	for _, c := range []struct {
		opcode    verbs.Opcode
		solicited bool
		want      verbs.WC
	}{
		{verbs.OpSend, false, verbs.WC{Opcode: verbs.WCRecv}},
		{verbs.OpSend, true, verbs.WC{Opcode: verbs.WCRecv}},
		{verbs.OpSendWithImm, false, verbs.WC{Opcode: verbs.WCRecv, Imm: 5, Flags: verbs.WCWithImm}},
		{verbs.OpRDMAWriteWithImm, true, verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Imm: 5,
			Flags: verbs.WCWithImm}},
	} {
		got := used
		r.qp.Received(&got, 0, &Message{Opcode: c.opcode, Length: 3, Imm: 5, SrcQP: 6,
			Solicited: c.solicited})
		c.want.ID, c.want.ByteLen, c.want.QPNum, c.want.SrcQP = 4, 3, r.qp.Num, 6
		if want := (Completion{QP: r.qp, Dir: Recv, Solicited: c.solicited, WC: c.want}); got != want {
			t.Errorf("received:\n%+v, want\n%+v", got, want)
		}
	}
	for op, want := range map[verbs.Opcode]verbs.WC{
		verbs.OpRDMAWrite: {ID: 8, Opcode: verbs.WCRDMAWrite, QPNum: r.qp.Num},
		verbs.OpRDMARead:  {ID: 8, Opcode: verbs.WCRDMARead, QPNum: r.qp.Num, ByteLen: 24},
	} {
		got, seq := used, r.send(verbs.SendWR{ID: 8, Opcode: op, SGL: r.sge(0, 24)})
		r.qp.Sent(&got, seq, r.qp.SQ.At(seq))
		if want := (Completion{QP: r.qp, Seq: seq, Dir: Send, WC: want}); got != want {
			t.Errorf("sent:\n%+v, want\n%+v", got, want)
		}
	}
	// What failed says so, and mostly misleads whoever looks at the opcode.
	rng := garbage()
	for dir, id := range map[Direction]uint64{Send: 8, Recv: 4} {
		misleads := 0
		for range 400 {
			got := used
			r.qp.Failed(&got, dir, 0, verbs.StatusLocProtErr, 5, rng)
			w := got.WC
			if got.QP != r.qp || got.Seq != 0 || got.Dir != dir || !got.Solicited || w.ID != id ||
				w.Status != verbs.StatusLocProtErr || w.VendorErr != 5 || w.QPNum != r.qp.Num ||
				w.SrcQP > MaxQPNum || w.Flags&^verbs.WCWithImm != 0 {
				t.Fatalf("failed: %+v", got)
			}
			received := w.Opcode == verbs.WCRecv || w.Opcode == verbs.WCRecvRDMAWithImm || w.Opcode == 0xdead
			if received == (dir == Send) {
				misleads++
			}
		}
		if misleads < 250 || misleads > 350 { // three quarters of 400
			t.Errorf("direction %d: %d opcodes of 400 are of the other one", dir, misleads)
		}
	}
}

// A queue pair needs two open completion queues of its own NIC, and they count their users.
func TestCompletionQueuesOfAQueuePair(t *testing.T) {
	r, other := newRig(t), newRig(t)
	var closed CQ
	must(t, closed.Init(&r.dev, nil, verbs.CQConfig{}))
	must(t, closed.Close())
	check := func(send, recv *CQ) error {
		_, err := r.pd.CheckQP(verbs.QPCap{}, send, recv)
		return err
	}
	must(t, check(&r.cq, &r.cq))
	for _, bad := range []*CQ{nil, &other.cq} {
		refused(t, "sends", check(bad, &r.cq), verbs.ErrInvalid, "of the same NIC")
		refused(t, "receives", check(&r.cq, bad), verbs.ErrInvalid, "of the same NIC")
	}
	refused(t, "sends", check(&closed, &r.cq), verbs.ErrClosed, "the completion queue")
	refused(t, "receives", check(&r.cq, &closed), verbs.ErrClosed, "the completion queue")
	second := r.newQP()
	refused(t, "two queue pairs", r.cq.Close(), verbs.ErrBusy, "4 send and receive queues")
	r.closeQP(second)
	refused(t, "one queue pair", r.cq.Close(), verbs.ErrBusy, "2 send and receive queues")
}

// The states that take messages, and those in which sends and receives are posted.
func TestStatesOfAQueuePair(t *testing.T) {
	r := newRig(t)
	for state, c := range map[verbs.QPState]struct{ receptive, sends, recvs bool }{
		verbs.StateReset: {false, false, false}, verbs.StateInit: {false, false, true},
		verbs.StateRTR: {true, false, true}, verbs.StateRTS: {true, true, true},
		verbs.StateSQD: {true, true, true}, verbs.StateErr: {false, true, true},
	} {
		r.qp.State = state
		if r.qp.Receptive() != c.receptive || (r.qp.MaySend() == nil) != c.sends ||
			(r.qp.MayReceive() == nil) != c.recvs {
			t.Errorf("%v: takes messages %t, %v, %v", state, r.qp.Receptive(), r.qp.MaySend(),
				r.qp.MayReceive())
		}
		attr, err := r.qp.Query()
		if err != nil || attr.State != state || attr.CurState != state {
			t.Errorf("%v: %+v, %v", state, attr, err)
		}
	}
	var other CQ
	if !r.qp.Uses(&r.cq) || r.qp.Uses(&other) || !(&QP{CQs: [2]*CQ{&r.cq, &other}}).Uses(&other) ||
		!(&QP{CQs: [2]*CQ{&other, &r.cq}}).Uses(&other) {
		t.Error("completions go elsewhere")
	}
	r.qp.Closed = true
	_, err := r.qp.Query()
	refused(t, "query", err, verbs.ErrClosed, "")
	r.qp.Closed, r.dev.Gone = false, true
	_, err = r.qp.Query()
	refused(t, "query", err, verbs.ErrDeviceGone, "")
}

// Each invariant of the queues holds at its limit, and is found violated beyond.
func TestInvariantsOfQueues(t *testing.T) {
	r := newRig(t)
	for _, c := range []struct {
		freed, acked, executed, posted uint64
		ok                             bool
	}{
		{0, 0, 0, 0, true}, {5, 5, 5, 5, true}, {1, 2, 3, 4, true}, {1, 1, 1, 17, true},
		{2, 1, 3, 4, false}, {1, 4, 3, 4, false}, {1, 2, 5, 4, false}, {1, 1, 1, 18, false},
	} {
		s := &r.qp.SQ
		s.freed, s.Acked, s.Executed, s.Posted = c.freed, c.acked, c.executed, c.posted
		if err := r.qp.CheckInvariants(); (err == nil) != c.ok {
			t.Errorf("sends %+v: %v", c, err)
		}
		s.reset()
		if c.executed > c.posted {
			continue
		}
		q := &r.qp.RQ
		q.freed, q.Consumed, q.Posted = c.freed, c.acked, c.posted
		if err, ok := r.qp.CheckInvariants(), c.ok || c.acked <= c.posted && c.freed <= c.acked &&
			c.posted-c.freed <= 16; (err == nil) != ok {
			t.Errorf("receives %+v: %v", c, err)
		}
		q.reset()
	}
	r.qp.RQ.Consumed = 1
	if r.qp.CheckInvariants() == nil {
		t.Error("a receive was consumed that nobody has posted")
	}
}

// A reset drops what is outstanding and the queue pair's completions, of sends and of receives. It
// leaves those of others, in their order.
func TestResetForgets(t *testing.T) {
	r := newRig(t)
	var sends CQ
	must(t, sends.Init(&r.dev, nil, verbs.CQConfig{}))
	q := &QP{Num: 5, State: verbs.StateRTS, Attr: verbs.QPAttr{RQPSN: 1}, Cap: r.qp.Cap,
		CQs: [2]*CQ{&sends, &r.cq}}
	q.Init(&r.pd)
	q.SQ.Push(&verbs.SendWR{})
	q.RQ.Push(&verbs.RecvWR{})
	for _, cq := range q.CQs {
		for i := range uint64(4) {
			cq.Add(&Completion{QP: []*QP{q, r.qp}[i%2], WC: verbs.WC{ID: i}})
		}
	}
	q.Reset()
	for dir, cq := range q.CQs {
		var wcs [5]verbs.WC
		if n, err := cq.Poll(wcs[:]); n != 2 || err != nil || wcs[0].ID != 1 || wcs[1].ID != 3 {
			t.Errorf("direction %d: polled %+v, %v", dir, wcs[:n], err)
		}
	}
	if _, ok := q.SQ.TakeUnended(); ok || !q.RQ.Empty() || q.State != verbs.StateReset ||
		q.Attr != (verbs.QPAttr{}) {
		t.Errorf("after a reset: %+v", q.Attr)
	}
	must(t, q.CheckInvariants())
	q.Destroy()
	if sends.users != 0 || r.cq.users != 2 || r.open.QPs != 1 || r.pd.qps != 1 {
		t.Errorf("%d and %d users, %d queue pairs open, %d in the domain", sends.users, r.cq.users,
			r.open.QPs, r.pd.qps)
	}
}
