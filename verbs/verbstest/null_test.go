package verbstest

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/verbs"
)

// newNullQP makes a queue pair in RTS with one completion queue.
func newNullQP(tb testing.TB, c verbs.QPCap) (*nullQP, verbs.CQ) {
	tb.Helper()
	dev := NewNull(1).Device(0)
	pd, _ := dev.AllocPD()
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 256, Channel: verbs.NewCompChannel()})
	if err != nil {
		tb.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq, Cap: c})
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
		attr := verbs.QPAttr{State: s, DestQPNum: 99}
		if err := qp.Modify(&attr, modifyMask[s]); err != nil {
			tb.Fatal(err)
		}
	}
	return qp.(*nullQP), cq
}

// careless is a queue pair that takes every attribute, whatever the mask says.
type careless struct {
	verbs.QP
	attr verbs.QPAttr
}

func (q *careless) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	q.attr = *attr
	return q.QP.Modify(attr, mask)
}

func (q *careless) Query() (verbs.QPAttr, error) { return q.attr, nil }

// The check of masks finds a provider that ignores them, and nothing in one that does not.
func TestMasks(t *testing.T) {
	queuePair := func() verbs.QP {
		qp, _ := newNullQP(t, verbs.QPCap{})
		if err := qp.Modify(&verbs.QPAttr{}, verbs.QPAttrState); err != nil {
			t.Fatal(err)
		}
		return qp
	}
	if err := connectAmidNonsense(queuePair(), queuePair(), ConnectConfig{}); err != nil {
		t.Error(err)
	}
	err := connectAmidNonsense(queuePair(), &careless{QP: queuePair()}, ConnectConfig{})
	if err == nil || !strings.Contains(err.Error(), "was given") {
		t.Errorf("a provider that ignores the mask: %v", err)
	}
}

func TestNull(t *testing.T) {
	qp, cq := newNullQP(t, verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 2})
	wcs := make([]verbs.WC, 8)

	wrs := []verbs.SendWR{
		{ID: 1, Opcode: verbs.OpRDMAWrite},
		{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled},
		{ID: 3, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{{Length: 12}}},
		{ID: 4, Opcode: verbs.OpRDMAWrite},
		{ID: 5, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled},
	}
	if n, err := qp.PostSend(wrs); n != 4 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("5 requests to a queue of 4: accepted %d, %v", n, err)
	}
	n, _ := cq.Poll(wcs)
	want := []verbs.WC{
		{ID: 2, Opcode: verbs.WCSend, QPNum: qp.Num(), SrcQP: 99},
		{ID: 3, Opcode: verbs.WCRDMARead, QPNum: qp.Num(), SrcQP: 99, ByteLen: 12},
	}
	if n != len(want) || wcs[0] != want[0] || wcs[1] != want[1] {
		t.Fatalf("polled %+v, want %+v", wcs[:n], want)
	}
	// The unsignaled request 4 keeps its slot.
	if n, err := qp.PostSend([]verbs.SendWR{wrs[4], wrs[4], wrs[4], wrs[4]}); n != 3 ||
		!errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("accepted %d, %v; 3 slots are free", n, err)
	}
	if n, _ := cq.Poll(wcs); n != 3 {
		t.Fatalf("polled %d, want 3", n)
	}
	if n, err := qp.PostSend(wrs[:4]); n != 4 || err != nil {
		t.Fatalf("accepted %d, %v; the queue is empty", n, err)
	}
	cq.Poll(wcs)

	if n, err := qp.PostRecv([]verbs.RecvWR{{ID: 10}, {ID: 11}, {ID: 12}}); n != 2 ||
		!errors.Is(err, verbs.ErrQueueFull) {
		t.Fatalf("3 receives to a queue of 2: accepted %d, %v", n, err)
	}
	if err := cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if !CompleteRecv(qp, 7, 100, verbs.WCRecvRDMAWithImm) || !CompleteRecv(qp, 0, 5, verbs.WCRecv) ||
		CompleteRecv(qp, 0, 0, verbs.WCRecv) {
		t.Fatal("two receives are posted")
	}
	select {
	case <-cq.Channel().Events():
	default:
		t.Error("no event")
	}
	n, _ = cq.Poll(wcs)
	want = []verbs.WC{
		{ID: 10, Opcode: verbs.WCRecvRDMAWithImm, QPNum: qp.Num(), SrcQP: 99, ByteLen: 100, Imm: 7,
			Flags: verbs.WCWithImm},
		{ID: 11, Opcode: verbs.WCRecv, QPNum: qp.Num(), SrcQP: 99, ByteLen: 5},
	}
	if n != len(want) || wcs[0] != want[0] || wcs[1] != want[1] {
		t.Fatalf("polled %+v, want %+v", wcs[:n], want)
	}
	if err := cq.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("closing a queue in use: %v", err)
	}
	if err := qp.Close(); err != nil {
		t.Error(err)
	}
	if err := qp.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closing twice: %v", err)
	}
	if err := cq.Close(); err != nil {
		t.Error(err)
	}
}

// A queue of a Null has the depth that is asked for, rounded up to a power of two, and 256 without
// a wish. It takes as many completions, in turns as often as one likes.
func TestNullDepths(t *testing.T) {
	dev := NewNull(1).Device(0)
	for wish, depth := range map[int]int{0: 256, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 64: 64, 65: 128,
		nullMaxCQE: nullMaxCQE} {
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: wish})
		if err != nil || cq.Depth() != depth {
			t.Fatalf("%d: depth %d, %v; want %d", wish, cq.Depth(), err, depth)
		}
		if depth > 256 {
			continue
		}
		null := cq.(*nullCQ)
		null.dev.qps = []*nullQP{{}}
		wcs := make([]verbs.WC, depth+1)
		for round := range uint64(3) {
			for i := range depth {
				if !null.push(nullWC{id: round<<32 | uint64(i)}) {
					t.Fatalf("%d: full with %d", wish, i)
				}
			}
			if null.push(nullWC{}) {
				t.Errorf("%d: one more than it holds", wish)
			}
			if n, err := cq.Poll(wcs[:1]); n != 1 || err != nil || wcs[0].ID != round<<32 {
				t.Errorf("%d: polled %d, %v: %+v", wish, n, err, wcs[0])
			}
			if n, err := cq.Poll(wcs); n != depth-1 || err != nil {
				t.Errorf("%d: polled %d, %v of %d", wish, n, err, depth-1)
			}
		}
	}
	for _, wish := range []int{-1, nullMaxCQE + 1} {
		if _, err := dev.CreateCQ(verbs.CQConfig{Depth: wish}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("depth %d: %v", wish, err)
		}
	}
}

// An armed queue raises one event, for a receive alone if it was armed for nothing else.
func TestNullArm(t *testing.T) {
	for _, c := range []struct {
		arm          []bool // solicitedOnly
		sends, recvs bool   // whether a completion of the kind raises an event
	}{
		{nil, false, false}, {[]bool{false}, true, true}, {[]bool{true}, false, true},
		{[]bool{true, true}, false, true}, {[]bool{true, false}, true, true},
		{[]bool{false, true}, true, true},
	} {
		for _, recv := range []bool{false, true} {
			qp, cq := newNullQP(t, verbs.QPCap{})
			if _, err := qp.PostRecv(make([]verbs.RecvWR, 2)); err != nil {
				t.Fatal(err)
			}
			for _, solicitedOnly := range c.arm {
				if err := cq.Arm(solicitedOnly); err != nil {
					t.Fatal(err)
				}
			}
			want := c.sends
			if recv {
				want = c.recvs
			}
			for range 2 {
				if recv {
					CompleteRecv(qp, 0, 0, verbs.WCRecv)
				} else if _, err := qp.PostSend([]verbs.SendWR{{Flags: verbs.SendSignaled}}); err != nil {
					t.Fatal(err)
				}
				got := len(cq.Channel().Events()) != 0
				if got {
					<-cq.Channel().Events()
				}
				if got != want {
					t.Errorf("armed %v, receive %v: event %v", c.arm, recv, got)
				}
				want = false // once
			}
		}
	}
	plain, err := NewNull(1).Device(0).CreateCQ(verbs.CQConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.Arm(false); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("armed without a channel: %v", err)
	}
}

// A reset drops the completions of the queue pair, and leaves those of others in their order.
func TestNullReset(t *testing.T) {
	qp, cq := newNullQP(t, verbs.QPCap{})
	null := cq.(*nullCQ)
	other := uint32(len(null.dev.qps))
	null.dev.qps = append(null.dev.qps, &nullQP{})
	for i := range uint64(6) {
		null.push(nullWC{id: i, qp: (other - 1) + uint32(i%2)})
	}
	if err := qp.Modify(&verbs.QPAttr{State: verbs.StateReset}, verbs.QPAttrState); err != nil {
		t.Fatal(err)
	}
	wcs := make([]verbs.WC, 6)
	if n, err := cq.Poll(wcs); n != 3 || err != nil || wcs[0].ID != 1 || wcs[1].ID != 3 || wcs[2].ID != 5 ||
		wcs[0].QPNum != qp.Num()+1 {
		t.Errorf("polled %+v, %v", wcs[:n], err)
	}
}

func TestNullPublish(t *testing.T) {
	null := NewNull(2)
	c := make(chan verbs.Event, 1)
	stop := null.Device(1).Watch(c)
	null.Publish(0, verbs.Event{Type: verbs.EventPortErr, Port: 1}) // another device
	null.Publish(1, verbs.Event{Type: verbs.EventPortActive, Port: 1})
	if got, want := (<-c).String(), "null1 port 1: port active"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	stop()
	null.Publish(1, verbs.Event{})
	if len(c) != 0 {
		t.Error("an event after stop")
	}
}

// BenchmarkNull measures a post and a poll through the interfaces, per request, in batches of 64.
func BenchmarkNull(b *testing.B) {
	const batch = 64
	bench := func(name string, post, poll bool) {
		b.Run(name, func(b *testing.B) {
			null, cq := newNullQP(b, verbs.QPCap{})
			var qp verbs.QP = null
			sge := []verbs.SGE{{Addr: 1 << 32, Length: 4096, LKey: 1}}
			wrs := make([]verbs.SendWR, batch)
			for i := range wrs {
				wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
					SGL: sge, RemoteAddr: 1 << 33, RKey: 2}
			}
			wcs := make([]verbs.WC, batch)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += batch {
				if post {
					if n, _ := qp.PostSend(wrs); n != batch {
						b.Fatal(n)
					}
				} else {
					null.sendCQ.tail += batch
				}
				if poll {
					if n, _ := cq.Poll(wcs); n != batch {
						b.Fatal(n)
					}
				} else {
					null.sendCQ.head += batch
				}
				null.sendFree = 128
			}
		})
	}
	b.Run("receive", func(b *testing.B) {
		null, cq := newNullQP(b, verbs.QPCap{})
		var qp verbs.QP = null
		wrs := make([]verbs.RecvWR, batch)
		wcs := make([]verbs.WC, batch)
		b.ReportAllocs()
		for i := 0; i < b.N; i += batch {
			if n, _ := qp.PostRecv(wrs); n != batch {
				b.Fatal(n)
			}
			for range batch {
				CompleteRecv(null, 1, 2, verbs.WCRecvRDMAWithImm)
			}
			if n, _ := cq.Poll(wcs); n != batch {
				b.Fatal(n)
			}
		}
	})
	bench("post+poll", true, true)
	bench("post", true, false)
	bench("poll", false, true)
}
