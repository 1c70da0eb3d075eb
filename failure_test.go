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

// multiModes runs a test in every mode with several queue pairs.
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

// A fragment fails: the first error is kept and reported in full, later requests are flushed in
// order, posts are refused, and the peer is never notified. Error completions carry a wrong opcode,
// length and immediate on purpose.
func TestFailedFragmentStopsTheLine(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}}, func(t *testing.T, l *link) {
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
		// The receiver is notified only of requests before the failure, in order, after their
		// data has arrived.
		for range 100 {
			l.b.pump(t)
		}
		for i, wc := range l.b.backlog {
			if wc.Status != verbs.StatusSuccess {
				break // its own queue pairs have failed, too
			}
			if wc.ID != uint64(i) || int(wc.Imm) >= failed {
				t.Fatalf("receive %d: %+v although request %d failed", i, wc, failed)
			}
			at := uint64(wc.Imm) * 10000
			mustEqual(t, "notified data", l.b.buf[at:at+10000], l.a.buf[at:at+10000])
		}
	})
}

// A wrong remote key fails the request that uses it, as the completion's status says.
func TestRemoteAccessErrorFailsTheRequestThatCausedIt(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}}, func(t *testing.T, l *link) {
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

// A fragment in flight holds the buffer even after another fragment has failed (promise 3).
func TestRequestIsReportedOnlyWhenItsLastFragmentHasEnded(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000},
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
	// The memory region cannot be closed before.
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

// A transiently refused post is retried: nothing is lost or reordered, and no number is skipped.
func TestTransientRefusalsAreRetried(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 100}}, func(t *testing.T, l *link) {
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

// Once what a failure leaves has been reported, nothing is tried again: a program with its own wait
// need not poll every millisecond any more.
func TestNothingIsTriedAgainAfterAFailure(t *testing.T) {
	settled := func(t *testing.T, l *link) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 9, 0, 20000))
		l.a.wait(t, 5)
		for deadline := time.Now().Add(3 * time.Second); l.a.cq.Stats().Retrying != 0; l.a.pump(t) {
			if time.Now().After(deadline) {
				t.Fatal("it is tried again and again")
			}
		}
	}
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}}, func(t *testing.T, l *link) {
		l.a.fill(t, 0, 4)
		l.fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.a.nics[0]})
		settled(t, l)
	})
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000}}, func(t *testing.T, l *link) {
		l.a.fill(t, 0, 4)
		l.fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: l.a.nics[0]})
		settled(t, l)
	})
}

// A NIC disappears: its requests complete with an error, and nothing hangs.
func TestNICGone(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{FragmentSize: 1000,
		Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}}, func(t *testing.T, l *link) {
		l.b.expectRecv(t, 1)
		l.a.nics[0].Kill()
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 20000))
		// may be accepted or refused
		_, _ = l.a.PostSend(l.a.write(verbs.OpRDMAWriteWithImm, 2, 0, 20000))
		wc := l.a.wait(t, 1)[0]
		if wc.ID != 1 || wc.Status == verbs.StatusSuccess || l.a.Err() == nil {
			t.Fatalf("%+v, %v", wc, l.a.Err())
		}
		_, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 3, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) {
			t.Fatal(err)
		}
	})
}

// A failure does not affect other virtual queue pairs of the CQ, and completions of theirs that
// were polled together with it are reported.
func TestFailureStaysOnItsVirtualQP(t *testing.T) {
	l := newLink(t, linkConfig{nics: 2, cqDepth: 8192,
		qp: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}})
	var as, bs []*ibverbx.VirtualQP
	for range 3 {
		a, b := l.another(t)
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

// Every post that is refused after a failure wraps the failure, for errors.Is and errors.As.
func TestRefusalAfterAFailureNamesTheCause(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		l.fabric.Inject(soft.Fault{Device: l.a.nics[0], Kind: soft.FailSend, Status: verbs.StatusRemOpErr})
		for id := range uint64(8) {
			_, _ = l.a.PostSend(l.a.write(verbs.OpRDMAWrite, id, 0, 10)) // refused once it has failed
		}
		for l.a.Err() == nil {
			l.a.pump(t)
		}
		var fe *ibverbx.FailedError
		_, err := l.a.PostSend(l.a.write(verbs.OpRDMAWrite, 9, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) || !errors.Is(err, verbs.StatusRemOpErr) ||
			!errors.As(err, &fe) {
			t.Error(err)
		}
		if l.a.DataRails() == 1 {
			if wc := l.a.wait(t, 1)[0]; wc.Opcode != verbs.WCUnknown {
				t.Errorf("a failed completion of a single queue pair claims to be of %v", wc.Opcode)
			}
		}
	})
}
