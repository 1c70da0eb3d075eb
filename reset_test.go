package ibverbx_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A reset completes everything that is outstanding, also on a single queue pair.
func TestResetEndsWhatIsOutstanding(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for id := range uint64(5) {
			if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: id, Local: l.b.mr.Slice(id*100, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.b.Reset(); err != nil {
			t.Fatal(err)
		}
		wcs := l.b.poll(t)
		if len(wcs) != 5 {
			t.Fatalf("%d of 5 receives completed", len(wcs))
		}
		for i, wc := range wcs {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusWRFlushErr {
				t.Fatal(fmtWCs(wcs))
			}
		}
		if err := l.a.Reset(); err != nil {
			t.Fatal(err)
		}
		if err := l.reconnect(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 9, Local: l.b.mr.Slice(0, 100)}); err != nil {
			t.Fatal(err)
		}
		l.a.send(t, ibverbx.SendWR{ID: 8, Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 100)})
		if wc := l.b.wait(t, 1)[0]; wc.ID != 9 || wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
	})
}

// The queue pairs of a NIC that is gone cannot be reset: everything completes, the error names the
// rail, and Close works.
func TestResetWithANICGone(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, qp: ibverbx.Config{QPsPerDevice: 2, MaxMsgSize: 1000},
		fabric: soft.Config{Stepped: true}})
	const total = 8
	for id := range uint64(total) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, id, 0, 3000))
	}
	l.fabric.Run(20)
	l.a.nics[1].Kill()
	err := l.a.Reset()
	if !errors.Is(err, verbs.ErrDeviceGone) || !strings.Contains(err.Error(), "soft1") {
		t.Fatalf("reset: %v", err)
	}
	if wcs := l.a.poll(t); len(wcs) != total {
		t.Fatalf("%d of %d sends completed", len(wcs), total)
	}
	var failed *ibverbx.FailedError
	if err := l.a.Err(); !errors.As(err, &failed) || failed.Rail != 1 ||
		!errors.Is(err, verbs.ErrDeviceGone) {
		t.Errorf("%v: want the first rail that could not be reset, 1", err)
	}
	if _, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 1, 0, 8)); !errors.Is(err, ibverbx.ErrFailed) {
		t.Errorf("post: %v", err)
	}
	if err := l.a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func TestResetAndReconnect(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		for round := range 4 {
			fault := l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Skip: 3, Kind: soft.FailSend,
				Status: verbs.StatusRemOpErr})
			for id := range uint64(5) {
				l.b.expectRecv(t, id)
				l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, 0, 20000))
			}
			for l.a.Err() == nil {
				l.a.pump(t)
			}
			fault.Remove()
			if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
				t.Fatal(err)
			}
			if got := l.a.wait(t, 5); got[4].ID != 4 || got[4].Status != verbs.StatusWRFlushErr {
				t.Fatal(fmtWCs(got))
			}
			l.b.wait(t, 5)
			if l.a.Err() != nil || l.a.State() != verbs.StateReset {
				t.Fatal(l.a.Err(), l.a.State())
			}
			l.connect(nil)
			fillRandom(l.a.buf[:50000], uint64(round))
			l.b.expectRecv(t, 77)
			l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 78, 0, 50000))
			if wc := l.b.wait(t, 1)[0]; wc.ID != 77 || wc.Imm != 78 {
				t.Fatalf("%+v", wc)
			}
			ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
			if !bytes.Equal(l.a.buf[:50000], l.b.buf[:50000]) {
				t.Fatal("wrong content after the reset")
			}
		}
	})
}
