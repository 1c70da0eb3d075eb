package api_test

import (
	"bytes"
	"errors"
	"log/slog"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// eventNames records what happens to one end as a list of words.
func eventNames(to *[]string) ibverbx.Events {
	return ibverbx.Events{
		Connected: func(e ibverbx.ConnectedEvent) { *to = append(*to, "connected over "+e.Carrier.String()) },
		Rail: func(e ibverbx.RailEvent) {
			*to = append(*to, map[bool]string{true: "lost", false: "back"}[e.Down])
		},
		Settled:  func(ibverbx.SettledEvent) { *to = append(*to, "settled") },
		Withheld: func(ibverbx.WithheldEvent) { *to = append(*to, "withheld") },
		Failed:   func(*ibverbx.FailedError) { *to = append(*to, "failed") },
	}
}

// A connection that loses a rail under traffic, and then everything, says so in order: connected,
// lost, settled, failed. What is sent again was outstanding when the rail was lost.
func TestEventsOfAFailover(t *testing.T) {
	var seen []string
	var settled ibverbx.SettledEvent
	events := eventNames(&seen)
	count := events.Settled
	events.Settled = func(e ibverbx.SettledEvent) {
		settled = e
		count(e)
	}
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 1,
		FragmentSize: 512, Failover: true, Failback: ibverbx.None, Events: events}})
	seen = slices.DeleteFunc(seen, func(s string) bool { return strings.HasPrefix(s, "connected") })
	if len(seen) != 0 {
		t.Fatalf("before any fault: %v", seen)
	}
	killQP(l.B, t, 1)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 4096))
	pumpUntil(t, l, "settlement", func() bool { return len(seen) >= 4 })
	// Both ends have lost a rail, and have settled it.
	slices.Sort(seen)
	if want := []string{"lost", "lost", "settled", "settled"}; !slices.Equal(seen, want) {
		t.Errorf("after a loss: %v, want %v", seen, want)
	}
	if settled.Rail != 1 || settled.Took < 0 {
		t.Errorf("settled: %+v", settled)
	}
	seen = nil
	killQP(l.A, t, 0)
	_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 2, 0, 4096))
	pumpUntil(t, l, "failure", func() bool { return l.A.Err() != nil })
	if !slices.Contains(seen, "failed") {
		t.Errorf("after the last rail: %v", seen)
	}
}

// A connection says what carries it, in the event and when asked.
func TestCarrier(t *testing.T) {
	var seen []string
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 3,
		Events: eventNames(&seen)}})
	if len(seen) != 2 || !strings.HasPrefix(seen[0], "connected over soft soft0") {
		t.Errorf("events %q", seen)
	}
	c := l.A.Carrier()
	if len(c.NICs) != 2 {
		t.Fatalf("carrier %+v", c)
	}
	peer := l.B.Carrier()
	for i, n := range c.NICs {
		qps := 3
		if i == 0 {
			qps++ // the notify QP
		}
		if n.Device != l.A.NICs[i].Name() || n.Provider != "soft" || !n.Software || n.QPs != qps ||
			n.MTU != 4096 || n.GID.IsZero() || n.PeerGID != peer.NICs[i].GID ||
			n.GID != peer.NICs[i].PeerGID {
			t.Errorf("NIC %d: %+v, the peer's %+v", i, n, peer.NICs[i])
		}
	}
	unconnected := vqptest.OpenSoft(t, ibverbx.Config{})
	defer func() {
		if err := unconnected.Close(); err != nil {
			t.Error(err)
		}
	}()
	if c := unconnected.Carrier(); len(c.NICs) != 1 || c.NICs[0].MTU != 0 || !c.NICs[0].GID.IsZero() {
		t.Errorf("before Connect: %+v", c)
	}
}

// A receiver whose program posts no receives says once that its peer must wait, and again only
// after its bank was empty.
func TestWithheldEvent(t *testing.T) {
	var seen []string
	const banked = 8
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, MaxBanked: banked,
		Events: ibverbx.Events{Withheld: func(e ibverbx.WithheldEvent) {
			seen = append(seen, e.String())
			if e.VirtualQP == 0 || e.Banked < banked {
				t.Errorf("event %+v", e)
			}
		}}}})
	for round := 1; round <= 2; round++ {
		for id := range uint64(banked + 4) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, id, 0, 8))
		}
		l.A.Wait(t, banked+4)
		l.B.Pump(t)
		l.B.Pump(t)
		if len(seen) != round {
			t.Fatalf("round %d: events %q", round, seen)
		}
		for id := range uint64(banked + 4) {
			l.B.ExpectRecv(t, id)
		}
		l.B.Wait(t, banked+4)
	}
}

// A failure of a single queue pair is an event, too, and comes once.
func TestFailedEventOfASingleQueuePair(t *testing.T) {
	var failed []*ibverbx.FailedError
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 1,
		Events: ibverbx.Events{Failed: func(f *ibverbx.FailedError) { failed = append(failed, f) }}}})
	if err := l.B.MR.Close(); err != nil {
		t.Fatal(err)
	}
	wr := l.A.Write(verbs.OpRDMAWrite, 7, 0, 8)
	if n, err := l.A.PostSend(wr, wr, wr); n != 3 {
		t.Fatal(err)
	}
	pumpUntil(t, l, "failure", func() bool { return l.A.Err() != nil })
	l.A.Wait(t, 3)
	var own *ibverbx.FailedError
	if !errors.As(l.A.Err(), &own) || len(failed) != 1 || failed[0] != own {
		t.Fatalf("events %v, Err %v", failed, l.A.Err())
	}
}

// LogEvents writes one line with fields for each event.
func TestLogEvents(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: dropTime}))
	e := ibverbx.LogEvents(log)
	lost := ibverbx.RailEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_1", QPNum: 18, Down: true,
		Cause: verbs.StatusRetryExcErr}
	for range 5 {
		e.Rail(lost)
	}
	lost.Down, lost.Cause = false, nil
	e.Rail(lost)
	lost.Rail = 2
	e.Rail(lost)
	e.Settled(ibverbx.SettledEvent{VirtualQP: 3, Rail: 1, Device: "mlx5_1", Arrived: 2, Again: 5,
		Bytes: 2048})
	e.Withheld(ibverbx.WithheldEvent{VirtualQP: 3, Banked: 4096})
	e.Connected(ibverbx.ConnectedEvent{VirtualQP: 3, Carrier: ibverbx.Carrier{
		NICs: []ibverbx.CarrierNIC{{Device: "mlx5_0", Provider: "rdmacore"}}}})
	e.Failed(&ibverbx.FailedError{QPNum: 3, Rail: 0, Device: "mlx5_0", Err: verbs.StatusRemAccessErr})
	want := []string{
		`level=WARN msg="ibverbx: rail lost" virtual_qp=3 rail=1 device=mlx5_1 qp_num=18 cause=.*`,
		`level=INFO msg="ibverbx: rail back" virtual_qp=3 rail=1 device=mlx5_1 qp_num=18`,
		`level=INFO msg="ibverbx: rail back" virtual_qp=3 rail=2 device=mlx5_1 qp_num=18`,
		`level=WARN msg="ibverbx: failover settled" .* arrived=2 again=5 bytes=2048 took=0s`,
		`level=WARN msg="ibverbx: peer must wait for receives" virtual_qp=3 banked=4096`,
		`level=INFO msg="ibverbx: connected" virtual_qp=3 nics="rdmacore mlx5_0" scheme=dqplb .*`,
		`level=ERROR msg="ibverbx: failed" virtual_qp=3 err\..*`,
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i := range want {
		if !regexp.MustCompile("^" + want[i] + "$").MatchString(lines[i]) {
			t.Errorf("line %d: %s\nwant %s", i, lines[i], want[i])
		}
	}
}

// dropTime leaves the time out of a line of a log.
func dropTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// pumpUntil polls both ends until something has happened.
func pumpUntil(t *testing.T, l *vqptest.Link, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); runtime.Gosched() {
		l.A.Pump(t)
		l.B.Pump(t)
		if time.Now().After(deadline) {
			t.Fatalf("no %s: A %v, B %v", what, l.A.Err(), l.B.Err())
		}
	}
}
