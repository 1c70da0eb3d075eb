package ibverbx_test

import (
	"errors"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Stats count accepted requests, and no refused ones.
func TestSingleQPCountsWhatWasAccepted(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{MaxMsgCntPerQP: 4}})
	stall := l.fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	defer stall.Remove()
	inline := ibverbx.SendWR{ID: 0, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: make([]byte, 7)}
	scattered := l.a.write(verbs.OpRDMAWrite, 1, 0, 30)
	scattered.Local, scattered.SGL = ibverbx.Segment{},
		[]ibverbx.Segment{l.a.mr.Slice(0, 10), l.a.mr.Slice(100, 20)}
	wrs := []ibverbx.SendWR{inline, scattered}
	for id := uint64(2); id < 20; id++ {
		wrs = append(wrs, l.a.write(verbs.OpRDMAWrite, id, 0, 100))
	}
	for len(wrs) > 16 { // some in one call
		n, err := l.a.PostSend(wrs[:min(3, len(wrs))]...)
		if wrs = wrs[n:]; err != nil {
			break
		}
	}
	if r := l.a.Stats().Rails[0]; r.Bytes != 7+30+200 || r.Fragments != 4 {
		t.Errorf("%d bytes in %d", r.Bytes, r.Fragments)
	}
}

// When its NIC is gone, a single queue pair fails with the first post, send or receive.
func TestSingleQPOnANICThatIsGone(t *testing.T) {
	l := newLink(t, linkConfig{})
	l.a.expectRecv(t, 1)
	l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.a.nics[0], Err: verbs.ErrDeviceGone})
	_, err := l.a.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.a.mr.Slice(8, 16)})
	var fe *ibverbx.FailedError
	if !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(l.a.Err(), &fe) {
		t.Fatalf("%v; Err %v", err, l.a.Err())
	}
	if !errors.Is(fe, verbs.ErrDeviceGone) || !fe.Recv || !fe.HasID || fe.ID != 2 ||
		fe.Opcode != verbs.WCUnknown ||
		fe.LocalAddr != l.a.mr.Addr()+8 || fe.Length != 16 || fe.Rail != 0 {
		t.Errorf("%+v", fe)
	}
	if wc := l.a.wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// A call may have more requests than are handed to the queue pair at a time.
func TestSingleQPTakesManyRequestsInOneCall(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 128, 200} {
		l := newLink(t, linkConfig{qp: ibverbx.Config{MaxMsgCntPerQP: 256}, cqDepth: 4096})
		wrs, recvs := make([]ibverbx.SendWR, n), make([]ibverbx.RecvWR, n)
		want := make([]uint64, n)
		for i := range wrs {
			wrs[i] = l.a.write(verbs.OpRDMAWriteWithImm, uint64(i), uint64(8*i), 8)
			recvs[i].ID, want[i] = uint64(i), uint64(i)
		}
		fillRandom(l.a.buf[:8*n], uint64(n))
		if got, err := l.b.PostRecv(recvs...); got != n || err != nil {
			t.Fatalf("%d of %d receives, %v", got, n, err)
		}
		if got, err := l.a.PostSend(wrs...); got != n || err != nil {
			t.Fatalf("%d of %d sends, %v", got, n, err)
		}
		for _, e := range []*end{l.a, l.b} {
			if got := ids(t, e.wait(t, n), verbs.StatusSuccess); !slices.Equal(got, want) {
				t.Errorf("%d requests: %v", n, got)
			}
		}
		mustEqual(t, "data", l.b.buf[:8*n], l.a.buf[:8*n])
	}
}
