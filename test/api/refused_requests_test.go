package api_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

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

// Requests that no message or queue pair can carry are refused in both shapes, by the same errors.
// Those before them in the call are accepted, and nothing of the refused one stays.
func TestRefusedPiecesHaveNoEffect(t *testing.T) {
	for _, m := range vqptest.Modes {
		t.Run(m.Name, func(t *testing.T) {
			l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs,
				QP: ibverbx.Config{Scheme: m.Scheme, QPsPerDevice: m.QPs,
					MaxSGE: 2, MaxRecvSGE: 3}})
			a := l.A
			keys := a.MR.Keys()
			huge := ibverbx.Segment{Addr: a.MR.Addr(), Length: 1<<31 + 1, Keys: keys}
			piece := func(i uint64) ibverbx.Segment { return a.MR.Slice(8*i, 8) }
			gone, err := a.Domain().Register(make([]byte, 64), verbs.AccessAll)
			if err != nil {
				t.Fatal(err)
			}
			closed := gone.All()
			if err := gone.Close(); err != nil {
				t.Fatal(err)
			}
			for _, c := range []struct {
				name string
				wr   ibverbx.SendWR
				want error
			}{
				{"inline without the flag", ibverbx.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")},
					verbs.ErrInvalid},
				{"unknown flag", ibverbx.SendWR{Opcode: verbs.OpSend, Flags: 1 << 9, Local: piece(0)},
					verbs.ErrInvalid},
				{"long SEND", ibverbx.SendWR{Opcode: verbs.OpSend, Local: ibverbx.Segment{Addr: 1,
					Length: 1<<31 + 1, Keys: ibverbx.NewKeys(map[verbs.DeviceID]uint32{0: 1, 1: 1, 2: 1})}},
					ibverbx.ErrLength},
				{"SEND in too many pieces", ibverbx.SendWR{Opcode: verbs.OpSend,
					SGL: []ibverbx.Segment{piece(0), piece(1), piece(2)}}, verbs.ErrInvalid},
				{"SEND from a closed region", ibverbx.SendWR{Opcode: verbs.OpSend,
					SGL: []ibverbx.Segment{piece(0), closed}}, ibverbx.ErrClosed},
			} {
				c.wr.Flags |= verbs.SendSignaled
				var refused *ibverbx.PostError
				n, err := a.PostSend(a.Write(verbs.OpRDMAWrite, 1, 0, 8), c.wr)
				if n != 1 || !errors.Is(err, c.want) || !errors.As(err, &refused) || refused.Index != 1 {
					t.Errorf("%s: accepted %d, %v; want %v", c.name, n, err, c.want)
				}
				vqptest.IDs(t, a.Wait(t, 1), verbs.StatusSuccess)
			}
			for _, c := range []struct {
				name string
				wr   ibverbx.RecvWR
				want error
			}{
				{"both", ibverbx.RecvWR{Local: piece(0), SGL: []ibverbx.Segment{piece(1)}}, verbs.ErrInvalid},
				{"too many pieces",
					ibverbx.RecvWR{SGL: []ibverbx.Segment{piece(0), piece(1), piece(2), piece(3)}},
					verbs.ErrInvalid},
				{"long", ibverbx.RecvWR{SGL: []ibverbx.Segment{piece(0), huge}}, ibverbx.ErrLength},
				{"beyond the region",
					ibverbx.RecvWR{SGL: []ibverbx.Segment{piece(0), a.MR.Slice(1<<20-7, 8)}},
					ibverbx.ErrBounds},
				{"no keys", ibverbx.RecvWR{Local: ibverbx.Segment{Addr: 1, Length: 8}}, ibverbx.ErrNoKey},
				{"closed region", ibverbx.RecvWR{SGL: []ibverbx.Segment{piece(0), closed}},
					ibverbx.ErrClosed},
			} {
				var refused *ibverbx.PostError
				n, err := a.PostRecv(ibverbx.RecvWR{ID: 1, Local: piece(9)}, c.wr)
				if n != 1 || !errors.Is(err, c.want) || !errors.As(err, &refused) || refused.Index != 1 ||
					refused.Op != "post recv" {
					t.Errorf("receive, %s: accepted %d, %v; want %v", c.name, n, err, c.want)
				}
			}
			// A receive of as many pieces as it may have, empty ones among them, takes a SEND.
			for range 6 {
				l.B.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend, Local: l.B.MR.Slice(0, 8)})
			}
			vqptest.IDs(t, a.Wait(t, 6), verbs.StatusSuccess)
			vqptest.IDs(t, l.B.Wait(t, 6), verbs.StatusSuccess)
			if n, err := a.PostRecv(
				ibverbx.RecvWR{ID: 2, SGL: []ibverbx.Segment{piece(20), {}, piece(30)}}); n != 1 ||
				err != nil {
				t.Fatal(n, err)
			}
			copy(l.B.Buf, "eight by"+"te piece")
			l.B.Send(t, ibverbx.SendWR{Opcode: verbs.OpSend,
				SGL: []ibverbx.Segment{l.B.MR.Slice(0, 8), l.B.MR.Slice(8, 8)}})
			if wc := a.Wait(t, 1)[0]; wc.ID != 2 || wc.ByteLen != 16 || wc.Status != verbs.StatusSuccess {
				t.Errorf("%+v", wc)
			}
			vqptest.MustEqual(t, "the pieces", append(a.Buf[160:168:168], a.Buf[240:248]...),
				[]byte("eight byte piece"))
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := a.MR.Close(); err != nil {
				t.Errorf("something of a refused request is left: %v", err)
			}
		})
	}
}

// A message of 2 GiB is the longest that a request or a receive may name.
func TestLongestMessage(t *testing.T) {
	for _, m := range vqptest.Modes {
		l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: m.NICs, QP: ibverbx.Config{Scheme: m.Scheme,
			QPsPerDevice: m.QPs},
			Fabric: soft.Config{Stepped: true}})
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

// A virtual queue pair cannot be made of an impossible set of queue pairs.
func TestImpossibleVirtualQueuePairs(t *testing.T) {
	fabric, err := soft.New(soft.Config{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	var qps []verbs.QP
	var pds []verbs.PD
	var cqs []verbs.CQ
	for i := range 2 {
		pd := vqptest.NewPD(t, fabric.Device(i))
		cq := vqptest.NewCQ(t, fabric.Device(i), 4096)
		for range 2 {
			qp := vqptest.NewQP(t, pd, cq)
			qps = append(qps, qp)
		}
		pds, cqs = append(pds, pd), append(cqs, cq)
	}
	vcq, err := ibverbx.NewVirtualCQ(cqs[0])
	if err != nil {
		t.Fatal(err)
	}
	used, err := ibverbx.NewVirtualQP(vcq, qps[:1], nil, ibverbx.Config{})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]verbs.QP, ibverbx.MaxRails+1)
	for i := range many {
		many[i] = qps[1]
	}
	for _, c := range []struct {
		name   string
		cq     *ibverbx.VirtualCQ
		qps    []verbs.QP
		notify verbs.QP
		cfg    ibverbx.Config
		want   error
		says   string
	}{
		{"no CQ", nil, qps[1:2], nil, ibverbx.Config{}, ibverbx.ErrClosed, "virtual cq"},
		{"none", vcq, nil, nil, ibverbx.Config{}, verbs.ErrInvalid, "0 queue pairs: must be 1 to 128"},
		{"too many", vcq, many, nil, ibverbx.Config{}, verbs.ErrInvalid, "129 queue pairs"},
		{"a notify QP beside one", vcq, qps[1:2], qps[0], ibverbx.Config{}, verbs.ErrInvalid, "notify QP"},
		{"another's", vcq, qps[:2], nil, ibverbx.Config{}, verbs.ErrInvalid, "belongs to a virtual QP"},
		{"another's as the notify QP", vcq, []verbs.QP{qps[1], qps[1]}, qps[0], ibverbx.Config{},
			verbs.ErrInvalid, "twice"},
		{"of another NIC", vcq, qps[1:3], nil, ibverbx.Config{}, verbs.ErrInvalid, "no CQ"},
		{"configuration", vcq, qps[1:2], nil, ibverbx.Config{Scheme: 9}, verbs.ErrInvalid, "Scheme 9"},
	} {
		if _, err := ibverbx.NewVirtualQP(c.cq, c.qps, c.notify, c.cfg); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v; want %v that says %q", c.name, err, c.want, c.says)
		}
	}
	// No refused attempt has taken room or a queue pair.
	if q, err := ibverbx.NewVirtualQP(vcq, qps[1:2], nil, ibverbx.Config{}); err != nil ||
		q.Num() == used.Num() {
		t.Errorf("%v", err)
	}
	if err := vcq.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ibverbx.NewVirtualQP(vcq, qps[2:3], nil, ibverbx.Config{}); !errors.Is(
		err, ibverbx.ErrClosed) {
		t.Errorf("a closed CQ: %v", err)
	}
	if err := errors.Join(qps[2].Close(), qps[3].Close(), cqs[1].Close(), pds[0].Close(), pds[1].Close(),
		fabric.Close()); err != nil {
		t.Error(err)
	}
}

// ofNothing are the ways to ask for a transfer of no bytes.
var ofNothing = []struct {
	name string
	edit func(e *vqptest.End, wr *ibverbx.SendWR)
}{
	{"a piece of no bytes", func(*vqptest.End, *ibverbx.SendWR) {}},
	{"no memory at either end", func(_ *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.Remote = ibverbx.Segment{}, ibverbx.RemoteSegment{}
	}},
	{"a list of empty pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(8, 0), {}}
	}},
	{"addresses out of bounds", func(e *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local, wr.Remote = e.MR.Slice(1<<40, 0), e.Peer.Slice(1<<40, 0)
	}},
	{"inline", func(_ *vqptest.End, wr *ibverbx.SendWR) {
		wr.Local = ibverbx.Segment{}
		if wr.Opcode != verbs.OpRDMARead {
			wr.Flags |= verbs.SendInline
		}
	}},
}

// A request of no bytes that fails is described as what it was.
func TestFailedRequestOfNoBytesIsNamed(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
			for _, c := range ofNothing {
				t.Run(scheme.String()+"/"+op.String()+"/"+c.name, func(t *testing.T) {
					l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2,
						Scheme: scheme}})
					wr := l.A.Write(op, 2, 16, 0)
					c.edit(l.A, &wr)
					l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0],
						Status: verbs.StatusRemOpErr})
					l.A.Send(t, wr)
					if wc := l.A.Wait(t, 1)[0]; wc.ID != 2 || wc.Status != verbs.StatusRemOpErr {
						t.Fatalf("%+v", wc)
					}
					var fe *ibverbx.FailedError
					if !errors.As(l.A.Err(), &fe) || !fe.HasID || fe.ID != 2 || fe.Length != 0 {
						t.Fatalf("%+v", fe)
					}
					want := ibverbx.PartFragment
					if op == verbs.OpRDMAWriteWithImm && scheme == ibverbx.Spray {
						want = ibverbx.PartNotification
					} else if fe.Fragment != 0 || fe.Fragments != 1 || fe.RemoteAddr != wr.Remote.Addr {
						t.Errorf("fragment %d of %d at %#x", fe.Fragment, fe.Fragments, fe.RemoteAddr)
					}
					if fe.Part != want {
						t.Errorf("part %v, want %v", fe.Part, want)
					}
				})
			}
		}
	}
}

// An atomic without memory is refused over one queue pair as over several, and so is one that is
// not aligned: the NIC would end the connection.
func TestAtomicsOfNoBytesAreRefused(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for _, op := range []verbs.Opcode{verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
			for _, c := range []struct {
				name string
				edit func(e *vqptest.End, wr *ibverbx.SendWR)
				want error
			}{
				{"no local memory", func(_ *vqptest.End, wr *ibverbx.SendWR) { wr.Local = ibverbx.Segment{} },
					ibverbx.ErrLength},
				{"no local memory, not aligned", func(e *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.Remote = ibverbx.Segment{}, e.Peer.Slice(4, 8)
				}, ibverbx.ErrLength},
				{"empty pieces", func(e *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.SGL = ibverbx.Segment{}, []ibverbx.Segment{e.MR.Slice(0, 0), {}}
				}, ibverbx.ErrLength},
				{"no memory at all", func(_ *vqptest.End, wr *ibverbx.SendWR) {
					wr.Local, wr.Remote = ibverbx.Segment{}, ibverbx.RemoteSegment{}
				}, ibverbx.ErrLength},
				{"not aligned", func(e *vqptest.End, wr *ibverbx.SendWR) { wr.Remote = e.Peer.Slice(4, 8) },
					ibverbx.ErrAlignment},
			} {
				wr := l.A.Write(op, 1, 0, 8)
				c.edit(l.A, &wr)
				n, err := l.A.PostSend(wr)
				if n != 0 || !errors.Is(err, c.want) {
					t.Errorf("%v, %s: %d accepted, %v; want %v", op, c.name, n, err, c.want)
				}
			}
		}
		l.A.Send(t, l.A.Write(verbs.OpAtomicFetchAdd, 2, 0, 8))
		if got := vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess); got[0] != 2 {
			t.Errorf("completed %v", got)
		}
	})
}

// Spray without a notify QP carries everything but notifications, and refuses those, and the
// receives that would wait for one, with a sentence and without effect.
func TestSprayWithoutNotifyQP(t *testing.T) {
	l := vqptest.NewLink(t, vqptest.LinkConfig{NICs: 2, QP: ibverbx.Config{Scheme: ibverbx.Spray,
		QPsPerDevice: 2,
		NoNotifyQP:   true, FragmentSize: 1000}})
	if cfg := l.A.Config(); !cfg.NoNotifyQP || len(l.A.Stats().Rails) != 4 {
		t.Fatalf("%+v", cfg)
	}
	vqptest.FillRandom(l.A.Buf[:5000], 1)
	vqptest.FillRandom(l.B.Buf[6000:9000], 2)
	if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 50, Local: l.B.MR.Slice(20000, 100)},
		ibverbx.RecvWR{ID: 51, Local: l.B.MR.Slice(20100, 100)}); err != nil {
		t.Fatal(err)
	}
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 5000))
	l.A.Send(t, l.A.Write(verbs.OpRDMARead, 2, 6000, 3000))
	l.A.Send(t, l.A.Write(verbs.OpAtomicFetchAdd, 3, 10000, 8))
	l.A.Send(t, ibverbx.SendWR{ID: 4, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 100)})
	l.A.Send(t, ibverbx.SendWR{ID: 5, Opcode: verbs.OpSendWithImm, Local: l.A.MR.Slice(100, 100), Imm: 77})
	for _, n := range []uint64{0, 1, 5000} {
		wr := l.A.Write(verbs.OpRDMAWriteWithImm, 6, 0, n)
		n, err := l.A.PostSend(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a notification: %d accepted, %v", n, err)
		}
	}
	for _, wr := range []ibverbx.RecvWR{{ID: 52}, {ID: 52, SGL: []ibverbx.Segment{l.B.MR.Slice(0, 0)}}} {
		n, err := l.B.PostRecv(wr)
		if n != 0 || !errors.Is(err, ibverbx.ErrOpcode) || !strings.Contains(err.Error(), "notify QP") {
			t.Errorf("a receive without memory: %d accepted, %v", n, err)
		}
	}
	if got := vqptest.IDs(t, l.A.Wait(t, 5), verbs.StatusSuccess); !slices.Equal(got,
		[]uint64{1, 2, 3, 4, 5}) {
		t.Errorf("completed %v", got)
	}
	if got := vqptest.IDs(t, l.B.Wait(t, 2), verbs.StatusSuccess); !slices.Equal(got, []uint64{50, 51}) {
		t.Errorf("received %v", got)
	}
	vqptest.MustEqual(t, "write", l.B.Buf[:5000], l.A.Buf[:5000])
	vqptest.MustEqual(t, "read", l.A.Buf[6000:9000], l.B.Buf[6000:9000])
	vqptest.MustEqual(t, "sends", l.B.Buf[20000:20200], l.A.Buf[:200])
	if err := errors.Join(l.A.Drain(patience(t)), l.B.Drain(patience(t))); err != nil {
		t.Error(err)
	}
}
