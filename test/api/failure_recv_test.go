package api_test

import (
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A virtual queue pair detects the failure of one of its queue pairs by what it has outstanding
// there. Where it keeps no receive of its own, it takes a receive of the user.
func TestWhichFailuresAreDetected(t *testing.T) {
	for _, c := range []struct {
		scheme  ibverbx.Scheme
		rail    int // 2 is the notify QP
		detects bool
	}{
		{ibverbx.DQPLB, 0, true}, {ibverbx.DQPLB, 1, true}, {ibverbx.DQPLB, 2, false},
		{ibverbx.Spray, 0, false}, {ibverbx.Spray, 1, true}, {ibverbx.Spray, 2, false},
	} {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev := fabric.Device(0)
		pd := vqptest.NewPD(t, dev)
		mr, err := pd.RegisterMR(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]*ibverbx.VirtualQP
		var qps [2][3]verbs.QP
		for i := range ends {
			cq := vqptest.NewCQ(t, dev, 4096)
			for j := range qps[i] {
				if qps[i][j], err = pd.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq}); err != nil {
					t.Fatal(err)
				}
			}
			vcq, err := ibverbx.NewVirtualCQ(cq)
			if err != nil {
				t.Fatal(err)
			}
			if ends[i], err = ibverbx.NewVirtualQP(vcq, qps[i][:2], qps[i][2],
				ibverbx.Config{Scheme: c.scheme}); err != nil {
				t.Fatal(err)
			}
		}
		vqptest.ConnectBoth(t, ends[0], ends[1])
		if err := qps[1][c.rail].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
			t.Fatal(err)
		}
		poll := func() {
			var wcs [16]ibverbx.WC
			for range 20 {
				if _, err := ends[1].CQ().Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if poll(); (ends[1].Err() != nil) != c.detects {
			t.Errorf("%v rail %d: %v", c.scheme, c.rail, ends[1].Err())
		}
		if !c.detects {
			wr := ibverbx.RecvWR{ID: 1}
			if c.scheme == ibverbx.DQPLB || c.rail == 0 {
				wr.Local = ibverbx.Segment{Addr: mr.Addr(), Length: 8,
					Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: mr.LKey()})}
			}
			if _, err := ends[1].PostRecv(wr); err != nil {
				t.Fatal(err)
			}
			if poll(); ends[1].Err() == nil {
				t.Errorf("%v rail %d: not detected by a receive", c.scheme, c.rail)
			}
		}
		if err := errors.Join(ends[0].CQ().Close(), ends[1].CQ().Close(), mr.Close(), pd.Close(),
			fabric.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A receive that the NIC refuses permanently ends the virtual queue pair. Receives that the NIC had
// accepted belong to it until they are flushed: their region cannot be closed before.
func TestRefusedReceiveLeavesAcceptedOnesToTheNIC(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	mr, err := l.B.Domain().Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	l.Fabric.Inject(soft.Fault{Device: l.B.NICs[0], Skip: 3, Kind: soft.RefuseRecv,
		Err: verbs.ErrNotSupported})
	var wrs []ibverbx.RecvWR
	for id := range uint64(5) {
		wrs = append(wrs, ibverbx.RecvWR{ID: id, Local: mr.Slice(id*100, 100)})
	}
	if n, err := l.B.PostRecv(wrs...); n != 5 || err != nil {
		t.Fatal(n, err)
	}
	if wcs := l.B.Poll(t); len(wcs) != 0 {
		t.Fatalf("reported while the NIC has three of them: %s", vqptest.FormatWCs(wcs))
	}
	if err := mr.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("closing the region: %v", err)
	}
	if !errors.Is(l.B.Err(), verbs.ErrNotSupported) {
		t.Errorf("Err: %v", l.B.Err())
	}
	for range 50 {
		l.Fabric.Run(10)
		l.B.Pump(t)
	}
	if len(l.B.Backlog) != 5 || l.B.Stats().StaleEvents != 0 {
		t.Fatalf("%s, %d dropped", vqptest.FormatWCs(l.B.Backlog), l.B.Stats().StaleEvents)
	}
	if err := mr.Close(); err != nil {
		t.Error(err)
	}
}
