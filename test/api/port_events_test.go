package api_test

import (
	"context"
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

// newPortLink makes a link with retries that take minutes: what fails fast does so by the NICs'
// reports.
func newPortLink(t *testing.T, cfg ibverbx.Config) *timedLink {
	t.Helper()
	cfg.Failback, cfg.Conn = -1, ibverbx.ConnConfig{Timeout: 21, RetryCount: 7}
	return newTimedLink(t, cfg)
}

// A NIC that reports its port down loses its rails long before the retries are up, at either end.
func TestPortThatIsDownLosesItsRails(t *testing.T) {
	eitherEnd(t, func(t *testing.T, scheme ibverbx.Scheme, at func(*vqptest.Link) *vqptest.End) {
		l := newPortLink(t, ibverbx.Config{Scheme: scheme})
		end := at(l.Link)
		nic := end.NICs[1]
		nic.SetLink(false)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 64<<10))
		l.after(0)
		l.after(49 * time.Millisecond)
		if n := l.A.Stats().RailsLost + l.B.Stats().RailsLost; n != 0 {
			t.Errorf("%d rails were lost before their time", n)
		}
		l.after(time.Millisecond)
		l.A.Wait(t, 1)
		l.downAre(t, l.A.NICs[1])
		if end == l.A && !strings.Contains(l.events[0].String(), nic.Name()+" port 1 is down") {
			t.Errorf("says %v", l.events[0])
		}
	})
}

// A link that is back in time costs nothing, however often it flaps.
func TestPortThatFlapsCostsNothing(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	for range 10 {
		for range 100 { // more events than are kept
			l.A.NICs[0].SetLink(false)
			l.A.NICs[0].SetLink(true)
		}
		l.after(30 * time.Millisecond)
		l.A.NICs[0].SetLink(false)
		l.after(30 * time.Millisecond)
		l.A.NICs[0].SetLink(true)
		l.after(30 * time.Millisecond)
	}
	if len(l.events) != 0 {
		t.Errorf("says %v", l.events)
	}
}

// Where events were lost for want of room, the state of the ports decides.
func TestPortEventsThatAreLost(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	for range 100 {
		l.A.NICs[0].SetLink(false)
		l.A.NICs[0].SetLink(true)
	}
	l.A.NICs[0].SetLink(false)
	l.after(0)
	l.after(50 * time.Millisecond)
	if n := l.A.Stats().RailsLost; n == 0 {
		t.Error("no rail was lost")
	}
}

// Reports that are lost of a NIC that is well neither take rails from it nor protect those of
// another.
func TestPortEventsThatAreLostOfANICThatIsWell(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	for range 100 {
		l.A.NICs[0].SetLink(false)
		l.A.NICs[0].SetLink(true)
	}
	l.after(0)
	l.A.NICs[0].SetLink(false)
	l.after(49 * time.Millisecond)
	l.A.NICs[0].SetLink(true)
	l.after(2 * time.Millisecond)
	if len(l.events) != 0 {
		t.Errorf("down for no time, and says %v", l.events)
	}
	for range 100 {
		l.A.NICs[0].SetLink(false)
		l.A.NICs[0].SetLink(true)
	}
	l.A.NICs[1].SetLink(false)
	l.after(0)
	l.after(50 * time.Millisecond)
	l.downAre(t, l.A.NICs[1])
}

// downAre checks of which NICs of end a the rails are out of service.
func (l *timedLink) downAre(t *testing.T, nics ...*soft.Device) {
	t.Helper()
	for _, r := range l.A.Stats().Rails {
		want := slices.ContainsFunc(nics, func(nic *soft.Device) bool { return nic.Name() == r.Device })
		if r.Down != want {
			t.Errorf("rail of %s: down %v", r.Device, r.Down)
		}
	}
	if err := l.A.Err(); err != nil {
		t.Error(err)
	}
}

// The ports that are left are never given up, nor any while all are down, in whatever order they
// went: only retries decide then. When one is up again it stands in for the others.
func TestPortsThatAreAllDown(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	for _, nic := range l.A.NICs {
		nic.SetLink(false)
		l.after(10 * time.Millisecond)
	}
	for range 10 {
		l.after(10 * time.Millisecond)
	}
	l.after(time.Hour)
	l.downAre(t)
	l.A.NICs[1].SetLink(true)
	l.after(0)
	l.downAre(t, l.A.NICs[0])
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 64<<10))
	l.A.Wait(t, 1)
	l.A.NICs[1].SetLink(false)
	l.after(time.Hour)
	l.downAre(t, l.A.NICs[0])
	l.A.NICs[1].SetLink(true)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 64<<10))
	l.A.Wait(t, 1)
}

// A link that flaps while another one is down does not keep that one in service.
func TestPortThatFlapsWhileAnotherIsDown(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	l.A.NICs[0].SetLink(false)
	l.after(0)
	l.after(49 * time.Millisecond)
	l.A.NICs[1].SetLink(false)
	l.after(time.Millisecond)
	l.downAre(t)
	l.A.NICs[1].SetLink(true)
	l.after(0)
	l.downAre(t, l.A.NICs[0])
}

// A port that went down before the virtual queue pair was connected has reported it to nobody.
func TestPortThatIsDownBefore(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	var cards [2]ibverbx.BusinessCard
	for i, e := range []*vqptest.End{l.A, l.B} {
		var err error
		if err = e.Reset(); err == nil {
			cards[i], err = e.Card()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l.A.NICs[0].SetLink(false)
	l.after(0)
	if err := errors.Join(l.A.Connect(cards[1]), l.B.Connect(cards[0])); err != nil {
		t.Fatal(err)
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 64<<10))
	l.after(49 * time.Millisecond)
	l.downAre(t)
	l.after(time.Millisecond)
	l.downAre(t, l.A.NICs[0])
	l.A.Wait(t, 1)
}

// All ports go down, and one comes back in time for its retries: reports make nothing fail that
// lives without them.
func TestReportsMakeNothingFail(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{})
	for _, nic := range l.A.NICs {
		nic.SetLink(false)
		l.after(10 * time.Millisecond)
	}
	l.after(time.Second)
	l.A.NICs[1].SetLink(true)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 0, receivesAt, 64<<10))
	for range 100 {
		l.after(time.Second)
	}
	l.downAre(t, l.A.NICs[0])
}

// Of ports that nobody has to hear of.
func TestPortTimeoutNever(t *testing.T) {
	l := newPortLink(t, ibverbx.Config{PortTimeout: -1})
	l.A.NICs[0].SetLink(false)
	l.after(time.Hour)
	if len(l.events) != 0 {
		t.Errorf("says %v", l.events)
	}
}

// A program that sleeps is told, although nothing completes: in Wait, or on Events, armed or not.
func TestSleepersHearOfPorts(t *testing.T) {
	for name, sleep := range map[string]func(context.Context, *ibverbx.VirtualCQ) error{
		"wait":   func(ctx context.Context, cq *ibverbx.VirtualCQ) error { return cq.Wait(ctx) },
		"events": sleepOnEvents,
	} {
		t.Run(name, func(t *testing.T) { hearsOfPorts(t, sleep) })
	}
}

// sleepOnEvents polls whenever there is an event, and every millisecond while it is told to.
func sleepOnEvents(ctx context.Context, cq *ibverbx.VirtualCQ) error {
	for {
		if _, err := cq.Poll(make([]ibverbx.WC, 1)); err != nil {
			return err
		}
		var again <-chan time.Time
		if cq.Stats().Retrying != 0 {
			again = time.After(time.Millisecond)
		}
		select {
		case <-cq.Events():
		case <-again:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func hearsOfPorts(t *testing.T, sleep func(context.Context, *ibverbx.VirtualCQ) error) {
	t.Helper()
	told := make(chan ibverbx.RailEvent, 16)
	cfg := ibverbx.Config{QPsPerDevice: 1, Failover: true, Failback: -1, PortTimeout: time.Millisecond,
		Conn: ibverbx.ConnConfig{Timeout: 21, RetryCount: 7}}
	peer := cfg
	cfg.Events.Rail = func(e ibverbx.RailEvent) { told <- e }
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: cfg, PeerQP: &peer})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- sleep(ctx, l.A.CQ()) }()
	l.A.NICs[0].SetLink(false)
	select {
	case e := <-told:
		if !e.Down || e.Device != l.A.NICs[0].Name() {
			t.Errorf("says %v", e)
		}
	case <-time.After(30 * time.Second):
		t.Error("nobody was told")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
