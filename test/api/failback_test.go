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

// To poll is enough for rails to come back: no request needs to move, at neither end. Those of a
// NIC come back together.
func TestRailsComeBackWithoutTraffic(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, at func(*vqptest.Link) *vqptest.End) {
		for _, whole := range []bool{false, true} {
			l := newTimedLink(t, backAfterASecond(scheme))
			if nic := at(l.Link).NICs[0]; whole {
				nic.Kill()
				l.after(0)
				nic.Restore()
			} else {
				killQP(at(l.Link), t, 0)
				l.after(0)
			}
			lost := l.A.Stats().RailsLost
			if whole != (lost > 1) {
				t.Errorf("%d rails are lost, the NIC: %v", lost, whole)
			}
			l.after(999 * time.Millisecond)
			l.expect(t, lost, 0)
			l.after(time.Millisecond)
			l.expect(t, lost, lost)
		}
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
		Events: ibverbx.Events{Rail: func(e ibverbx.RailEvent) { told <- e }}}
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

// Two NICs fail one after the other, at either end, time and again, and come back. What has moved
// nothing when its NIC failed is lost too, says so, and comes back too: afterwards each NIC can
// stand in for all that the other carries.
func TestANICThatIsBackStandsIn(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, of func(*vqptest.Link) *vqptest.End) {
		l := newTimedLink(t, backAfterASecond(scheme))
		at, ends := of(l.Link), []*vqptest.End{l.A, l.B}
		for round := range 10 {
			at.NICs[round%2].Kill()
			if l.after(0); round%3 == 2 {
				sendBothWays(t, l.Link)
				notifyBothWays(t, l.Link)
			}
			for _, e := range ends {
				for i, r := range e.Stats().Rails {
					if gone := at.NICs[round%2].Name() == at.Stats().Rails[i].Device; r.Down != gone {
						t.Fatalf("round %d: rail %d is down: %v, want %v", round, i, r.Down, gone)
					}
				}
			}
			at.NICs[round%2].Restore()
			for range 8 {
				l.after(64 * time.Second) // the longest pause of a rail that has carried nothing
			}
			lost := at.Stats().RailsLost
			l.expect(t, lost, lost)
			for _, e := range ends {
				for i, q := range e.QPs() {
					if q.State() != verbs.StateRTS {
						t.Fatalf("round %d: rail %d is in %v", round, i, q.State())
					}
				}
			}
		}
	})
}

// notifyBothWays has each end write with a notification that the other receives.
func notifyBothWays(t *testing.T, l *vqptest.Link) {
	t.Helper()
	ends := []*vqptest.End{l.A, l.B}
	for _, e := range ends {
		e.Other.ExpectRecv(t, 1)
		e.Send(t, e.Write(verbs.OpRDMAWriteWithImm, 2, 0, 4096))
	}
	for _, e := range ends {
		vqptest.IDs(t, e.Wait(t, 2), verbs.StatusSuccess)
	}
}

// A program that does not poll for an hour does not blame its peer for that, however far the ends
// have come with what is lost: it goes on when it is back.
func TestOwnAbsenceIsNotThePeers(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, of func(*vqptest.Link) *vqptest.End) {
		for polls := range 8 {
			l := newTimedLink(t, ibverbx.Config{Scheme: scheme, Failback: -1})
			at := of(l.Link)
			sendBothWays(t, l.Link)
			at.NICs[0].Kill() // data rails, and those that serve
			for range polls {
				at.Pump(t)
				at.Other.Pump(t)
			}
			l.now = l.now.Add(time.Hour)
			sendBothWays(t, l.Link)
			notifyBothWays(t, l.Link)
		}
	})
}
