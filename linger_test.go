package ibverbx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A SEND whose receive is never posted does not delay the end of a virtual queue pair on which a
// later request has failed: the SEND lingers for Config.Linger, and then it is flushed. The failed
// request still has its own status.
func TestRequestsBeforeAFailureLinger(t *testing.T) {
	const linger = 30 * time.Millisecond
	cfg := ibverbx.Config{Linger: linger, FragmentSize: 8}
	multiModes(t, linkConfig{qp: cfg}, func(t *testing.T, l *link) {
		begin := time.Now()
		l.a.send(t, l.a.write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.a.write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1})
		l.a.send(t, bad)
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 3, 0, 8))
		wcs := l.a.wait(t, 3)
		want := []verbs.Status{verbs.StatusWRFlushErr, verbs.StatusRemAccessErr, verbs.StatusWRFlushErr}
		for i, wc := range wcs {
			if wc.ID != uint64(i+1) || wc.Status != want[i] {
				t.Errorf("completion %d: %s, want %v", i, fmtWCs(wcs[i:i+1]), want[i].Name())
			}
		}
		if took := time.Since(begin); took < linger {
			t.Errorf("flushed after %v: it may linger for %v", took, linger)
		}
		if err := l.a.Err(); !errors.Is(err, verbs.StatusRemAccessErr) {
			t.Error(err)
		}
	})
}

// A negative Linger flushes at once, and Wait returns for it.
func TestNoLinger(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{Linger: -1, FragmentSize: 8}}, func(t *testing.T, l *link) {
		l.a.send(t, l.a.write(verbs.OpSend, 1, 0, 8))
		bad := l.a.write(verbs.OpRDMAWrite, 2, 0, 16) // one fragment on another rail than the SEND
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1, 3: 1, 4: 1, 5: 1, 6: 1,
			7: 1})
		l.a.send(t, bad)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := l.a.cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if wcs := l.a.wait(t, 2); wcs[0].Status != verbs.StatusWRFlushErr ||
			wcs[1].Status != verbs.StatusRemAccessErr {
			t.Error(fmtWCs(wcs))
		}
	})
}

// A failed rail refuses credits. Requests on the other rails still linger, and complete with their
// own status.
func TestRefusedCreditsDoNotEndTheLinger(t *testing.T) {
	l := newLink(t, linkConfig{qp: ibverbx.Config{QPsPerDevice: 2, Linger: time.Minute, FragmentSize: 8,
		Credits: 2}})
	transient := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.a.nics[0], Count: -1})
	l.a.expectRecv(t, 1000)
	l.b.send(t, l.b.write(verbs.OpRDMAWriteWithImm, 1, 0, 16)) // uses up a credit of either rail
	l.a.wait(t, 1)
	l.fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.a.nics[0], QPNum: l.a.railQP[0]})
	l.a.send(t, l.a.write(verbs.OpSend, 1, 0, 8)) // on the notify QP; b posts no receive yet
	for id := range uint64(2) {
		l.a.send(t, l.a.write(verbs.OpRDMAWrite, 2+id, 0, 8))
	}
	for deadline := time.Now().Add(10 * time.Second); l.a.Err() == nil && time.Now().Before(deadline); {
		l.a.pump(t)
	}
	transient.Remove()
	permanent := l.fabric.Inject(soft.Fault{Kind: soft.RefuseRecv, Device: l.a.nics[0], Count: -1,
		Err: verbs.ErrState})
	for range 10 {
		l.a.pump(t)
	}
	if permanent.Hits() == 0 || permanent.Hits() > 2 {
		t.Errorf("%d credits were refused, want one on each rail at most", permanent.Hits())
	}
	if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 1000, Local: l.b.mr.Slice(0, 8)}); err != nil {
		t.Fatal(err)
	}
	if wc := l.a.wait(t, 1)[0]; wc.ID != 1 || wc.Status != verbs.StatusSuccess {
		t.Errorf("the SEND before the failure: %s", fmtWCs([]ibverbx.WC{wc}))
	}
}

// A run on a stepped fabric whose clock is the program's ends alike however long it pauses:
// requests linger by that clock only.
func TestLingerByAConfiguredClock(t *testing.T) {
	const linger = 20 * time.Millisecond
	for _, pause := range []time.Duration{0, 3 * linger} {
		now := time.Unix(1, 0)
		l := newLink(t, linkConfig{fabric: soft.Config{Stepped: true, Seed: 3}, qp: ibverbx.Config{
			QPsPerDevice: 2, Linger: linger, FragmentSize: 8, Clock: func() time.Time { return now }}})
		l.a.send(t, l.a.write(verbs.OpSend, 1, 0, 8)) // b posts no receive
		bad := l.a.write(verbs.OpRDMAWrite, 2, 0, 16)
		bad.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1})
		l.a.send(t, bad)
		for range 100 {
			l.fabric.Run(10)
			l.a.pump(t)
		}
		if l.a.Err() == nil {
			t.Fatal("nothing has failed")
		}
		time.Sleep(pause)
		now = now.Add(linger)
		for range 20 {
			l.fabric.Run(10)
			l.a.pump(t)
		}
		if len(l.a.backlog) != 0 {
			t.Fatalf("behind a pause of %v, and no more than Linger by the clock: %s", pause,
				fmtWCs(l.a.backlog))
		}
		now = now.Add(1)
		for range 20 {
			l.a.pump(t)
			l.fabric.Run(10)
		}
		if len(l.a.backlog) != 2 || l.a.backlog[0].Status != verbs.StatusWRFlushErr ||
			l.a.backlog[1].Status != verbs.StatusRemAccessErr {
			t.Errorf("behind Linger by the clock: %s", fmtWCs(l.a.backlog))
		}
	}
}
