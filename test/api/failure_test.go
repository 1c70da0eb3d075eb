package api_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// multiModes runs a test in every mode with several queue pairs.
func multiModes(t *testing.T, cfg vqptest.LinkConfig, test func(t *testing.T, l *vqptest.Link)) {
	for _, m := range vqptest.Modes {
		if m.QPs*m.NICs == 1 {
			continue
		}
		t.Run(m.Name, func(t *testing.T) {
			c := cfg
			c.NICs, c.QP.QPsPerDevice, c.QP.Scheme = m.NICs, m.QPs, m.Scheme
			test(t, vqptest.NewLink(t, c))
		})
	}
}

// A fragment fails: the first error is kept and reported in full, later requests are flushed in
// order, posts are refused, and the peer is never notified. Error completions carry a wrong opcode,
// length and immediate on purpose.
func TestFailedFragmentStopsTheLine(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			for id := range uint64(10) {
				l.B.ExpectRecv(t, id)
			}
			l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Skip: 5, Kind: soft.FailSend,
				Status: verbs.StatusRemOpErr, VendorErr: 0x77,
				Match: func(wr *verbs.SendWR) bool { return wr.Bytes() != 0 }})
			var wrs []ibverbx.SendWR
			for id := range uint64(10) {
				op := verbs.OpRDMAWriteWithImm
				if id%3 == 1 {
					op = verbs.OpRDMAWrite
				}
				wrs = append(wrs, l.A.Write(op, id, id*10000, 10000))
			}
			if n, err := l.A.PostSend(wrs...); n != 10 || err != nil {
				t.Fatal(n, err)
			}
			wcs := l.A.Wait(t, 10)
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
			if err := l.A.Err(); !errors.As(err, &fe) || !errors.Is(err, verbs.StatusRemOpErr) ||
				fe.ID != uint64(failed) || fe.Device != "soft0" ||
				fe.Fragment < 0 || !strings.Contains(err.Error(), "REM_OP_ERR") ||
				!strings.Contains(err.Error(), "vendor 0x77") {
				t.Errorf("Err: %v", err)
			}
			if _, err := l.A.PostSend(wrs[0]); !errors.Is(err, ibverbx.ErrFailed) ||
				!strings.Contains(err.Error(), "reset or close") {
				t.Errorf("post after failure: %v", err)
			}
			if l.A.State() != verbs.StateErr {
				t.Errorf("state %v", l.A.State())
			}
			// The receiver is notified only of requests before the failure, in order, after their
			// data has arrived.
			for range 100 {
				l.B.Pump(t)
			}
			for i, wc := range l.B.Backlog {
				if wc.Status != verbs.StatusSuccess {
					break // its own queue pairs have failed, too
				}
				if wc.ID != uint64(i) || int(wc.Imm) >= failed {
					t.Fatalf("receive %d: %+v although request %d failed", i, wc, failed)
				}
				at := uint64(wc.Imm) * 10000
				vqptest.MustEqual(t, "notified data", l.B.Buf[at:at+10000], l.A.Buf[at:at+10000])
			}
		})
}

// A wrong remote key fails the request that uses it, as the completion's status says.
func TestRemoteAccessErrorFailsTheRequestThatCausedIt(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			good := l.A.Write(verbs.OpRDMAWrite, 1, 0, 20000)
			bad := l.A.Write(verbs.OpRDMARead, 2, 0, 20000)
			keys := map[verbs.DeviceID]uint32{}
			for dev := range verbs.DeviceID(8) {
				keys[dev] = 0xbad
			}
			bad.Remote = ibverbx.RemoteSegment{Addr: l.A.Peer.Addr(), Length: 1 << 20,
				Keys: ibverbx.NewKeys(keys)}
			if _, err := l.A.PostSend(good, bad, l.A.Write(verbs.OpRDMAWriteWithImm, 3, 0, 10)); err != nil {
				t.Fatal(err)
			}
			wcs := l.A.Wait(t, 3)
			if wcs[0].Status != 0 || wcs[1].Status != verbs.StatusRemAccessErr ||
				wcs[2].Status != verbs.StatusWRFlushErr {
				t.Fatal(vqptest.FormatWCs(wcs))
			}
		})
}

// A fragment in flight holds the buffer even after another fragment has failed (promise 3).
func TestRequestIsReportedOnlyWhenItsLastFragmentHasEnded(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000},
		Fabric: soft.Config{Stepped: true}})
	l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], QPNum: l.A.RailQPs[0], Kind: soft.FailSend,
		Status: verbs.StatusRemOpErr})
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 2000))
	// Rail 0 fails; rail 1 still has a fragment.
	for l.Do(func(a soft.Action) bool { return a.QPNum == l.A.RailQPs[0] && a.Device == 0 }) {
	}
	l.A.Pump(t)
	if len(l.A.Backlog) != 0 {
		t.Fatalf("reported while a fragment is in flight: %s", vqptest.FormatWCs(l.A.Backlog))
	}
	if l.A.Err() == nil {
		t.Fatal("the failure is not visible")
	}
	// The memory region cannot be closed before.
	if err := l.A.MR.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Fatalf("closing a region in use: %v", err)
	}
	for range 50 {
		l.Fabric.Run(10)
		l.A.Pump(t)
	}
	if len(l.A.Backlog) != 1 || l.A.Backlog[0].Status != verbs.StatusRemOpErr {
		t.Fatal(vqptest.FormatWCs(l.A.Backlog))
	}
}

// A transiently refused post is retried: nothing is lost or reordered, and no number is skipped.
func TestTransientRefusalsAreRetried(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 100}},
		func(t *testing.T, l *vqptest.Link) {
			for _, kind := range []soft.FaultKind{soft.RefuseSend, soft.RefuseRecv} {
				for skip := range 40 {
					l.Fabric.Inject(soft.Fault{Skip: skip * 3, Count: 2, Kind: kind})
				}
			}
			const total = 60
			for id := range uint64(total) {
				vqptest.FillRandom(l.A.Buf[id*1000:id*1000+1000], id)
				l.B.ExpectRecv(t, id)
				l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, id*1000, 1000))
			}
			for i, wc := range l.B.Wait(t, total) {
				if wc.ID != uint64(i) || wc.Imm != uint32(i) || wc.Status != 0 {
					t.Fatalf("receive %d: %+v", i, wc)
				}
			}
			vqptest.IDs(t, l.A.Wait(t, total), verbs.StatusSuccess)
			vqptest.MustEqual(t, "data", l.B.Buf[:total*1000], l.A.Buf[:total*1000])
			refused := uint64(0)
			for _, r := range slices.Concat(l.A.Stats().Rails, l.B.Stats().Rails) {
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
	settled := func(t *testing.T, l *vqptest.Link) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 9, 0, 20000))
		l.A.Wait(t, 5)
		for deadline := time.Now().Add(3 * time.Second); l.A.CQ().Stats().Retrying != 0; l.A.Pump(t) {
			if time.Now().After(deadline) {
				t.Fatal("it is tried again and again")
			}
		}
	}
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			fill(l.A, t, 0, 4)
			l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0]})
			settled(t, l)
		})
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			fill(l.A, t, 0, 4)
			l.Fabric.Inject(soft.Fault{Kind: soft.KillNIC, Device: l.A.NICs[0]})
			settled(t, l)
		})
}

// A NIC disappears: its requests complete with an error, and nothing hangs.
func TestNICGone(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000,
		Conn: ibverbx.ConnConfig{Timeout: 1, RetryCount: 1}}}, func(t *testing.T, l *vqptest.Link) {
		l.B.ExpectRecv(t, 1)
		l.A.NICs[0].Kill()
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 20000))
		// may be accepted or refused
		_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 20000))
		wc := l.A.Wait(t, 1)[0]
		if wc.ID != 1 || wc.Status == verbs.StatusSuccess || l.A.Err() == nil {
			t.Fatalf("%+v, %v", wc, l.A.Err())
		}
		_, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 3, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) {
			t.Fatal(err)
		}
	})
}

// A failure does not affect other virtual queue pairs of the CQ, and completions of theirs that
// were polled together with it are reported.
func TestFailureStaysOnItsVirtualQP(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, CQDepth: 8192,
		QP: ibverbx.Config{QPsPerDevice: 2, FragmentSize: 1000}})
	var as, bs []*ibverbx.VirtualQP
	for range 3 {
		a, b := l.Another(t)
		as, bs = append(as, a), append(bs, b)
	}
	l.Fabric.Inject(soft.Fault{Device: l.A.NICs[1], QPNum: as[1].Stats().Rails[1].QPNum, Kind: soft.FailSend,
		Status: verbs.StatusLocQPOpErr})
	for round := range uint64(20) {
		for i, a := range as {
			wr := l.A.Write(verbs.OpRDMAWrite, uint64(i)<<32|round, 0, 5000)
			if _, err := a.PostSend(wr); err != nil && i != 1 {
				t.Fatal(err)
			}
		}
	}
	next := map[uint64]uint64{}
	for _, wc := range l.A.Wait(t, 40) {
		i, round := wc.ID>>32, wc.ID&0xffffffff
		if i == 1 {
			continue
		}
		if wc.Status != 0 || round != next[i] || wc.QPNum != as[i].Num() {
			t.Fatalf("virtual qp %d: %+v, want round %d", i, wc, next[i])
		}
		next[i]++
	}
	for l.A.Pump(t); next[0] < 20 || next[2] < 20; l.A.Pump(t) {
		for _, wc := range l.A.Backlog {
			next[wc.ID>>32]++
		}
		l.A.Backlog = nil
	}
	if as[1].Err() == nil || as[0].Err() != nil || as[2].Err() != nil {
		t.Errorf("errors: %v, %v, %v", as[0].Err(), as[1].Err(), as[2].Err())
	}
	_ = bs
}

// Every post that is refused after a failure wraps the failure, for errors.Is and errors.As.
func TestRefusalAfterAFailureNamesTheCause(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Kind: soft.FailSend, Status: verbs.StatusRemOpErr})
		for id := range uint64(8) {
			_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, id, 0, 10)) // refused once it has failed
		}
		for l.A.Err() == nil {
			l.A.Pump(t)
		}
		var fe *ibverbx.FailedError
		_, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 9, 0, 10))
		if !errors.Is(err, ibverbx.ErrFailed) || !errors.Is(err, verbs.StatusRemOpErr) ||
			!errors.As(err, &fe) {
			t.Error(err)
		}
		if l.A.DataRails() == 1 {
			if wc := l.A.Wait(t, 1)[0]; wc.Opcode != verbs.WCUnknown {
				t.Errorf("a failed completion of a single queue pair claims to be of %v", wc.Opcode)
			}
		}
	})
}
