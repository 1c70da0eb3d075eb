package api_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// failbackLink is a link over two NICs an end, whose rails come back after a second of its own
// clock.
type failbackLink struct {
	*vqptest.Link
	now time.Time
}

func newFailbackLink(t *testing.T, scheme ibverbx.Scheme) *failbackLink {
	t.Helper()
	l := &failbackLink{now: time.Unix(0, 0)}
	cfg := ibverbx.Config{Scheme: scheme, QPsPerDevice: 2, FragmentSize: 512, Failover: true,
		Failback: time.Second,
		Testing:  ibverbx.Testing{Clock: func() time.Time { return l.now }}}
	peer := cfg
	l.Link = vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: cfg, PeerQP: &peer})
	return l
}

// after lets time pass, and both ends poll. Nothing is sent.
func (l *failbackLink) after(d time.Duration) {
	l.now = l.now.Add(d)
	for range 20 {
		l.A.Pump(l.TB)
		l.B.Pump(l.TB)
	}
}

// expect checks how many rails both ends have lost, and how many are back.
func (l *failbackLink) expect(t *testing.T, lost, back uint64) {
	t.Helper()
	for _, e := range []*vqptest.End{l.A, l.B} {
		if s := e.Stats(); s.RailsLost != lost || s.RailsBack != back || e.Err() != nil {
			t.Errorf("%d rails were lost, %d are back, want %d and %d: %v", s.RailsLost, s.RailsBack, lost,
				back, e.Err())
		}
	}
}

// bothEnds plays a test with either scheme, and with what goes wrong at either end: one leads.
func bothEnds(t *testing.T, play func(t *testing.T, l *failbackLink, at *vqptest.End)) {
	t.Helper()
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, who := range []string{"leader", "follower"} {
			t.Run(fmt.Sprintf("%v/%s", scheme, who), func(t *testing.T) {
				l := newFailbackLink(t, scheme)
				at := l.A // whose address is the lower one
				if who == "follower" {
					at = l.B
				}
				play(t, l, at)
			})
		}
	}
}

// To poll is enough for rails to come back: no request needs to move, at neither end.
func TestRailsComeBackWithoutTraffic(t *testing.T) {
	bothEnds(t, func(t *testing.T, l *failbackLink, at *vqptest.End) {
		killQP(at, t, 0)
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
	bothEnds(t, func(t *testing.T, l *failbackLink, at *vqptest.End) {
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
