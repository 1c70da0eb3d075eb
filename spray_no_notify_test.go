package ibverbx_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// Spray without a notify QP carries everything but notifications, and refuses those, and the
// receives that would wait for one, with a sentence and without effect.
func TestSprayWithoutNotifyQP(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{Scheme: ibverbx.Spray, QPsPerDevice: 2,
		NoNotifyQP: true, FragmentSize: 1000}})
	if cfg := l.a.Config(); !cfg.NoNotifyQP || len(l.a.Stats().Rails) != 4 {
		t.Fatalf("%+v", cfg)
	}
	fillRandom(l.a.buf[:5000], 1)
	fillRandom(l.b.buf[6000:9000], 2)
	if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 50, Local: l.b.mr.Slice(20000, 100)},
		ibverbx.RecvWR{ID: 51, Local: l.b.mr.Slice(20100, 100)}); err != nil {
		t.Fatal(err)
	}
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 5000))
	l.a.send(t, l.a.write(verbs.OpRDMARead, 2, 6000, 3000))
	l.a.send(t, l.a.write(verbs.OpAtomicFetchAdd, 3, 10000, 8))
	l.a.send(t, ibverbx.SendWR{ID: 4, Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 100)})
	l.a.send(t, ibverbx.SendWR{ID: 5, Opcode: verbs.OpSendWithImm, Local: l.a.mr.Slice(100, 100), Imm: 77})
	for _, n := range []uint64{0, 1, 5000} {
		wr := l.a.write(verbs.OpRDMAWriteWithImm, 6, 0, n)
		n, err := l.a.PostSend(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a notification: %d accepted, %v", n, err)
		}
	}
	for _, wr := range []ibverbx.RecvWR{{ID: 52}, {ID: 52, SGL: []ibverbx.Segment{l.b.mr.Slice(0, 0)}}} {
		n, err := l.b.PostRecv(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a receive without memory: %d accepted, %v", n, err)
		}
	}
	if got := ids(t, l.a.wait(t, 5), verbs.StatusSuccess); !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("completed %v", got)
	}
	if got := ids(t, l.b.wait(t, 2), verbs.StatusSuccess); !slices.Equal(got, []uint64{50, 51}) {
		t.Errorf("received %v", got)
	}
	mustEqual(t, "write", l.b.buf[:5000], l.a.buf[:5000])
	mustEqual(t, "read", l.a.buf[6000:9000], l.b.buf[6000:9000])
	mustEqual(t, "sends", l.b.buf[20000:20200], l.a.buf[:200])
	if err := errors.Join(l.a.Drain(patience(t)), l.b.Drain(patience(t))); err != nil {
		t.Error(err)
	}
}
