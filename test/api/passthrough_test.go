package api_test

import (
	"errors"
	"slices"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Stats count accepted requests, and no refused ones.
func TestSingleQPCountsWhatWasAccepted(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}})
	stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1})
	defer stall.Remove()
	inline := ibverbx.SendWR{ID: 0, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline,
		Inline: make([]byte, 7)}
	scattered := l.A.Write(verbs.OpRDMAWrite, 1, 0, 30)
	scattered.Local, scattered.SGL = ibverbx.Segment{},
		[]ibverbx.Segment{l.A.MR.Slice(0, 10), l.A.MR.Slice(100, 20)}
	wrs := []ibverbx.SendWR{inline, scattered}
	for id := uint64(2); id < 20; id++ {
		wrs = append(wrs, l.A.Write(verbs.OpRDMAWrite, id, 0, 100))
	}
	for len(wrs) > 16 { // some in one call
		n, err := l.A.PostSend(wrs[:min(3, len(wrs))]...)
		if wrs = wrs[n:]; err != nil {
			break
		}
	}
	if r := l.A.Stats().Rails[0]; r.Bytes != 7+30+200 || r.Fragments != 4 {
		t.Errorf("%d bytes in %d", r.Bytes, r.Fragments)
	}
}

// When its NIC is gone, a single queue pair fails with the first post, send or receive.
func TestSingleQPOnANICThatIsGone(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	l.A.ExpectRecv(t, 1)
	l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Err: verbs.ErrDeviceGone})
	_, err := l.A.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.A.MR.Slice(8, 16)})
	var fe *ibverbx.FailedError
	if !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(l.A.Err(), &fe) {
		t.Fatalf("%v; Err %v", err, l.A.Err())
	}
	if !errors.Is(fe, verbs.ErrDeviceGone) || !fe.Recv || !fe.HasID || fe.ID != 2 ||
		fe.Opcode != verbs.WCUnknown ||
		fe.LocalAddr != l.A.MR.Addr()+8 || fe.Length != 16 || fe.Rail != 0 {
		t.Errorf("%+v", fe)
	}
	if wc := l.A.Wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusWRFlushErr {
		t.Errorf("%+v", wc)
	}
}

// A call may have more requests than are handed to the queue pair at a time.
func TestSingleQPTakesManyRequestsInOneCall(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 128, 200} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 256}, CQDepth: 4096})
		wrs, recvs := make([]ibverbx.SendWR, n), make([]ibverbx.RecvWR, n)
		want := make([]uint64, n)
		for i := range wrs {
			wrs[i] = l.A.Write(verbs.OpRDMAWriteWithImm, uint64(i), uint64(8*i), 8)
			recvs[i].ID, want[i] = uint64(i), uint64(i)
		}
		vqptest.FillRandom(l.A.Buf[:8*n], uint64(n))
		if got, err := l.B.PostRecv(recvs...); got != n || err != nil {
			t.Fatalf("%d of %d receives, %v", got, n, err)
		}
		if got, err := l.A.PostSend(wrs...); got != n || err != nil {
			t.Fatalf("%d of %d sends, %v", got, n, err)
		}
		for _, e := range []*vqptest.End{l.A, l.B} {
			if got := vqptest.IDs(t, e.Wait(t, n), verbs.StatusSuccess); !slices.Equal(got, want) {
				t.Errorf("%d requests: %v", n, got)
			}
		}
		vqptest.MustEqual(t, "data", l.B.Buf[:8*n], l.A.Buf[:8*n])
	}
}
