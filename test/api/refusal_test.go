package api_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// Each refusal has an error of its own that says what to do, and no effect.
func TestRefusedSendsHaveNoEffect(t *testing.T) {
	multi := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{QPsPerDevice: 2,
		FragmentSize: 1000}})
	single := vqptest.NewLink(t, vqptest.LinkConfig{})
	other, err := ibverbx.NewDomain(multi.A.NICs[0])
	if err != nil {
		t.Fatal(err)
	}
	oneNIC, err := other.Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	segmentOfClosed, closedOfSingle := closedRegion(t, multi.A), closedRegion(t, single.A)
	t.Cleanup(func() { _ = oneNIC.Close(); _ = other.Close() })
	good := func(e *vqptest.End) ibverbx.SendWR { return e.Write(verbs.OpRDMAWrite, 5, 0, 64) }
	for _, c := range []struct {
		name string
		l    *vqptest.Link
		edit func(e *vqptest.End, wr *ibverbx.SendWR)
		want error
		says string
	}{
		{"unknown opcode", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode = 77 },
			ibverbx.ErrOpcode,
			"opcode 77"},
		{"unknown opcode, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Opcode = 77 },
			ibverbx.ErrOpcode, "opcode 77"},
		{"unsignaled", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Flags = 0 },
			ibverbx.ErrUnsignaled,
			"SendSignaled"},
		{"unknown flag", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Flags |= 1 << 9 },
			verbs.ErrInvalid,
			"flags"},
		{"a read of nothing over every rail", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Opcode, wr.Local.Length, wr.EveryRail = verbs.OpRDMARead, 0, true
		}, ibverbx.ErrLength, "not 0"},
		{"no local key", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local.Keys = nil },
			ibverbx.ErrNoKey,
			"MR.Slice"},
		{"no local key, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local.Keys = nil },
			ibverbx.ErrNoKey, "MR.Slice"},
		{"local key of one NIC", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Local = oneNIC.Slice(0,
				64)
		},
			ibverbx.ErrNoKey, "register it on every device"},
		{"no remote key", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote.Keys = nil },
			ibverbx.ErrNoKey,
			"remote memory"},
		{"remote key of one NIC", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{2: 1})
		}, ibverbx.ErrNoKey, "device 3"},
		{"no remote key, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote.Keys = nil },
			ibverbx.ErrNoKey, "remote memory"},
		{"remote key of another NIC, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Remote.Keys = ibverbx.NewKeys(map[verbs.DeviceID]uint32{5: 1})
		}, ibverbx.ErrNoKey, "device 1"},
		{"local bounds", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Local = e.MR.Slice(1<<20-63,
				64)
		},
			ibverbx.ErrBounds, "reaches beyond"},
		{"local before", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local.Addr = e.MR.Addr() - 1 },
			ibverbx.ErrBounds, "reaches beyond"},
		{"local offset wraps", single,
			func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = e.MR.Slice(math.MaxUint64-10, 64) },
			ibverbx.ErrBounds, "reaches beyond"},
		{"remote bounds", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Remote = e.Peer.Slice(1<<20-63,
				64)
		},
			ibverbx.ErrBounds, "reaches beyond"},
		{"remote too short", single, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Remote = e.Peer.Slice(0,
				63)
		},
			ibverbx.ErrBounds, "64 bytes for a remote segment of 63"},
		{"atomic length", multi, func(e *vqptest.End,
			wr *ibverbx.SendWR) {
			wr.Opcode = verbs.OpAtomicFetchAdd
		},
			ibverbx.ErrLength, "eight"},
		{"atomic alignment", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Opcode, wr.Local, wr.Remote = verbs.OpAtomicCmpAndSwp, e.MR.Slice(0, 8), e.Peer.Slice(4, 8)
		}, ibverbx.ErrAlignment, "multiple of 8"},
		{"inline too long", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Flags |= verbs.SendInline
			wr.Local, wr.Inline = ibverbx.Segment{}, make([]byte, 1<<16)
		}, ibverbx.ErrLength, "inline"},
		{"inline and local", multi, func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Flags |= verbs.SendInline },
			verbs.ErrInvalid, "leave Local"},
		{"inline read", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.Opcode, wr.Flags, wr.Local, wr.Inline = verbs.OpRDMARead, wr.Flags|verbs.SendInline,
				ibverbx.Segment{}, []byte("x")
		}, verbs.ErrInvalid, "cannot be inline"},
		{"local and list", multi, func(e *vqptest.End,
			wr *ibverbx.SendWR) {
			wr.SGL = []ibverbx.Segment{wr.Local}
		},
			verbs.ErrInvalid, "use one"},
		{"bad piece", multi, func(e *vqptest.End, wr *ibverbx.SendWR) {
			wr.SGL, wr.Local = []ibverbx.Segment{e.MR.Slice(0, 8), e.MR.Slice(1<<20, 8)}, ibverbx.Segment{}
		}, ibverbx.ErrBounds, "reaches beyond"},
		{"closed region", multi,
			func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = segmentOfClosed; wr.Local.Length = 64 },
			ibverbx.ErrClosed, "region"},
		{"closed region, single", single,
			func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = closedOfSingle },
			ibverbx.ErrClosed, "region"},
		{"closed region, single, inbound", single,
			func(e *vqptest.End, wr *ibverbx.SendWR) {
				wr.Opcode, wr.Local = verbs.OpRDMARead,
					closedOfSingle
			},
			ibverbx.ErrClosed, "region"},
		{"no bytes of a closed region", multi,
			func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = segmentOfClosed; wr.Local.Length = 0 },
			ibverbx.ErrClosed, "region"},
		{"no bytes of a closed region, single", single,
			func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Local = closedOfSingle; wr.Local.Length = 0 },
			ibverbx.ErrClosed, "region"},
		{"piece of a closed region, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) {
			closed := closedOfSingle
			closed.Length = 8
			wr.SGL, wr.Local = []ibverbx.Segment{e.MR.Slice(0, 8), closed}, ibverbx.Segment{}
		}, ibverbx.ErrClosed, "region"},
		{"more than a message, single", single, func(e *vqptest.End, wr *ibverbx.SendWR) {
			keys := ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1})
			wr.Local = ibverbx.Segment{Addr: 1, Length: 1 << 32, Keys: keys}
		}, ibverbx.ErrLength, "several queue pairs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.l.A.Stats()
			bad := good(c.l.A)
			c.edit(c.l.A, &bad)
			batch := []ibverbx.SendWR{good(c.l.A), good(c.l.A), bad, good(c.l.A)}
			batch[0].ID, batch[1].ID = 1, 2
			n, err := c.l.A.PostSend(batch...)
			if n != 2 {
				t.Fatalf("accepted %d, want the 2 before the bad one; %v", n, err)
			}
			var pe *ibverbx.PostError
			if !errors.Is(err, c.want) || !errors.As(err, &pe) || pe.Index != 2 || pe.ID != 5 ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("error %q: want %v at index 2 that says %q", err, c.want, c.says)
			}
			if got := vqptest.IDs(t, c.l.A.Wait(t, 2), verbs.StatusSuccess); !slices.Equal(got,
				[]uint64{1, 2}) {
				t.Errorf("completed %v", got)
			}
			after := c.l.A.Stats()
			if more := c.l.A.Poll(t); len(more) != 0 || after.SendWindow != 0 ||
				after.Sends != before.Sends+2 {
				t.Errorf("a trace is left: %s %+v", vqptest.FormatWCs(more), after)
			}
		})
	}
}

// closedRegion names 64 bytes of a region that was closed.
func closedRegion(t *testing.T, e *vqptest.End) ibverbx.Segment {
	t.Helper()
	mr, err := e.Domain().Register(make([]byte, 4096), verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	s := mr.Slice(0, 64)
	if err := mr.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// A receive into a region that was closed is refused over one queue pair as over several. The one
// before it is accepted.
func TestReceivesIntoClosedRegionsAreRefused(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		bad := closedRegion(t, l.B)
		for id, wr := range []ibverbx.RecvWR{
			{ID: 9, Local: bad},
			{ID: 9, SGL: []ibverbx.Segment{l.B.MR.Slice(0, 8), bad}},
		} {
			n, err := l.B.PostRecv(ibverbx.RecvWR{ID: uint64(id), Local: l.B.MR.Slice(0, 64)}, wr,
				ibverbx.RecvWR{ID: 9, Local: l.B.MR.Slice(0, 64)})
			var refused *ibverbx.PostError
			if n != 1 || !errors.Is(err, ibverbx.ErrClosed) || !errors.As(err, &refused) ||
				refused.Index != 1 {
				t.Errorf("%d accepted, %v", n, err)
			}
			l.A.Send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 64)})
			if got := vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess); got[0] != uint64(id) {
				t.Errorf("receive %v", got)
			}
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		}
	})
}

// Whichever piece of a list lies in a region that was closed, the request is refused and leaves no
// trace, and the one before it is accepted.
func TestListsWithAClosedRegionAreRefused(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: ibverbx.Config{Scheme: m.Scheme,
			QPsPerDevice: m.QPs,
			MaxSGE:       3}})
		bad := closedRegion(t, l.A)
		for place := range 3 {
			pieces := []ibverbx.Segment{l.A.MR.Slice(0, 8), l.A.MR.Slice(8, 8), l.A.MR.Slice(16, 8)}
			pieces[place] = bad
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
				wr := l.A.Write(op, 2, 0, 80)
				wr.Local, wr.SGL = ibverbx.Segment{}, pieces
				n, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 0, 8), wr)
				var refused *ibverbx.PostError
				if n != 1 || !errors.Is(err, ibverbx.ErrClosed) || !errors.As(err, &refused) ||
					refused.Index != 1 {
					t.Errorf("%s, %v, piece %d: %d accepted, %v", m.Name, op, place, n, err)
				}
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			}
			n, err := l.A.PostRecv(ibverbx.RecvWR{ID: 3, SGL: pieces})
			if n != 0 || !errors.Is(err, ibverbx.ErrClosed) {
				t.Errorf("%s, receive, piece %d: %d accepted, %v", m.Name, place, n, err)
			}
		}
		if s := l.A.Stats(); s.SendWindow != 0 || s.RecvWindow != 0 {
			t.Errorf("%s: a trace is left: %+v", m.Name, s)
		}
		if err := l.A.MR.Close(); err != nil {
			t.Errorf("%s: a refused request holds its region: %v", m.Name, err)
		}
	}
}

func TestPostsOutsideOfRTSAreRefused(t *testing.T) {
	for _, qps := range []int{1, 2} {
		fabric, q := vqptest.OpenSoft(t, ibverbx.Config{QPsPerDevice: qps})
		_, err := q.PostSend(ibverbx.SendWR{Flags: verbs.SendSignaled})
		if !errors.Is(err, ibverbx.ErrNotConnected) || !strings.Contains(err.Error(), "Connect") {
			t.Errorf("send in RESET: %v", err)
		}
		if _, err := q.PostRecv(ibverbx.RecvWR{}); !errors.Is(err, ibverbx.ErrNotConnected) {
			t.Errorf("receive in RESET: %v", err)
		}
		if err := q.Close(); err != nil {
			t.Error(err)
		}
		_, err = q.PostSend(ibverbx.SendWR{Flags: verbs.SendSignaled})
		if !errors.Is(err, ibverbx.ErrClosed) || !errors.Is(err, os.ErrClosed) {
			t.Errorf("send on a closed one: %v", err)
		}
		if _, err := q.PostRecv(ibverbx.RecvWR{}); !errors.Is(err, ibverbx.ErrClosed) {
			t.Errorf("receive on a closed one: %v", err)
		}
		if err := q.Close(); !errors.Is(err, ibverbx.ErrClosed) {
			t.Errorf("second close: %v", err)
		}
		if n, err := q.CQ().Poll(make([]ibverbx.WC, 1)); n != 0 || !errors.Is(err, ibverbx.ErrClosed) {
			t.Errorf("poll of a closed CQ: %d, %v", n, err)
		}
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestSendWithoutNotifyQPInDQPLBIsRefused(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, NoNotifyQP: true}})
	if _, err := l.A.PostSend(ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		Local: l.A.MR.Slice(0, 8)}); !errors.Is(err, ibverbx.ErrOpcode) ||
		!strings.Contains(err.Error(), "notify QP") {
		t.Errorf("send: %v", err)
	}
	_, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 8)})
	if !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
		t.Errorf("receive: %v", err)
	}
	l.B.ExpectRecv(t, 1)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 2, 0, 64))
	vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
}

func TestConfigurationsThatCannotWorkAreRefused(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	devs := []verbs.Device{fabric.Device(0)}
	for _, c := range []struct {
		name string
		devs []verbs.Device
		cfg  ibverbx.Config
		says string
	}{
		{"no devices", nil, ibverbx.Config{}, "no devices"},
		{"device twice", []verbs.Device{fabric.Device(1), fabric.Device(1)}, ibverbx.Config{}, "once"},
		{"scheme", devs, ibverbx.Config{Scheme: 9}, "Scheme 9"},
		{"negative depth", devs, ibverbx.Config{MaxMsgCntPerQP: -2}, "MaxMsgCntPerQP"},
		{"too many QPs", devs, ibverbx.Config{QPsPerDevice: 1000}, "QPsPerDevice"},
		{"timeout", devs, ibverbx.Config{Conn: ibverbx.ConnConfig{Timeout: 32}}, "Timeout"},
		{"access", devs, ibverbx.Config{Conn: ibverbx.ConnConfig{Access: verbs.AccessRemoteWrite}}, "Access"},
		{"an access right of memory", devs, ibverbx.Config{Conn: ibverbx.ConnConfig{
			Access: verbs.AccessAll | verbs.AccessRelaxedOrdering}}, "RELAXED_ORDERING"},
	} {
		if _, err := ibverbx.Open(c.devs, c.cfg); !errors.Is(err, verbs.ErrInvalid) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// A virtual CQ that is too shallow for all that may complete on it.
	dom, err := ibverbx.NewDomain(devs...)
	if err != nil {
		t.Fatal(err)
	}
	cq, err := dom.NewCQ(100)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dom.NewQP(cq, ibverbx.Config{}); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "deeper") {
		t.Errorf("shallow CQ: %v", err)
	}
	if err := errors.Join(cq.Close(), dom.Close(), fabric.Close()); err != nil {
		t.Errorf("leak: %v", err)
	}
}

// A virtual queue pair that needs more completions than a CQ of the NIC holds is refused with
// advice; a depth that the program chose itself is refused without.
func TestCQTooDeep(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 1, Device: soft.DeviceConfig{MaxCQE: 64}})
	if err != nil {
		t.Fatal(err)
	}
	dom, err := ibverbx.NewDomain(fabric.Device(0))
	if err != nil {
		t.Fatal(err)
	}
	const advice = "fewer queue pairs"
	if _, err := dom.NewQP(nil, ibverbx.Config{}); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), advice) {
		t.Errorf("a virtual queue pair: %v", err)
	}
	if _, err := dom.NewCQ(65); !errors.Is(err, verbs.ErrInvalid) || strings.Contains(err.Error(), advice) {
		t.Errorf("a virtual CQ: %v", err)
	}
	if err := errors.Join(dom.Close(), fabric.Close()); err != nil {
		t.Errorf("something is left: %v", err)
	}
}

func TestUnusablePhysicalObjectsAreRefused(t *testing.T) {
	fabric, err := soft.New(soft.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev := fabric.Device(0)
	pd := vqptest.NewPD(t, dev)
	cq := vqptest.NewCQ(t, dev, 4096)
	if _, err := ibverbx.NewVirtualCQ(cq, cq); !errors.Is(err, verbs.ErrInvalid) ||
		!strings.Contains(err.Error(), "one a device") {
		t.Errorf("two CQs of one device: %v", err)
	}
	vcq, err := ibverbx.NewVirtualCQ(cq)
	if err != nil {
		t.Fatal(err)
	}
	qp := vqptest.NewQP(t, pd, cq)
	_, err = ibverbx.NewVirtualQP(vcq, []verbs.QP{qp, qp}, nil, ibverbx.Config{})
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("one queue pair twice: %v", err)
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	mask := verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	if err := qp.Modify(&init, mask); err != nil {
		t.Fatal(err)
	}
	_, err = ibverbx.NewVirtualQP(vcq, []verbs.QP{qp}, nil, ibverbx.Config{})
	if !errors.Is(err, verbs.ErrState) {
		t.Errorf("a queue pair in INIT: %v", err)
	}
	if err := errors.Join(qp.Close(), vcq.Close(), pd.Close(), fabric.Close()); err != nil {
		t.Errorf("leak: %v", err)
	}
}

// Nil arguments are refused at once, without effect.
func TestNilArguments(t *testing.T) {
	var none context.Context
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		cq := l.A.CQ().CQs()[0]
		for name, call := range map[string]func() error{
			"wait":           func() error { return l.A.CQ().Wait(none) },
			"drain":          func() error { return l.A.Drain(none) },
			"shutdown":       func() error { return l.A.Shutdown(none) },
			"channel":        func() error { return verbs.NewCompChannel().Wait(none) },
			"no physical cq": func() error { _, err := ibverbx.NewVirtualCQ(nil); return err },
			"one of two":     func() error { _, err := ibverbx.NewVirtualCQ(cq, nil); return err },
		} {
			if err := call(); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 8)) // it serves as before
		l.A.Wait(t, 1)
	})
}
