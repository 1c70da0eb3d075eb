package ibverbx_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// multiModes are the modes with several queue pairs.
func multiModes(t *testing.T, cfg linkConfig, test func(t *testing.T, l *link)) {
	for _, m := range modes {
		if m.qps*m.nics == 1 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			c := cfg
			c.nics, c.qp.QPsPerDevice, c.qp.Scheme = m.nics, m.qps, m.scheme
			test(t, newLink(t, c))
		})
	}
}

// A failed fragment: the first error is kept and told in full, later requests are flushed in order,
// posts are refused, and the peer is never notified. Error completions carry a wrong opcode, length
// and immediate on purpose.
func TestFailedFragmentStopsTheLine(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		for id := range uint64(10) {
			l.b.expectRecv(t, id)
		}
		l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Skip: 5, Kind: soft.FailSend,
			Status: verbs.StatusRemOpErr, VendorErr: 0x77,
			Match: func(wr *verbs.SendWR) bool { return wr.Bytes() != 0 }})
		var wrs []ibverbx.SendWR
		for id := range uint64(10) {
			op := verbs.OpRDMAWriteWithImm
			if id%3 == 1 {
				op = verbs.OpRDMAWrite
			}
			wrs = append(wrs, l.a.write(op, id, id*10000, 10000))
		}
		if n, err := l.a.PostSend(wrs...); n != 10 || err != nil {
			t.Fatal(n, err)
		}
		wcs := l.a.wait(t, 10)
		failed := -1
		for i, wc := range wcs {
			switch {
			case wc.ID != uint64(i):
				t.Fatalf("completion %d has id %d", i, wc.ID)
			case failed < 0 && wc.Status == verbs.StatusSuccess:
			case failed < 0:
				failed = i
				if wc.Status != verbs.StatusRemOpErr || wc.VendorErr != 0x77 {
					t.Errorf("the first error is %+v", wc)
				}
			case wc.Status != verbs.StatusWRFlushErr:
				t.Errorf("id %d after the error: %v", wc.ID, wc.Status.Name())
			}
		}
		if failed < 0 {
			t.Fatal("nothing failed")
		}
		var fe *ibverbx.FailedError
		if err := l.a.Err(); !errors.As(err, &fe) || !errors.Is(err, verbs.StatusRemOpErr) ||
			fe.ID != uint64(failed) || fe.Device != "soft0" ||
			fe.Fragment < 0 || !strings.Contains(err.Error(), "REM_OP_ERR") ||
			!strings.Contains(err.Error(), "vendor 0x77") {
			t.Errorf("Err: %v", err)
		}
		if _, err := l.a.PostSend(wrs[0]); !errors.Is(err, ibverbx.ErrFailed) ||
			!strings.Contains(err.Error(), "reset or close") {
			t.Errorf("post after failure: %v", err)
		}
		if l.a.State() != verbs.StateErr {
			t.Errorf("state %v", l.a.State())
		}
		// The receiver: notified of what came before the failure at most, in order, and with the
		// data there.
		for range 100 {
			l.b.pump(t)
		}
		for i, wc := range l.b.backlog {
			if wc.Status != verbs.StatusSuccess {
				break // its own queue pairs noticed that the peer is gone
			}
			if wc.ID != uint64(i) || int(wc.Imm) >= failed {
				t.Fatalf("receive %d: %+v although request %d failed", i, wc, failed)
			}
			at := uint64(wc.Imm) * 10000
			mustEqual(t, "notified data", l.b.buf[at:at+10000], l.a.buf[at:at+10000])
		}
	})
}

// A wrong key at the peer, and nothing but the completion's status says so.
func TestRemoteAccessErrorReachesTheRightRequest(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		good := l.a.write(verbs.OpRDMAWrite, 1, 0, 20000)
		bad := l.a.write(verbs.OpRDMARead, 2, 0, 20000)
		keys := map[verbs.DeviceID]uint32{}
		for dev := range verbs.DeviceID(8) {
			keys[dev] = 0xbad
		}
		bad.Remote = ibverbx.RemoteSegment{Addr: l.a.peer.Addr(), Length: 1 << 20,
			Keys: ibverbx.NewKeys(keys)}
		if _, err := l.a.PostSend(good, bad, l.a.write(verbs.OpRDMAWriteWithImm, 3, 0, 10)); err != nil {
			t.Fatal(err)
		}
		wcs := l.a.wait(t, 3)
		if wcs[0].Status != 0 || wcs[1].Status != verbs.StatusRemAccessErr ||
			wcs[2].Status != verbs.StatusWRFlushErr {
			t.Fatal(fmtWCs(wcs))
		}
	})
}

// A fragment in flight keeps the buffer even after another fragment failed (promise 3).
func TestRequestIsReportedOnlyWhenItsLastFragmentHasEnded(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, MaxMsgSize: 1000},
		fabric: soft.Config{Stepped: true}})
	l.fabric.Inject(soft.Fault{Device: l.a.nics[0], QPNum: l.a.railQP[0], Kind: soft.FailSend,
		Status: verbs.StatusRemOpErr})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 2000))
	// Rail 0 fails; rail 1 still has a fragment.
	for l.do(func(a soft.Action) bool { return a.QPNum == l.a.railQP[0] && a.Device == 0 }) {
	}
	l.a.pump(t)
	if len(l.a.backlog) != 0 {
		t.Fatalf("reported while a fragment is in flight: %s", fmtWCs(l.a.backlog))
	}
	if l.a.Err() == nil {
		t.Fatal("the failure is not visible")
	}
	// The mr cannot be closed under it either.
	if err := l.a.mr.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("closing a region in use: %v", err)
	}
	for range 50 {
		l.fabric.Run(10)
		l.a.pump(t)
	}
	if len(l.a.backlog) != 1 || l.a.backlog[0].Status != verbs.StatusRemOpErr {
		t.Fatal(fmtWCs(l.a.backlog))
	}
}

// A post that the NIC refuses for now is tried again; nothing is lost or reordered, no number is
// skipped.
func TestTransientRefusalsAreRetried(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 100}}, func(t *testing.T, l *link) {
		for _, kind := range []soft.FaultKind{soft.RefuseSend, soft.RefuseRecv} {
			for skip := range 40 {
				l.fabric.Inject(soft.Fault{Skip: skip * 3, Count: 2, Kind: kind})
			}
		}
		const total = 60
		for id := range uint64(total) {
			fillRandom(l.a.buf[id*1000:id*1000+1000], id)
			l.b.expectRecv(t, id)
			l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, id, id*1000, 1000))
		}
		for i, wc := range l.b.wait(t, total) {
			if wc.ID != uint64(i) || wc.Imm != uint32(i) || wc.Status != 0 {
				t.Fatalf("receive %d: %+v", i, wc)
			}
		}
		ids(t, l.a.wait(t, total), verbs.StatusSuccess)
		mustEqual(t, "data", l.b.buf[:total*1000], l.a.buf[:total*1000])
		refused := uint64(0)
		for _, r := range slices.Concat(l.a.Stats().Rails, l.b.Stats().Rails) {
			refused += r.Refused
		}
		if refused == 0 {
			t.Error("nothing was refused")
		}
	})
}

// A NIC that is taken away: what was on it ends with an error, nothing hangs, and the other end
// learns of it too.
func TestNICGone(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000,
		Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}}, func(t *testing.T, l *link) {
		l.b.expectRecv(t, 1)
		l.a.nics[0].Kill()
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 20000))
		// accepted or refused, as it may be
		_, _ = l.a.PostSend(l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, 20000))
		wc := l.a.wait(t, 1)[0]
		if wc.ID != 1 || wc.Status == verbs.StatusSuccess || l.a.Err() == nil {
			t.Fatalf("%+v, %v", wc, l.a.Err())
		}
		if _, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 3, 0, 10)); !errors.Is(
			err, ibverbx.ErrFailed) {
			t.Fatal(err)
		}
	})
}

// Another virtual queue pair on the same CQ does not notice a failure, and what was collected with
// it is delivered.
func TestFailureStaysOnItsVirtualQP(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, cqDepth: 8192, qp: ibverbx.Config{QPsPerDevice: 2, MaxMsgSize: 1000}})
	var as, bs []*ibverbx.VirtualQP
	for range 3 {
		a, err := l.a.dom.NewQP(l.a.cq, l.a.Config())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.b.dom.NewQP(l.b.cq, l.b.Config())
		if err != nil {
			t.Fatal(err)
		}
		connectBoth(t, a, b)
		as, bs = append(as, a), append(bs, b)
	}
	l.fabric.Inject(soft.Fault{Device: l.a.nics[1], QPNum: as[1].Stats().Rails[1].QPNum, Kind: soft.FailSend,
		Status: verbs.StatusLocQPOpErr})
	for round := range uint64(20) {
		for i, a := range as {
			wr := l.a.write(verbs.OpRDMAWrite, uint64(i)<<32|round, 0, 5000)
			if _, err := a.PostSend(wr); err != nil && i != 1 {
				t.Fatal(err)
			}
		}
	}
	next := map[uint64]uint64{}
	for _, wc := range l.a.wait(t, 40) {
		i, round := wc.ID>>32, wc.ID&0xffffffff
		if i == 1 {
			continue
		}
		if wc.Status != 0 || round != next[i] || wc.QPNum != as[i].Num() {
			t.Fatalf("virtual qp %d: %+v, want round %d", i, wc, next[i])
		}
		next[i]++
	}
	for l.a.pump(t); next[0] < 20 || next[2] < 20; l.a.pump(t) {
		for _, wc := range l.a.backlog {
			next[wc.ID>>32]++
		}
		l.a.backlog = nil
	}
	if as[1].Err() == nil || as[0].Err() != nil || as[2].Err() != nil {
		t.Errorf("errors: %v, %v, %v", as[0].Err(), as[1].Err(), as[2].Err())
	}
	_ = bs
}

// The queue pair that fails flushes its receives too. Neither that nor a rail that is slower may
// hide the cause: requests before the failed one end well, the failed one has the error's status,
// the later ones are flushed.
func TestFlushedReceivesDoNotHideTheCause(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}, fabric: soft.Config{Stepped: true}},
		func(t *testing.T, l *link) {
			const bad = 3
			l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend,
				Status: verbs.StatusRetryExcErr,
				Match:  func(wr *verbs.SendWR) bool { return wr.RemoteAddr == l.a.peer.Addr()+bad*1000 }})
			if _, err := l.a.PostRecv(ibverbx.RecvWR{ID: 100, Local: l.a.mr.Slice(0, 8)}); err != nil {
				t.Fatal(err)
			}
			for id := range 2 * bad * uint64(l.a.DataRails()) {
				wr := l.a.write(verbs.OpRDMAWrite, id, 0, 10)
				if id == bad*uint64(l.a.DataRails()) {
					// round robin brings it to rail 0, on the first NIC
					wr = l.a.write(verbs.OpRDMAWrite, id, bad*1000, 10)
				}
				l.a.send(t, wr)
			}
			// Rail 0 runs to its end first, completions and flushed receives; the others have not
			// even begun.
			for l.do(func(a soft.Action) bool {
				return a.Device == l.a.nics[0].ID() &&
					a.QPNum == l.a.railQP[0]
			}) {
				l.a.pump(t)
			}
			for range 400 {
				l.fabric.Run(5)
				l.a.pump(t)
			}
			for _, wc := range l.a.backlog {
				want := verbs.StatusWRFlushErr
				switch {
				case wc.ID < bad*uint64(l.a.DataRails()):
					want = verbs.StatusSuccess
				case wc.ID == bad*uint64(l.a.DataRails()):
					want = verbs.StatusRetryExcErr
				}
				if wc.Status != want {
					t.Fatalf("id %d: %v, want %v; %v", wc.ID, wc.Status.Name(), want.Name(), l.a.Err())
				}
			}
			if len(l.a.backlog) != 2*bad*l.a.DataRails()+1 {
				t.Fatalf("%d completions", len(l.a.backlog))
			}
		})
}

// A receiver learns that a queue pair under it has failed, in Spray too, where data rails carry no
// receives of the user.
func TestReceiverLearnsOfARemoteAccessError(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		l.b.expectRecv(t, 1)
		keys := map[verbs.DeviceID]uint32{}
		for dev := range verbs.DeviceID(8) {
			keys[dev] = 0xbad
		}
		bad := l.a.write(verbs.OpRDMAWrite, 2, 0, uint64(1000*l.a.DataRails())) // a fragment on every rail
		bad.Remote = ibverbx.RemoteSegment{Addr: l.a.peer.Addr(), Length: 1 << 20,
			Keys: ibverbx.NewKeys(keys)}
		l.a.send(t, bad)
		if wc := l.b.wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusWRFlushErr ||
			!wc.Opcode.IsRecv() || l.b.Err() == nil {
			t.Fatalf("%+v, %v", wc, l.b.Err())
		}
	})
}

// What stopped the line is within reach of errors.Is and errors.As on every refused post.
func TestRefusalAfterAFailureNamesTheCause(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend, Status: verbs.StatusRemOpErr})
		for id := range uint64(8) {
			_, _ = l.a.PostSend(l.a.write(verbs.OpRDMAWrite, id, 0, 10)) // refused from the failure on
		}
		for l.a.Err() == nil {
			l.a.pump(t)
		}
		var fe *ibverbx.FailedError
		if _, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 9, 0, 10)); !errors.Is(
			err, ibverbx.ErrFailed) || !errors.Is(err, verbs.StatusRemOpErr) || !errors.As(err, &fe) {
			t.Error(err)
		}
		if l.a.DataRails() == 1 {
			if wc := l.a.wait(t, 1)[0]; wc.Opcode != verbs.WCUnknown {
				t.Errorf("a failed completion of a single queue pair claims to be of %v", wc.Opcode)
			}
		}
	})
}

// The receive that watches a rail of Spray is posted again when the NIC refuses it for now.
func TestWatchSurvivesARefusal(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{Scheme: ibverbx.Spray, QPsPerDevice: 3}})
	if err := errors.Join(l.a.Reset(), l.b.Reset()); err != nil {
		t.Fatal(err)
	}
	refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Count: 3})
	if err := l.reconnect(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		l.a.pump(t)
		l.b.pump(t)
	}
	for _, e := range []*end{l.a, l.b} {
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

// A rail whose receives were flushed while a send of it was outstanding waits for that send to tell
// the cause. When the send ends well, the flush itself is the failure.
func TestFlushBehindASendThatEndsWellIsNoticed(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 8)) // on rail 0
	flushed := verbs.WC{ID: 5 << 60, Status: verbs.StatusWRFlushErr, QPNum: l.a.railQP[0]}
	if got := l.a.cq.ProcessCompletions(nil, 0, flushed); len(got) != 0 || l.a.Err() != nil {
		t.Fatalf("before the send has ended: %s, %v", fmtWCs(got), l.a.Err())
	}
	l.complete(l.a, 0)
	if got := l.a.poll(t); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
		t.Fatal(fmtWCs(got))
	}
	if err := l.a.Err(); !errors.Is(err, verbs.StatusWRFlushErr) {
		t.Fatalf("the flush went unnoticed: %v", err)
	}
}

// A send that is staged, but of which no NIC has taken anything, is flushed at once when the
// receive direction fails: no completion of it would ever come.
func TestStagedSendIsFlushedAtOnceWithTheReceives(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2}, fabric: soft.Config{Stepped: true}})
	l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Device: l.a.nics[0], Err: verbs.ErrNoMemory,
		Count: 1 << 30})
	l.a.send(t, l.a.write(verbs.OpRDMAWrite, 7, 0, 8)) // staged on rail 0
	failed := verbs.WC{ID: 5 << 60, Status: verbs.StatusLocProtErr, QPNum: l.a.railQP[0]}
	got := l.a.cq.ProcessCompletions(nil, 0, failed)
	if len(got) != 1 || got[0].ID != 7 || got[0].Status != verbs.StatusWRFlushErr {
		t.Errorf("reported: %s", fmtWCs(got))
	}
	if err := l.a.Err(); !errors.Is(err, verbs.StatusLocProtErr) {
		t.Error(err)
	}
}

// A virtual queue pair learns that a queue pair under it has failed from what it has outstanding
// there. Where it keeps no receive of its own, a receive of the user tells.
func TestWhichFailuresAreNoticed(t *testing.T) {
	for _, c := range []struct {
		scheme  ibverbx.Scheme
		rail    int // 2 is the notify QP
		notices bool
	}{
		{ibverbx.DQPLB, 0, true}, {ibverbx.DQPLB, 1, true}, {ibverbx.DQPLB, 2, false},
		{ibverbx.Spray, 0, false}, {ibverbx.Spray, 1, true}, {ibverbx.Spray, 2, false},
	} {
		fabric, err := soft.New(soft.Config{})
		if err != nil {
			t.Fatal(err)
		}
		dev := fabric.Device(0)
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegisterMR(make([]byte, 64), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		var ends [2]*ibverbx.VirtualQP
		var qps [2][3]verbs.QP
		for i := range ends {
			cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 4096})
			if err != nil {
				t.Fatal(err)
			}
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
		connectBoth(t, ends[0], ends[1])
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
		if poll(); (ends[1].Err() != nil) != c.notices {
			t.Errorf("%v rail %d: %v", c.scheme, c.rail, ends[1].Err())
		}
		if !c.notices {
			wr := ibverbx.RecvWR{ID: 1}
			if c.scheme == ibverbx.DQPLB || c.rail == 0 {
				wr.Local = ibverbx.Segment{Addr: mr.Addr(), Length: 8,
					Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: mr.LKey()})}
			}
			if _, err := ends[1].PostRecv(wr); err != nil {
				t.Fatal(err)
			}
			if poll(); ends[1].Err() == nil {
				t.Errorf("%v rail %d: a receive did not tell", c.scheme, c.rail)
			}
		}
		if err := errors.Join(ends[0].CQ().Close(), ends[1].CQ().Close(), mr.Close(), pd.Close(),
			fabric.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A refused credit ends the virtual queue pair. The credits of the other rails are not offered to
// queue pairs that are in ERR by then.
func TestNoCreditsAfterARefusalForGood(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 3, MaxMsgSize: 8, Credits: 2}})
	l.a.expectRecv(t, 1)
	l.b.send(t, l.b.write(verbs.OpRDMAWriteWithImm, 1, 0, 24)) // uses up a credit of each rail
	for deadline := time.Now().Add(10 * time.Second); l.b.Stats().SendWindow != 0 &&
		time.Now().Before(deadline); {
		l.b.pump(t) // a takes nothing in yet
	}
	refusal := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.a.nics[0], Count: -1,
		Err: verbs.ErrNotSupported})
	l.a.pump(t)
	if err := l.a.Err(); !errors.Is(err, verbs.ErrNotSupported) || refusal.Hits() != 1 {
		t.Errorf("%d posts were refused: %v", refusal.Hits(), err)
	}
}
