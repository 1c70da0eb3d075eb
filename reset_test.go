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

// Whatever is outstanding, a reset completes it: single queue pair included.
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

// A NIC that is gone cannot be reset: everything completes all the same, the error says which rail
// it was, and Close works.
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
	if _, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 1, 0, 8)); !errors.Is(err, ibverbx.ErrFailed) {
		t.Errorf("post: %v", err)
	}
	if err := l.a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// A receive that the NIC refuses for good ends the virtual queue pair, but what the NIC had
// accepted before stays the NIC's until it has been flushed: the region cannot be closed under it.
func TestRefusedReceiveLeavesAcceptedOnesToTheNIC(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	mr, err := l.b.dom.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	l.fabric.Inject(soft.Fault{Device: l.b.nics[0], Skip: 3, Kind: soft.RefuseRecv,
		Err: verbs.ErrNotSupported})
	var wrs []ibverbx.RecvWR
	for id := range uint64(5) {
		wrs = append(wrs, ibverbx.RecvWR{ID: id, Local: mr.Slice(id*100, 100)})
	}
	if n, err := l.b.PostRecv(wrs...); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if wcs := l.b.poll(t); len(wcs) != 0 {
		t.Fatalf("reported while the NIC has three of them: %s", fmtWCs(wcs))
	}
	if err := mr.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("closing the region: %v", err)
	}
	if !errors.Is(l.b.Err(), verbs.ErrNotSupported) {
		t.Errorf("Err: %v", l.b.Err())
	}
	for range 50 {
		l.fabric.Run(10)
		l.b.pump(t)
	}
	if len(l.b.backlog) != 5 || l.b.Stats().StaleEvents != 0 {
		t.Fatalf("%s, %d dropped", fmtWCs(l.b.backlog), l.b.Stats().StaleEvents)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhatAVirtualQPCannotBeMadeOf(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev := fabric.Device(0)
	pd, err := dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 4096})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ibverbx.NewVirtualCQ(cq, cq); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "one a device") {
		t.Errorf("two CQs of one device: %v", err)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{qp, qp}, nil, ibverbx.Config{}); !errors.Is(
		err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one queue pair twice: %v", err)
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	if err := qp.Modify(
		&init, verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccess); err != nil {
		t.Fatal(err)
	}
	if _, err := ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{}); !errors.Is(
		err, verbs.ErrState) {
		t.Errorf("a queue pair in INIT: %v", err)
	}
	if err := errors.Join(qp.Close(), vcq.Close(), pd.Close(), fabric.Close()); err != nil {
		t.Errorf("leak: %v", err)
	}
}

func TestResetAndReconnect(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		for life := range 4 {
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
			fillRandom(l.a.buf[:50000], uint64(life))
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
