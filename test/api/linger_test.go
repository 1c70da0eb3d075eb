package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A SEND whose receive is never posted does not delay the end of a virtual queue pair on which a
// later request has failed: the SEND lingers for Config.Linger, and then it is flushed. The failed
// request still has its own status.
func TestRequestsBeforeAFailureLinger(t *testing.T) {
	const linger = 30 * time.Millisecond
	cfg := ibverbx.Config{Linger: linger, FragmentSize: 8}
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: cfg}, func(t *testing.T, l *vqptest.Link) {
		begin := time.Now()
		l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1})
		l.A.Send(t, bad)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 3, 0, 8))
		wcs := l.A.Wait(t, 3)
		want := []verbs.Status{verbs.StatusWRFlushErr, verbs.StatusRemAccessErr, verbs.StatusWRFlushErr}
		for i, wc := range wcs {
			if wc.ID != uint64(i+1) || wc.Status != want[i] {
				t.Errorf("completion %d: %s, want %v", i, vqptest.FormatWCs(wcs[i:i+1]), want[i].Name())
			}
		}
		if took := time.Since(begin); took < linger {
			t.Errorf("flushed after %v: it may linger for %v", took, linger)
		}
		if err := l.A.Err(); !errors.Is(err, verbs.StatusRemAccessErr) {
			t.Error(err)
		}
	})
}

// A negative Linger flushes at once, and Wait returns for it.
func TestNoLinger(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{Linger: -1, FragmentSize: 8}},
		func(t *testing.T, l *vqptest.Link) {
			l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8))
			bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
			bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1,
				6: 1,
				7: 1})
			l.A.Send(t, bad)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			if err := l.A.CQ().Wait(ctx); err != nil {
				t.Fatal(err)
			}
			if wcs := l.A.Wait(t, 2); wcs[0].Status != verbs.StatusWRFlushErr ||
				wcs[1].Status != verbs.StatusRemAccessErr {
				t.Error(vqptest.FormatWCs(wcs))
			}
		})
}

// A failed rail refuses credits. Requests on the other rails still linger, and complete with their
// own status.
func TestRefusedCreditsDoNotEndTheLinger(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Linger: time.Minute,
		FragmentSize: 8,
		Credits:      2}})
	transient := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: -1})
	l.A.ExpectRecv(t, 1000)
	l.B.Send(t, l.B.Write(verbs.OpRDMAWriteWithImm, 1, 0, 16)) // uses up a credit of either rail
	l.A.Wait(t, 1)
	l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0], QPNum: l.A.RailQPs[0]})
	l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // on the notify QP; b posts no receive yet
	for id := range uint64(2) {
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 2+id, 0, 8))
	}
	for deadline := time.Now().Add(10 * time.Second); l.A.Err() == nil && time.Now().Before(deadline); {
		l.A.Pump(t)
	}
	transient.Remove()
	permanent := l.Fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.A.NICs[0], Count: -1,
		Err: verbs.ErrState})
	for range 10 {
		l.A.Pump(t)
	}
	if permanent.Hits() == 0 || permanent.Hits() > 2 {
		t.Errorf("%d credits were refused, want one on each rail at most", permanent.Hits())
	}
	if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 1000, Local: l.B.MR.Slice(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if wc := l.A.Wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusSuccess {
		t.Errorf("the SEND before the failure: %s", vqptest.FormatWCs([]ibverbx.WC{wc}))
	}
}

// A run on a stepped fabric whose clock is the program's ends alike however long it pauses:
// requests linger by that clock only.
func TestLingerByAConfiguredClock(t *testing.T) {
	const linger = 20 * time.Millisecond
	for _, pause := range []time.Duration{0, 3 * linger} {
		now := time.Unix(1, 0)
		l := vqptest.NewLink(t, vqptest.LinkConfig{Fabric: soft.Config{Stepped: true, Seed: 3},
			QP: ibverbx.Config{
				QPsPerDevice: 2, Linger: linger, FragmentSize: 8,
				Testing: ibverbx.Testing{Clock: func() time.Time { return now }}}})
		l.A.Send(t, l.A.Write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.A.Write(verbs.OpRDMAWrite, 2, 0, 16)
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
		l.A.Send(t, bad)
		for range 100 {
			l.Fabric.Run(10)
			l.A.Pump(t)
		}
		if l.A.Err() == nil {
			t.Fatal("nothing has failed")
		}
		time.Sleep(pause)
		now = now.Add(linger)
		for range 20 {
			l.Fabric.Run(10)
			l.A.Pump(t)
		}
		if len(l.A.Backlog) != 0 {
			t.Fatalf("behind a pause of %v, and no more than Linger by the clock: %s", pause,
				vqptest.FormatWCs(l.A.Backlog))
		}
		now = now.Add(1)
		for range 20 {
			l.A.Pump(t)
			l.Fabric.Run(10)
		}
		if len(l.A.Backlog) != 2 || l.A.Backlog[0].Status != verbs.StatusWRFlushErr ||
			l.A.Backlog[1].Status != verbs.StatusRemAccessErr {
			t.Errorf("behind Linger by the clock: %s", vqptest.FormatWCs(l.A.Backlog))
		}
	}
}
