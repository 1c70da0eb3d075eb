package soft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
)

// inBothModes runs a test in the background and in the stepped mode. In the latter drive makes
// everything happen that can.
func inBothModes(t *testing.T, test func(t *testing.T, cfg Config)) {
	for _, stepped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stepped=%v", stepped),
			func(t *testing.T) { test(t, Config{Stepped: stepped, Seed: 7}) })
	}
}

func drive(f *Fabric) { f.Run(1 << 14) }

// drain polls until n completions came or the queue returns an error.
func drain(t *testing.T, cq *CQ, n int) (list []verbs.WC, err error) {
	t.Helper()
	drive(cq.dev.f)
	var wcs [8]verbs.WC
	for end := time.Now().Add(10 * time.Second); len(list) < n && err == nil; {
		var m int
		m, err = cq.Poll(wcs[:n-len(list)])
		list = append(list, wcs[:m]...)
		if time.Now().After(end) {
			t.Fatalf("%d of %d completions: %+v", len(list), n, list)
		}
	}
	return list, err
}

func statuses(wcs []verbs.WC) (list []string) {
	for _, wc := range wcs {
		list = append(list, fmt.Sprintf("%d %s", wc.ID, wc.Status.Name()))
	}
	return list
}

func (e *end) mustDrain(want ...string) {
	e.t.Helper()
	t := e.t.(*testing.T)
	wcs, err := drain(t, e.cq, len(want))
	if got := statuses(wcs); err != nil || !slices.Equal(got, want) {
		t.Errorf("sends: %q %v, want %q", got, err, want)
	}
}

// The fault strikes the second request of one queue pair of a NIC, which has another.
func TestFaultsOfMoreThanARequest(t *testing.T) {
	const retry, flush, ok = "2 RETRY_EXC_ERR", "2 WR_FLUSH_ERR", "5 SUCCESS"
	for _, c := range []struct {
		kind    FaultKind
		sends   []string // how requests 2 and 3 end; nil: the queue overruns
		events  []string // of the NIC
		peer    []string // events of the peer's NIC
		state   verbs.QPState
		other   string // how a request of the NIC's other queue pair ends; "": it is refused
		removed []string
	}{
		{FailQP, []string{flush, "3 WR_FLUSH_ERR"}, []string{"soft0 qp 17: queue pair failed"}, nil,
			verbs.StateRTS, ok, nil},
		{CutLink, []string{retry, "3 WR_FLUSH_ERR"}, []string{"soft0 port 1: port error"}, nil,
			verbs.StateRTS,
			"5 RETRY_EXC_ERR", []string{"soft0 port 1: port active"}},
		{KillNIC, []string{flush, "3 WR_FLUSH_ERR"}, []string{"soft0: device failed"}, nil, verbs.StateRTS,
			"", []string{"soft0 port 1: port active"}},
		{OverrunCQ, nil, []string{"soft0: completion queue error", "soft0 qp 17: queue pair failed"}, nil,
			verbs.StateRTS, ok, nil},
		{Rewrite, []string{"2 REM_ACCESS_ERR", "3 WR_FLUSH_ERR"}, nil,
			[]string{"soft1 qp 17: access violation by the peer"},
			verbs.StateErr, ok, nil},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			inBothModes(t, func(t *testing.T, cfg Config) {
				f, a, b := pair(t, cfg, endConfig{})
				a2, b2 := newEnd(t, f.Device(0), endConfig{}), newEnd(t, f.Device(1), endConfig{})
				connect(t, a2, b2)
				events, peer := watch(t, f.Device(0)), watch(t, f.Device(1))
				i := f.Inject(Fault{Kind: c.kind, Device: a.dev, QPNum: a.qp.Num(), Skip: 1,
					Rewrite: func(wr *verbs.SendWR) { wr.RKey += 2 }})
				a2.post(a2.write(b2, 4, 0, 8))
				a2.mustDrain("4 SUCCESS")
				a.post(a.write(b, 1, 0, 8))
				a.mustDrain("1 SUCCESS")
				a.recv(verbs.RecvWR{ID: 9})
				a2.recv(verbs.RecvWR{ID: 8})
				a.buf[8] = 1
				a.post(a.write(b, 2, 8, 8))
				// In the background the fault has struck by now. A queue pair in ERR takes
				// requests, a NIC that is gone does not.
				sends := c.sends
				if n, err := a.qp.PostSend([]verbs.SendWR{a.write(b, 3, 16, 8)}); n != 1 &&
					!errors.Is(err, verbs.ErrDeviceGone) {
					t.Error(n, err)
				} else if n == 0 {
					sends = sends[:1]
				}
				if sends != nil {
					a.mustDrain(sends...)
				} else if wcs, err := drain(t, a.cq, 1); len(wcs) != 0 || !errors.Is(err, verbs.ErrOverrun) {
					t.Error(wcs, err)
				}
				if landed := b.buf[8] == 1; landed != (c.kind == OverrunCQ) {
					t.Error("the data has landed:", landed)
				}
				if wcs, err := drain(t, a.rcq, 1); err != nil || statuses(wcs)[0] != "9 WR_FLUSH_ERR" {
					t.Error(statuses(wcs), err)
				}
				if a.qp.State() != verbs.StateErr || b.qp.State() != c.state || i.Hits() != 1 {
					t.Error(a.qp.State(), b.qp.State(), i.Hits())
				}

				if n, err := a2.qp.PostSend([]verbs.SendWR{a2.write(b2, 5, 0, 8)}); n == 1 && c.other != "" {
					a2.mustDrain(c.other)
				} else if n == 1 || !errors.Is(err, verbs.ErrDeviceGone) {
					t.Error(n, err)
				}
				want := verbs.StateRTS
				if c.other != ok {
					want = verbs.StateErr
				}
				if got := a2.qp.State(); got != want {
					t.Error("the other queue pair is in", got)
				}
				if got := events(); !slices.Equal(got, c.events) {
					t.Errorf("%q, want %q", got, c.events)
				}
				if got := peer(); !slices.Equal(got, c.peer) {
					t.Errorf("the peer: %q, want %q", got, c.peer)
				}

				for range 2 {
					i.Remove()
				}
				if got := events(); !slices.Equal(got, c.removed) {
					t.Errorf("removed: %q, want %q", got, c.removed)
				}
				setState(t, a, verbs.StateReset)
				setState(t, b, verbs.StateReset)
				connect(t, a, b)
				a.post(a.write(b, 6, 0, 8))
				if c.kind != OverrunCQ {
					a.mustDrain("6 SUCCESS")
				} else if _, err := drain(t, a.cq, 1); !errors.Is(err, verbs.ErrOverrun) {
					t.Error("the queue works again:", err)
				}
				if i.Hits() != 1 {
					t.Error(i.Hits())
				}
			})
		})
	}
}

// A request that waits for its link goes out when the fault is removed.
func TestRequestWaitsForACutLink(t *testing.T) {
	inBothModes(t, func(t *testing.T, cfg Config) {
		f, a, b := pair(t, cfg, endConfig{}, func(c *connection) { c.Timeout = 0 })
		i := f.Inject(Fault{Kind: CutLink})
		a.post(a.write(b, 1, 0, 8), a.write(b, 2, 0, 1<<14))
		drive(f)
		nothing(t, a.cq)
		i.Remove()
		a.mustDrain("1 SUCCESS", "2 SUCCESS")
	})
}

// Removing a fault changes no link or NIC that the caller has set since.
func TestRemoveUndoesOnlyItsOwnFault(t *testing.T) {
	for _, c := range []struct {
		name    string
		kind    FaultKind
		before  func(*Device)
		after   func(*Device)
		working bool
	}{
		{"cut", CutLink, nil, nil, true},
		{"cut before", CutLink, func(d *Device) { d.SetLink(false) }, nil, false},
		{"cut again", CutLink, nil, func(d *Device) { d.SetLink(false) }, false},
		{"up, and cut again", CutLink, nil, func(d *Device) { d.SetLink(true); d.SetLink(false) }, false},
		{"up", CutLink, nil, func(d *Device) { d.SetLink(true) }, true},
		{"killed", KillNIC, nil, nil, true},
		{"killed again", KillNIC, nil, (*Device).Kill, false},
		{"restored, and killed again", KillNIC, nil, func(d *Device) { d.Restore(); d.Kill() }, false},
		{"restored", KillNIC, nil, (*Device).Restore, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, a, b := pair(t, Config{}, endConfig{})
			if c.before != nil {
				c.before(a.dev)
			}
			i := f.Inject(Fault{Kind: c.kind})
			a.post(a.write(b, 1, 0, 8))
			if i.Hits() != 1 {
				t.Error(i.Hits())
			}
			if c.after != nil {
				c.after(a.dev)
			}
			works := func() bool {
				port, err := a.dev.QueryPort(1)
				return err == nil && port.State == verbs.PortActive
			}
			before := works()
			f.Inject(Fault{Kind: c.kind}).Remove()
			if works() != before {
				t.Error("another fault was removed, and the NIC works:", works())
			}
			i.Remove()
			if works() != c.working {
				t.Error("the NIC works:", works())
			}
		})
	}
}

// Two cuts of one link: it comes up with the fault that cut it.
func TestCutLinkTwice(t *testing.T) {
	f, a, b := pair(t, Config{Stepped: true}, endConfig{})
	a2, b2 := newEnd(t, f.Device(0), endConfig{}), newEnd(t, f.Device(1), endConfig{})
	connect(t, a2, b2)
	first, second := f.Inject(Fault{Kind: CutLink}), f.Inject(Fault{Kind: CutLink})
	a.post(a.write(b, 1, 0, 8))
	a2.post(a2.write(b2, 1, 0, 8))
	do(t, f, "execute soft0 qp 17")
	do(t, f, "execute soft0 qp 18")
	if first.Hits() != 1 || second.Hits() != 1 {
		t.Error(first.Hits(), second.Hits())
	}
	second.Remove()
	if a.dev.up() {
		t.Error("the link is up")
	}
	first.Remove()
	if !a.dev.up() {
		t.Error("the link is down")
	}
}

// Every completion counts, with success or without, and nothing else.
func TestOverrunCounts(t *testing.T) {
	inBothModes(t, func(t *testing.T, cfg Config) {
		f, a, b := pair(t, cfg, endConfig{})
		i := f.Inject(Fault{Kind: OverrunCQ, Device: a.dev,
			Match: func(wr *verbs.SendWR) bool { return wr.ID != 2 }, Skip: 2})
		f.Inject(Fault{Kind: FailSend, Match: func(wr *verbs.SendWR) bool { return wr.ID == 4 }})
		unsignaled := a.write(b, 1, 0, 8)
		unsignaled.Flags = 0
		a.post(unsignaled, a.write(b, 2, 0, 8), a.write(b, 3, 0, 8)) // 3 is the first
		a.mustDrain("2 SUCCESS", "3 SUCCESS")
		for range 3 { // completions of receives are none of requests
			a.recv(verbs.RecvWR{ID: 6})
			b.post(b.send(7, 0, 0))
			b.mustDrain("7 SUCCESS")
		}
		if wcs, err := drain(t, a.rcq, 3); err != nil {
			t.Error(statuses(wcs), err)
		}
		if i.Hits() != 0 {
			t.Error(i.Hits())
		}
		a.post(a.write(b, 4, 0, 8)) // fails, and is the second
		drive(f)
		flushed := a.write(b, 5, 0, 8)
		flushed.Flags = 0
		a.post(flushed) // the third
		wcs, err := drain(t, a.cq, 2)
		if got := statuses(wcs); !slices.Equal(got, []string{"4 RETRY_EXC_ERR"}) ||
			!errors.Is(err, verbs.ErrOverrun) || i.Hits() != 1 {
			t.Error(got, err, i.Hits())
		}
	})
}

// The failed completion itself may be the one that is lost, and sleepers are woken for it.
func TestOverrunByAFailure(t *testing.T) {
	inBothModes(t, func(t *testing.T, cfg Config) {
		channel := verbs.NewCompChannel()
		f, a, b := pair(t, cfg, endConfig{channel: channel})
		f.Inject(Fault{Kind: OverrunCQ})
		f.Inject(Fault{Kind: FailSend})
		must(t, a.cq.Arm(false))
		a.post(a.write(b, 1, 0, 8))
		drive(f)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		must(t, channel.Wait(ctx))
		if wcs, err := drain(t, a.cq, 1); len(wcs) != 0 || !errors.Is(err, verbs.ErrOverrun) {
			t.Error(wcs, err)
		}
	})
}

// Two queue pairs on a queue: both fail with it, and have no completion.
func TestOverrunOfASharedQueue(t *testing.T) {
	inBothModes(t, func(t *testing.T, cfg Config) {
		f, a, b := pair(t, cfg, endConfig{})
		first := a.qp
		a.newQP(verbs.QPCap{})
		defer first.Close()
		second := newEnd(t, f.Device(1), endConfig{})
		connect(t, a, second)
		events := watch(t, a.dev)
		f.Inject(Fault{Kind: OverrunCQ, QPNum: first.Num()})
		n, err := first.PostSend([]verbs.SendWR{a.write(b, 1, 0, 8), a.write(b, 2, 0, 8)})
		if n != 2 || err != nil {
			t.Fatal(n, err)
		}
		drive(f)
		want := []string{"soft0: completion queue error", "soft0 qp 17: queue pair failed",
			"soft0 qp 18: queue pair failed"}
		if got := events(); !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		if first.State() != verbs.StateErr || a.qp.State() != verbs.StateErr {
			t.Error(first.State(), a.qp.State())
		}
	})
}
