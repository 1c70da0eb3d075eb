package api_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// A receive that breaks a rule is refused, with an error of its own, over one queue pair as over
// several; the one before it is accepted.
func TestRefusedReceivesHaveNoEffect(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			b, a := newRuled(t, &m)
			piece := func(i uint64) ibverbx.Segment { return b.MR.Slice(8*i, 8) }
			huge := ibverbx.Segment{Addr: b.MR.Addr(), Length: 1<<31 + 1, Keys: b.MR.Keys()}
			list := func(sgl ...ibverbx.Segment) ibverbx.RecvWR { return ibverbx.RecvWR{SGL: sgl} }
			good := list(piece(20), ibverbx.Segment{}, piece(30)) // as many as can be
			good.ID = 7
			for _, c := range []struct {
				name string
				wr   ibverbx.RecvWR
				want error
			}{
				{"both", ibverbx.RecvWR{Local: piece(0), SGL: []ibverbx.Segment{piece(1)}}, verbs.ErrInvalid},
				{"too many pieces", list(piece(0), piece(1), piece(2), piece(3)), verbs.ErrInvalid},
				{"a long piece", ibverbx.RecvWR{Local: huge}, ibverbx.ErrLength},
				{"a long piece in a list", list(piece(0), huge), ibverbx.ErrLength},
				{"beyond the region", list(piece(0), b.MR.Slice(1<<20-7, 8)), ibverbx.ErrBounds},
				{"no keys", ibverbx.RecvWR{Local: ibverbx.Segment{Addr: 1, Length: 8}}, ibverbx.ErrNoKey},
				{"a closed region", ibverbx.RecvWR{Local: b.closed}, ibverbx.ErrClosed},
				{"a closed region first", list(piecesAround(b, 0)...), ibverbx.ErrClosed},
				{"a closed region in the middle", list(piecesAround(b, 1)...), ibverbx.ErrClosed},
				{"a closed region last", list(piecesAround(b, 2)...), ibverbx.ErrClosed},
			} {
				var refused *ibverbx.PostError
				n, err := b.PostRecv(good, c.wr, good)
				if n != 1 || !errors.Is(err, c.want) || !errors.As(err, &refused) || refused.Index != 1 ||
					refused.Op != "post recv" {
					t.Errorf("%s: accepted %d, %v; want %v", c.name, n, err, c.want)
				}
				vqptest.FillRandom(a.Buf[:16], uint64(len(c.name)))
				a.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: a.MR.Slice(0, 16)})
				vqptest.IDs(t, a.Wait(t, 1), verbs.StatusSuccess)
				if wc := b.Wait(t, 1)[0]; wc.ID != 7 || wc.ByteLen != 16 || wc.Status != verbs.StatusSuccess {
					t.Errorf("%s: the one before it: %+v", c.name, wc)
				}
				vqptest.MustEqual(t, "the pieces", append(b.Buf[160:168:168], b.Buf[240:248]...), a.Buf[:16])
			}
			if s := b.Stats(); s.RecvWindow != 0 {
				t.Errorf("a trace is left: %+v", s)
			}
			if err := errors.Join(b.Close(), b.MR.Close()); err != nil {
				t.Errorf("something of a refused receive is left: %v", err)
			}
		})
	}
}

// What is wrong with a request is said whether the NIC would take one or not.
func TestBadRequestIsRefusedBeforeTheNICIsAsked(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{})
	l.A.NICs[0].Kill()
	bad := l.A.Write(verbs.Opcode(77), 1, 0, 8)
	for _, batch := range [][]ibverbx.SendWR{{bad}, {bad, l.A.Write(verbs.OpRDMAWrite, 2, 0, 8)}} {
		if _, err := l.A.PostSend(batch...); !errors.Is(err, ibverbx.ErrOpcode) {
			t.Errorf("send: %v", err)
		}
	}
	if _, err := l.A.PostRecv(ibverbx.RecvWR{Local: ibverbx.Segment{Addr: 1, Length: 8}}); !errors.Is(err,
		ibverbx.ErrNoKey) {
		t.Errorf("receive: %v", err)
	}
	if n, err := l.A.PostSend(); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	if n, err := l.A.PostRecv(); n != 0 || err != nil {
		t.Errorf("nothing to receive into: %d, %v", n, err)
	}
}

// A message of 2 GiB is the longest that a request or a receive may name.
func TestLongestMessage(t *testing.T) {
	t.Parallel() // most of the time it waits
	for _, m := range vqptest.Modes {
		l := m.Link(t, vqptest.LinkConfig{Fabric: soft.Config{Stepped: true}})
		keys := map[verbs.DeviceID]uint32{}
		for dev := range verbs.DeviceID(8) {
			keys[dev] = 1
		}
		memory := ibverbx.Segment{Addr: 1 << 20, Length: 1 << 31, Keys: ibverbx.NewKeys(keys)}
		beyond := memory
		beyond.Length++
		send := ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Local: memory}
		if _, err := l.A.PostRecv(ibverbx.RecvWR{Local: memory}); err != nil {
			t.Errorf("%s: a receive of 2 GiB: %v", m.Name, err)
		}
		if _, err := l.A.PostSend(send); err != nil {
			t.Errorf("%s: a SEND of 2 GiB: %v", m.Name, err)
		}
		send.Local = beyond
		if _, err := l.A.PostSend(send); !errors.Is(err, ibverbx.ErrLength) {
			t.Errorf("%s: a byte more: %v", m.Name, err)
		}
		if _, err := l.A.PostRecv(ibverbx.RecvWR{Local: beyond}); !errors.Is(err, ibverbx.ErrLength) {
			t.Errorf("%s: a byte more: %v", m.Name, err)
		}
	}
}

// What travels as one message is refused where it is longer than the NIC's port carries, and
// nothing is lost: a SEND always, and on a single queue pair everything.
func TestMessagesBeyondThePortAreRefused(t *testing.T) {
	const longest = 4096
	fabric := soft.Config{Device: soft.DeviceConfig{MaxMsgSize: longest}}
	for _, m := range vqptest.Modes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend} {
			t.Run(fmt.Sprintf("%s/%v", m.Name, op), func(t *testing.T) {
				l := m.Link(t, vqptest.LinkConfig{Fabric: fabric})
				if op.IsSend() {
					if _, err := l.B.PostRecv(ibverbx.RecvWR{Local: l.B.MR.Slice(0, 2*longest)}); err != nil {
						t.Fatal(err)
					}
				}
				n, err := l.A.PostSend(l.A.Write(op, 1, 0, longest+1))
				if !op.IsSend() && m.Name != "single" {
					if err != nil {
						t.Fatal(err) // it is fragmented
					}
					vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
					return
				}
				if n != 0 || !errors.Is(err, ibverbx.ErrLength) || !strings.Contains(err.Error(), "4096") {
					t.Fatalf("%d, %v", n, err)
				}
				l.A.Send(t, l.A.Write(op, 2, 0, longest))
				vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			})
		}
	}
}

func TestPostsOutsideOfRTSAreRefused(t *testing.T) {
	for _, qps := range []int{1, 2} {
		q := vqptest.OpenSoft(t, ibverbx.Config{QPsPerDevice: qps})
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

// A virtual queue pair that needs more completions than a CQ of the NIC holds is refused with
// advice; a depth that the program chose itself is refused without.
func TestCQTooDeep(t *testing.T) {
	fabric := vqptest.NewFabric(t, soft.Config{Devices: 1, Device: soft.DeviceConfig{MaxCQE: 64}})
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
	if err := errors.Join(dom.Close()); err != nil {
		t.Errorf("something is left: %v", err)
	}
}

// Without a notify QP nothing carries the SENDs of DQPLB, nor the notifications of Spray: they and
// the receives for them are refused with a sentence.
func TestWhatANotifyQPCarriesIsRefusedWithoutOne(t *testing.T) {
	for _, c := range []struct {
		scheme ibverbx.Scheme
		op     verbs.Opcode
		recv   func(e *vqptest.End) ibverbx.RecvWR
	}{
		{ibverbx.DQPLB, verbs.OpSend,
			func(e *vqptest.End) ibverbx.RecvWR { return ibverbx.RecvWR{Local: e.MR.Slice(0, 8)} }},
		{ibverbx.Spray, verbs.OpRDMAWriteWithImm,
			func(*vqptest.End) ibverbx.RecvWR { return ibverbx.RecvWR{} }},
		{ibverbx.Spray, verbs.OpRDMAWriteWithImm, func(e *vqptest.End) ibverbx.RecvWR {
			return ibverbx.RecvWR{SGL: []ibverbx.Segment{e.MR.Slice(0, 0)}}
		}},
	} {
		l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{Scheme: c.scheme, QPsPerDevice: 2,
			NoNotifyQP: true, FragmentSize: 1000}})
		refused := func(what string, n int, err error) {
			if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
				t.Errorf("%v, %s: %d accepted, %v", c.scheme, what, n, err)
			}
		}
		for _, length := range []uint64{0, 1, 5000} {
			n, err := l.A.PostSend(l.A.Write(c.op, 1, 0, length))
			refused("send", n, err)
		}
		n, err := l.B.PostRecv(c.recv(l.B))
		refused("receive", n, err)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 2, 0, 5000))
		vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		if err := errors.Join(l.A.Drain(patience(t)), l.B.Drain(patience(t))); err != nil {
			t.Errorf("%v: %v", c.scheme, err)
		}
	}
}
