package api_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// backAfterASecond is the configuration of rails that come back after a second.
func backAfterASecond(scheme ibverbx.Scheme) ibverbx.Config {
	return ibverbx.Config{Scheme: scheme, Failback: time.Second}
}

// expect checks how many rails both ends have lost, and how many are back.
func (l *timedLink) expect(t *testing.T, lost, back uint64) {
	t.Helper()
	for _, e := range []*vqptest.End{l.A, l.B} {
		if s := e.Stats(); s.RailsLost != lost || s.RailsBack != back || e.Err() != nil {
			t.Errorf("%d rails were lost, %d are back, want %d and %d: %v", s.RailsLost, s.RailsBack, lost,
				back, e.Err())
		}
	}
}

// To poll is enough for rails to come back: no request needs to move, at neither end.
func TestRailsComeBackWithoutTraffic(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, at func(*vqptest.Link) *vqptest.End) {
		l := newTimedLink(t, backAfterASecond(scheme))
		killQP(at(l.Link), t, 0)
		l.after(0)
		l.after(999 * time.Millisecond)
		l.expect(t, 1, 0)
		l.after(time.Millisecond)
		l.expect(t, 1, 1)
	})
}

// A NIC that was gone while memory was registered is not given requests for it when it is back: it
// stays out of service until the memory is deregistered.
func TestANICThatLacksMemoryStaysAway(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, of func(*vqptest.Link) *vqptest.End) {
		l := newTimedLink(t, backAfterASecond(scheme))
		at := of(l.Link)
		at.NICs[0].Kill()
		l.after(0)
		mr, err := at.Domain().Register(make([]byte, 1<<16), verbs.AccessAll)
		if err != nil {
			t.Fatal(err)
		}
		at.NICs[0].Restore()
		for range 10 {
			l.after(time.Second)
		}
		lost := l.A.Stats().RailsLost
		l.expect(t, lost, 0)
		if err := mr.Close(); err != nil {
			t.Fatal(err)
		}
		for range 64 { // a leader whose wish is not answered makes longer pauses
			l.after(time.Second)
		}
		l.expect(t, lost, lost)
		if mr, err = at.Domain().Register(make([]byte, 1<<16), verbs.AccessAll); err != nil {
			t.Fatal(err)
		}
		wr := at.Write(verbs.OpRDMAWrite, 0, receivesAt, 4096)
		wr.Local = mr.Slice(0, 4096)
		at.Send(t, wr)
		at.Wait(t, 1)
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Programs that sleep in Wait bring rails back too.
func TestSleepersBringRailsBack(t *testing.T) {
	told := make(chan ibverbx.RailEvent, 16)
	cfg := ibverbx.Config{QPsPerDevice: 1, Failover: true, Failback: 20 * time.Millisecond,
		OnRail: func(e ibverbx.RailEvent) { told <- e }}
	peer := cfg
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: cfg, PeerQP: &peer})
	killQP(l.A, t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ended := make(chan error)
	for _, e := range []*vqptest.End{l.A, l.B} {
		go func() { ended <- e.CQ().Wait(ctx) }()
	}
	for back := 0; back < 2 && ctx.Err() == nil; {
		select {
		case e := <-told:
			if !e.Down {
				back++
			}
		case <-ctx.Done():
			t.Errorf("%d of 2 ends say that the rail is back", back)
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
}
