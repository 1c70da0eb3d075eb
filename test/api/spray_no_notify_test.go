package api_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// Spray without a notify QP carries everything but notifications, and refuses those, and the
// receives that would wait for one, with a sentence and without effect.
func TestSprayWithoutNotifyQP(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: ibverbx.Spray,
		QPsPerDevice: 2,
		NoNotifyQP:   true, FragmentSize: 1000}})
	if cfg := l.A.Config(); !cfg.NoNotifyQP || len(l.A.Stats().Rails) != 4 {
		t.Fatalf("%+v", cfg)
	}
	vqptest.FillRandom(l.A.Buf[:5000], 1)
	vqptest.FillRandom(l.B.Buf[6000:9000], 2)
	if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 50, Local: l.B.MR.Slice(20000, 100)},
		ibverbx.RecvWR{ID: 51, Local: l.B.MR.Slice(20100, 100)}); err != nil {
		t.Fatal(err)
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 5000))
	l.A.Send(t, l.A.Write(verbs.OpRDMARead, 2, 6000, 3000))
	l.A.Send(t, l.A.Write(verbs.OpAtomicFetchAdd, 3, 10000, 8))
	l.A.Send(t, ibverbx.SendWR{ID: 4, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 100)})
	l.A.Send(t, ibverbx.SendWR{ID: 5, Opcode: verbs.OpSendWithImm, Local: l.A.MR.Slice(100, 100), Imm: 77})
	for _, n := range []uint64{0, 1, 5000} {
		wr := l.A.Write(verbs.OpRDMAWriteWithImm, 6, 0, n)
		n, err := l.A.PostSend(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a notification: %d accepted, %v", n, err)
		}
	}
	for _, wr := range []ibverbx.RecvWR{{ID: 52}, {ID: 52, SGL: []ibverbx.Segment{l.B.MR.Slice(0, 0)}}} {
		n, err := l.B.PostRecv(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a receive without memory: %d accepted, %v", n, err)
		}
	}
	if got := vqptest.IDs(t, l.A.Wait(t, 5), verbs.StatusSuccess); !slices.Equal(got,
		[]uint64{1, 2, 3, 4, 5}) {
		t.Errorf("completed %v", got)
	}
	if got := vqptest.IDs(t, l.B.Wait(t, 2), verbs.StatusSuccess); !slices.Equal(got, []uint64{50, 51}) {
		t.Errorf("received %v", got)
	}
	vqptest.MustEqual(t, "write", l.B.Buf[:5000], l.A.Buf[:5000])
	vqptest.MustEqual(t, "read", l.A.Buf[6000:9000], l.B.Buf[6000:9000])
	vqptest.MustEqual(t, "sends", l.B.Buf[20000:20200], l.A.Buf[:200])
	if err := errors.Join(l.A.Drain(patience(t)), l.B.Drain(patience(t))); err != nil {
		t.Error(err)
	}
}
