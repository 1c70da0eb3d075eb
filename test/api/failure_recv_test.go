package api_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A queue pair that fails also flushes its receives. Neither that nor a slower rail hides the
// cause: requests before the failed one succeed, the failed one has the error's status, later ones
// are flushed.
func TestFlushedReceivesDoNotHideTheCause(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000},
		Fabric: soft.Config{Stepped: true}},
		func(t *testing.T, l *vqptest.Link) {
			const bad = 3
			l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Kind: soft.FailSend,
				Status: verbs.StatusRetryExcErr,
				Match:  func(wr *verbs.SendWR) bool { return wr.RemoteAddr == l.A.Peer.Addr()+bad*1000 }})
			if _, err := l.A.PostRecv(ibverbx.RecvWR{ID: 100, Local: l.A.MR.Slice(0, 8)}); err != nil {
				t.Fatal(err)
			}
			for id := range 2 * bad * uint64(l.A.DataRails()) {
				wr := l.A.Write(verbs.OpRDMAWrite, id, 0, 10)
				if id == bad*uint64(l.A.DataRails()) {
					// round robin assigns it to rail 0, on the first NIC
					wr = l.A.Write(verbs.OpRDMAWrite, id, bad*1000, 10)
				}
				l.A.Send(t, wr)
			}
			// Rail 0 finishes first, completions and flushed receives, before the others execute
			// anything.
			for l.Do(func(a soft.Action) bool {
				return a.Device == l.A.NICs[0].ID() && a.QPNum == l.A.RailQPs[0]
			}) {
				l.A.Pump(t)
			}
			for range 400 {
				l.Fabric.Run(5)
				l.A.Pump(t)
			}
			for _, wc := range l.A.Backlog {
				want := verbs.StatusWRFlushErr
				switch {
				case wc.ID < bad*uint64(l.A.DataRails()):
					want = verbs.StatusSuccess
				case wc.ID == bad*uint64(l.A.DataRails()):
					want = verbs.StatusRetryExcErr
				}
				if wc.Status != want {
					t.Fatalf("id %d: %v, want %v; %v", wc.ID, wc.Status.Name(), want.Name(), l.A.Err())
				}
			}
			if len(l.A.Backlog) != 2*bad*l.A.DataRails()+1 {
				t.Fatalf("%d completions", len(l.A.Backlog))
			}
		})
}

// A receiver detects that one of its queue pairs has failed, also in Spray, where data rails carry
// no user receives.
func TestReceiverDetectsARemoteAccessError(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			l.B.ExpectRecv(t, 1)
			keys := map[verbs.DeviceID]uint32{}
			for dev := range verbs.DeviceID(8) {
				keys[dev] = 0xbad
			}
			bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, uint64(1000*l.A.DataRails()))
			bad.Remote = ibverbx.RemoteSegment{Addr: l.A.Peer.Addr(), Length: 1 << 20,
				Keys: ibverbx.NewKeys(keys)}
			l.A.Send(t, bad)
			if wc := l.B.Wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusWRFlushErr ||
				!wc.Opcode.IsRecv() || l.B.Err() == nil {
				t.Fatalf("%+v, %v", wc, l.B.Err())
			}
		})
}

// The receive that watches a rail in Spray is posted again after a transient refusal.
func TestRefusedWatchIsPostedAgain(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Scheme: ibverbx.Spray, QPsPerDevice: 3}})
	if err := errors.Join(l.A.Reset(), l.B.Reset()); err != nil {
		t.Fatal(err)
	}
	refusal := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Count: 3})
	if err := l.Reconnect(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		l.A.Pump(t)
		l.B.Pump(t)
	}
	for _, e := range []*vqptest.End{l.A, l.B} {
		for i, r := range e.Stats().Rails {
			if want := min(i%3, 1); r.Recvs != want {
				t.Errorf("rail %d holds %d receives, want %d", i, r.Recvs, want)
			}
		}
	}
	if refusal.Hits() != 3 {
		t.Errorf("%d refusals", refusal.Hits())
	}
}

// When a rail's receives are flushed while it has a send outstanding, that send's completion
// decides the cause. If the send succeeds, the flush itself is the failure.
func TestFlushedReceivesAreTheFailureWhenTheSendSucceeds(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)) // on rail 0
	flushed := verbs.WC{ID: 5 << 60, Status: verbs.StatusWRFlushErr, QPNum: l.A.RailQPs[0]}
	if got := l.A.CQ().ProcessCompletions(nil, 0, flushed); len(got) != 0 || l.A.Err() != nil {
		t.Fatalf("before the send has ended: %s, %v", vqptest.FormatWCs(got), l.A.Err())
	}
	l.Complete(l.A, 0)
	if got := l.A.Poll(t); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
		t.Fatal(vqptest.FormatWCs(got))
	}
	if err := l.A.Err(); !errors.Is(err, verbs.StatusWRFlushErr) {
		t.Fatalf("the flush is no failure: %v", err)
	}
}

// A send that is staged and not posted is flushed at once when the receive direction fails: no
// completion of it would ever arrive.
func TestStagedSendIsFlushedAtOnceWithTheReceives(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.A.NICs[0], Err: verbs.ErrNoMemory,
		Count: 1 << 30})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 7, 0, 8)) // staged on rail 0
	failed := verbs.WC{ID: 5 << 60, Status: verbs.StatusLocProtErr, QPNum: l.A.RailQPs[0]}
	got := l.A.CQ().ProcessCompletions(nil, 0, failed)
	if len(got) != 1 || got[0].ID != 7 || got[0].Status != verbs.StatusWRFlushErr {
		t.Errorf("reported: %s", vqptest.FormatWCs(got))
	}
	if err := l.A.Err(); !errors.Is(err, verbs.StatusLocProtErr) {
		t.Error(err)
	}
}

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

// A permanently refused credit ends the virtual queue pair. Credits are not posted on the other
// rails, which are in ERR by then.
func TestNoCreditsAfterAPermanentRefusal(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 3, FragmentSize: 8,
		Credits: 2}})
	l.A.ExpectRecv(t, 1)
	l.B.Send(t, l.B.Write(verbs.OpRDMAWriteWithImm, 1, 0, 24)) // uses up a credit of each rail
	for deadline := time.Now().Add(10 * time.Second); l.B.Stats().SendWindow != 0 &&
		time.Now().Before(deadline); {
		l.B.Pump(t) // a does not poll yet
	}
	refusal := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: -1,
		Err: verbs.ErrNotSupported})
	l.A.Pump(t)
	if err := l.A.Err(); !errors.Is(err, verbs.ErrNotSupported) || refusal.Hits() != 1 {
		t.Errorf("%d posts were refused: %v", refusal.Hits(), err)
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

// Sends that were posted whole before the receive direction failed keep their own end: those whose
// success the NIC has reported already are reported as successes.
func TestPostedSendsEndOnTheirOwnAfterAReceiveFailed(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2},
		Fabric: soft.Config{Stepped: true}})
	for id := range uint64(4) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, id, 0, 8))
	}
	l.Fabric.Run(1000) // up to the CQ, which nobody polls yet
	failed := verbs.WC{ID: 5 << 60, Status: verbs.StatusLocProtErr, QPNum: l.A.RailQPs[0]}
	got := l.A.CQ().ProcessCompletions(nil, 0, failed)
	if !errors.Is(l.A.Err(), verbs.StatusLocProtErr) {
		t.Fatal(l.A.Err())
	}
	got = append(got, l.A.Poll(t)...)
	if list := vqptest.IDs(t, got, verbs.StatusSuccess); !slices.Equal(list, []uint64{0, 1, 2, 3}) {
		t.Errorf("reported %v", list)
	}
}

// A flushed receive tells nothing of a message, whatever its slot held before.
func TestFlushedReceivesHaveNoLength(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for id := range uint64(20) {
			l.B.ExpectRecv(t, id)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 16))
			vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
		}
		for id := range uint64(20) {
			l.B.ExpectRecv(t, id)
		}
		if err := l.B.Reset(); err != nil {
			t.Fatal(err)
		}
		got := l.B.Poll(t)
		if len(got) != 20 {
			t.Fatal(vqptest.FormatWCs(got))
		}
		for i, wc := range got {
			if wc.ID != uint64(i) || wc.Status != verbs.StatusWRFlushErr || wc.ByteLen != 0 || wc.Imm != 0 ||
				wc.Flags != 0 {
				t.Fatalf("%+v", wc)
			}
		}
	})
}
