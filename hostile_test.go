package ibverbx

import (
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// within fails the test when fn does not come back.
func within(t *testing.T, d time.Duration, fn func()) {
	t.Helper()
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		fn()
	}()
	select {
	case p := <-panicked:
		if p != nil {
			t.Fatalf("panic: %v", p)
		}
	case <-time.After(d):
		t.Fatalf("no return within %v", d)
	}
}

// rawWrite is a WRITE of n bytes of memory that nobody looks at.
func rawWrite(id, n uint64) SendWR {
	keys := NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 2})
	return SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		Local: Segment{Addr: 1 << 40, Length: n, Keys: keys}, Remote: RemoteSegment{Addr: 1 << 41, Length: n,
			Keys: keys}}
}

// A completion that names a rail on which nothing of its request can be does not free a slot there.
func TestCompletionOnTheWrongRailIsDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{MaxMsgSize: 100, MaxMsgCntPerQP: 1})
	if _, err := r.PostSend(rawWrite(1, 200)); err != nil { // two fragments: both rails are full
		t.Fatal(err)
	}
	onNotify := verbs.WC{ID: wrid(kindData, r.send.rails.notify.idBits, 0, 1), QPNum: r.notify.Num()}
	if got := r.CQ().ProcessCompletions(nil, 0, onNotify); len(got) != 0 {
		t.Errorf("reported %+v", got)
	}
	within(t, 5*time.Second, func() {
		if _, err := r.PostSend(rawWrite(2, 100)); err != nil {
			t.Error(err)
		}
	})
	if got := r.finish(t); len(got) != 2 || got[0].Status != 0 || got[1].Status != 0 {
		t.Errorf("%+v", got)
	}
	if len(r.notify.posts) != 0 {
		t.Errorf("data went out on the notify QP: %+v", r.notify.posts)
	}
}

// A completion that comes twice frees one slot, not two.
func TestCompletionThatComesTwiceIsDropped(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{MaxMsgSize: 100, MaxMsgCntPerQP: 2})
	if _, err := r.PostSend(rawWrite(1, 200)); err != nil { // one fragment on each rail
		t.Fatal(err)
	}
	first := verbs.WC{ID: wrid(kindData, 0, 0, 1), QPNum: r.qps[0].Num()}
	r.CQ().ProcessCompletions(nil, 0, first, first, first)
	if s := r.Stats(); s.Rails[0].Outstanding < 0 || s.StaleEvents == 0 {
		t.Errorf("outstanding %d, dropped %d", s.Rails[0].Outstanding, s.StaleEvents)
	}
	within(t, 5*time.Second, func() {
		if _, err := r.PostSend(rawWrite(2, 400)); err != nil {
			t.Error(err)
		}
	})
}

// A failed marker carried no data: it has no position among the fragments, and the story says what
// it was.
func TestFailedMarkerIsNoFragment(t *testing.T) {
	r := newRecorded(t, 1, 2, Config{MaxMsgSize: 100})
	note := rawWrite(3, 8)
	note.Opcode = verbs.OpRDMAWriteWithImm
	// both rails carry plain data, so one gets a marker
	if _, err := r.PostSend(rawWrite(1, 200), note); err != nil {
		t.Fatal(err)
	}
	if r.Stats().Markers != 1 {
		t.Fatalf("%d markers", r.Stats().Markers)
	}
	for i, qp := range r.qps {
		for _, wr := range qp.posts {
			if wr.Opcode == verbs.OpRDMAWriteWithImm && wr.Bytes() == 0 {
				r.CQ().ProcessCompletions(nil, 0, verbs.WC{ID: wr.ID, Status: verbs.StatusRemAccessErr,
					QPNum: r.qps[i].Num()})
			}
		}
	}
	var fe *FailedError
	if !errors.As(r.Err(), &fe) || fe.ID != 3 {
		t.Fatal(r.Err())
	}
	if fe.Part != PartMarker || fe.Fragment != -1 || fe.Length != 0 ||
		!strings.Contains(fe.Error(), "RDMA_WRITE id 3, marker ahead") {
		t.Errorf("the marker failed: %+v", fe)
	}
}

// A single queue pair tracks nothing, so it cannot know the opcode of what failed, nor whether it
// was a receive. It must not claim to.
func TestSingleQPDoesNotInventTheFailedOpcode(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	a, err := Open([]verbs.Device{fabric.Device(0)}, Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open([]verbs.Device{fabric.Device(1)}, Config{QPsPerDevice: 1})
	if err != nil {
		t.Fatal(err)
	}
	cardA, _ := a.Card()
	cardB, _ := b.Card()
	if err := errors.Join(a.Connect(cardB), b.Connect(cardA)); err != nil {
		t.Fatal(err)
	}
	region, err := b.Domain().Register(make([]byte, 8), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	// too short for what comes
	if _, err := b.PostRecv(RecvWR{ID: 9, Local: region.Slice(0, 4)}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.PostSend(SendWR{ID: 8, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: make([]byte, 8)}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); a.Err() == nil || b.Err() == nil; {
		pollNow(t, a.CQ())
		pollNow(t, b.CQ())
		if time.Now().After(deadline) {
			t.Fatal("no error")
		}
	}
	for _, q := range []*VirtualQP{a, b} {
		if strings.Contains(q.Err().Error(), "RDMA_WRITE") {
			t.Errorf("nobody wrote: %v", q.Err())
		}
	}
	if err := errors.Join(a.Close(), b.Close(), region.Close(), fabric.Close()); err != nil {
		t.Error(err)
	}
}
