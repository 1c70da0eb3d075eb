package api_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// messageFragment is the fragment size of the tests of failure messages.
const messageFragment = 1000

// failureCase is one way in which a software NIC makes a request with ID 7 fail. In none of them is
// it a fragment that fails: those are named in TestFailureDescribesTheWorkRequestThatFailed.
type failureCase struct {
	name   string
	kind   soft.FaultKind
	status verbs.Status
	vendor uint32
	match  func(l *vqptest.Link, wr *verbs.SendWR) bool // the work request that fails
	post   func(t *testing.T, l *vqptest.Link)

	atPeer     bool // b reports the failure, not a
	whole      bool // the request travels as one message
	singleToo  bool // it can fail on a single queue pair, too
	what       func(l *vqptest.Link, fe *ibverbx.FailedError) string
	vendorText string
}

func localAt(l *vqptest.Link, off uint64) string { return fmt.Sprintf("0x%x", l.A.MR.Addr()+off) }
func remoteAt(l *vqptest.Link, off uint64) string {
	return fmt.Sprintf("remote 0x%x", l.A.Peer.Addr()+off)
}

// writesTo matches work requests with data whose remote address is off in the peer's buffer.
func writesTo(off uint64) func(l *vqptest.Link, wr *verbs.SendWR) bool {
	return func(l *vqptest.Link, wr *verbs.SendWR) bool {
		return wr.Bytes() != 0 && wr.RemoteAddr == l.A.Peer.Addr()+off
	}
}

func isSend(_ *vqptest.Link, wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSend }

var failureCases = []failureCase{
	{
		name:   "send",
		kind:   soft.FailSend,
		status: verbs.StatusRNRRetryExcErr,
		match:  isSend,
		post: func(t *testing.T, l *vqptest.Link) {
			l.A.Send(t, ibverbx.SendWR{ID: 7, Opcode: verbs.OpSend, Local: l.A.MR.Slice(100, 64)})
		},
		whole:     true,
		singleToo: true,
		what: func(l *vqptest.Link, _ *ibverbx.FailedError) string {
			return "SEND id 7 (64 bytes at " + localAt(l, 100) + ")"
		},
	},
	{
		name:   "atomic",
		kind:   soft.FailSend,
		status: verbs.StatusRemInvReqErr,
		match:  func(_ *vqptest.Link, wr *verbs.SendWR) bool { return wr.Opcode.IsAtomic() },
		post: func(t *testing.T, l *vqptest.Link) {
			l.A.Send(t, ibverbx.SendWR{ID: 7, Opcode: verbs.OpAtomicFetchAdd, Local: l.A.MR.Slice(16, 8),
				Remote: l.A.Peer.Slice(64, 8)})
		},
		whole: true,
		what: func(l *vqptest.Link, _ *ibverbx.FailedError) string {
			return "FETCH_ADD id 7 (8 bytes from " + remoteAt(l, 64) + " to " + localAt(l, 16) + ")"
		},
	},
	{
		name:   "notification",
		kind:   soft.FailSend,
		status: verbs.StatusRemOpErr,
		match: func(_ *vqptest.Link, wr *verbs.SendWR) bool {
			return wr.Opcode == verbs.OpRDMAWriteWithImm && wr.Bytes() == 0
		},
		post: func(t *testing.T, l *vqptest.Link) {
			l.A.Send(t, l.A.Write(verbs.OpRDMAWriteWithImm, 7, 0,
				3500))
		},
		what: func(_ *vqptest.Link, fe *ibverbx.FailedError) string {
			if fe.Part == ibverbx.PartImmediate {
				return "RDMA_WRITE id 7, immediate behind its data"
			}
			return "RDMA_WRITE id 7, notification behind its data"
		},
	},
	{
		name:   "receive",
		kind:   soft.FailRecv,
		status: verbs.StatusLocProtErr,
		match:  isSend,
		post: func(t *testing.T, l *vqptest.Link) {
			recv := ibverbx.RecvWR{ID: 7, SGL: []ibverbx.Segment{l.B.MR.Slice(0, 40), l.B.MR.Slice(80, 60)}}
			if _, err := l.B.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			l.A.Send(t, ibverbx.SendWR{ID: 8, Opcode: verbs.OpSend, Local: l.A.MR.Slice(0, 64)})
		},
		atPeer:    true,
		whole:     true,
		singleToo: true,
		what: func(l *vqptest.Link, _ *ibverbx.FailedError) string {
			return fmt.Sprintf("RECV id 7 (100 bytes at 0x%x and on (scattered))", l.B.MR.Addr())
		},
	},
}

// The whole error message of a failure, for every kind of request in every mode.
func TestFailureMessages(t *testing.T) {
	for _, c := range failureCases {
		for _, m := range vqptest.Modes {
			t.Run(c.name+"/"+m.Name, func(t *testing.T) {
				single := m.QPs*m.NICs == 1
				if single && !c.singleToo {
					t.Skip("a single queue pair does not fragment, and does not know what failed")
				}
				l := m.Link(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: messageFragment}})
				fe := c.run(t, l)
				what := "request or receive id 7"
				if !single {
					what = c.what(l, fe)
					if c.whole != (fe.Part == ibverbx.PartMessage) {
						t.Errorf("the part that failed is a %v", fe.Part)
					}
				}
				failed := l.A
				if c.atPeer {
					failed = l.B
				}
				device := failed.NICs[fe.Rail%m.NICs].Name()
				if fe.Rail == failed.DataRails() {
					device = failed.NICs[0].Name() // the notify QP is on the first NIC
				}
				want := fmt.Sprintf("virtual qp %d: %s: rail %d (%s qp %d): %s%s: %s", failed.Num(), what,
					fe.Rail, device, failed.RailQPs[fe.Rail], c.status.Error(), c.vendorText,
					fe.Advice())
				if got := fe.Error(); got != want {
					t.Errorf("the message is\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

// run makes the case's request fail, and returns the failure that its end reports.
func (c *failureCase) run(t *testing.T, l *vqptest.Link) *ibverbx.FailedError {
	t.Helper()
	l.Fabric.Inject(soft.Fault{Kind: c.kind, Status: c.status, VendorErr: c.vendor,
		Match: func(wr *verbs.SendWR) bool { return c.match(l, wr) }})
	failed := l.A
	if c.atPeer {
		failed = l.B
	}
	c.post(t, l)
	for ctx := patience(t); failed.Err() == nil; {
		l.A.Pump(t)
		l.B.Pump(t)
		if ctx.Err() != nil {
			t.Fatal("nothing failed")
		}
	}
	var fe *ibverbx.FailedError
	if !errors.As(failed.Err(), &fe) {
		t.Fatal(failed.Err())
	}
	return fe
}

// A post that a NIC refuses permanently is described like a failed completion, fragment included.
func TestMessageOfAPermanentlyRefusedPost(t *testing.T) {
	cfg := vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: messageFragment}}
	vqptest.EachMultiMode(t, cfg, func(t *testing.T, l *vqptest.Link) {
		l.Fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Err: verbs.ErrDeviceGone,
			Match: func(wr *verbs.SendWR) bool { return writesTo(messageFragment)(l, wr) }})
		_, _ = l.A.PostSend(l.A.Write(verbs.OpRDMAWriteWithImm, 7, 0, 2500))
		err := l.A.Err()
		var fe *ibverbx.FailedError
		if !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(err, &fe) {
			t.Fatal(err)
		}
		if fe.Part != ibverbx.PartFragment || fe.Fragment != 1 || fe.Fragments != 3 || fe.Length != 1000 ||
			fe.RemoteAddr != l.A.Peer.Addr()+messageFragment {
			t.Errorf("%+v", fe)
		}
		for _, want := range []string{"fragment 2 of 3 (1000 bytes", ": check the NIC"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %v", want, err)
			}
		}
	})
}

// A layer above names a request in words, in place of operation and ID.
func TestFailedErrorNamesTheRequestOfALayerAbove(t *testing.T) {
	f := ibverbx.FailedError{QPNum: 3, HasID: true, ID: 77, Opcode: verbs.WCRDMARead, Name: "keep-alive",
		Part: ibverbx.PartFragment, Fragment: 1, Fragments: 2, LocalAddr: 0x10, RemoteAddr: 0x20, Length: 8,
		Device: "mlx5_0", RailQPNum: 9, Err: verbs.StatusRetryExcErr}
	const want = "virtual qp 3: keep-alive, fragment 2 of 2 (8 bytes from remote 0x20 to 0x10): rail 0 " +
		"(mlx5_0 qp 9): RETRY_EXC_ERR: "
	if text := f.Error(); !strings.HasPrefix(text, want) {
		t.Errorf("%s\nwant %s", text, want)
	}
}

// message is a SEND of n bytes from an offset; expectMessage posts a receive for one.
func message(e *vqptest.End, id, off, n uint64, relaxed bool, flags verbs.SendFlags) ibverbx.SendWR {
	return ibverbx.SendWR{
		ID: id, Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled | flags, Local: e.MR.Slice(off, n),
		Imm: uint32(id), Relaxed: relaxed,
	}
}

func expectMessage(e *vqptest.End, tb testing.TB, id, off, n uint64) {
	tb.Helper()
	if _, err := e.PostRecv(ibverbx.RecvWR{ID: id, Local: e.MR.Slice(off, n)}); err != nil {
		tb.Fatal(err)
	}
}

func TestFailedRelaxedSendIsDescribedAndFlushesLaterRequests(t *testing.T) {
	vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
		func(t *testing.T, l *vqptest.Link) {
			l.Fabric.Inject(soft.Fault{Device: l.A.NICs[0], Skip: 1, Kind: soft.FailSend,
				Status: verbs.StatusRemOpErr, VendorErr: 0x77,
				Match: func(wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSendWithImm }})
			for id := range uint64(4) {
				expectMessage(l.B, t, id, 0, 5000)
			}
			var wrs []ibverbx.SendWR
			for id := range uint64(4) {
				wrs = append(wrs, message(l.A, id, id*5000, 5000, true, 0))
			}
			wrs[1].Remote = l.A.Peer.At(64) // a SEND ignores it
			if n, err := l.A.PostSend(wrs...); n != 4 || err != nil {
				t.Fatal(n, err)
			}
			wcs := l.A.Wait(t, 4)
			for i, want := range []verbs.Status{0, verbs.StatusRemOpErr, verbs.StatusWRFlushErr,
				verbs.StatusWRFlushErr} {
				if wcs[i].ID != uint64(i) || wcs[i].Status != want {
					t.Fatal(vqptest.FormatWCs(wcs))
				}
			}
			var fe *ibverbx.FailedError
			if err := l.A.Err(); !errors.As(err, &fe) || fe.ID != 1 || fe.Part != ibverbx.PartMessage ||
				fe.Opcode != verbs.WCSend || fe.VendorErr != 0x77 ||
				fe.Fragment != -1 || fe.Fragments != 0 || fe.LocalAddr != l.A.MR.Addr()+5000 ||
				fe.Length != 5000 || fe.RemoteAddr != 0 ||
				!strings.Contains(err.Error(), "SEND id 1 (5000 bytes at 0x") {
				t.Errorf("Err: %v", err)
			}
		})
}

// A request of no bytes that fails is described as what it was.
func TestFailedRequestOfNoBytesIsNamed(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.DQPLB, ibverbx.Spray} {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
			l := vqptest.NewLink(t, vqptest.LinkConfig{QP: ibverbx.Config{QPsPerDevice: 2, Scheme: scheme}})
			l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Device: l.A.NICs[0],
				Status: verbs.StatusRemOpErr})
			wr := l.A.Write(op, 2, 16, 0)
			l.A.Send(t, wr)
			l.A.Wait(t, 1)
			want := ibverbx.FailedError{Part: ibverbx.PartFragment, Fragments: 1, RemoteAddr: wr.Remote.Addr}
			if op == verbs.OpRDMAWriteWithImm && scheme == ibverbx.Spray {
				want = ibverbx.FailedError{Part: ibverbx.PartNotification, Fragment: -1}
			}
			var fe *ibverbx.FailedError
			if !errors.As(l.A.Err(), &fe) || !fe.HasID || fe.ID != 2 || fe.Length != 0 ||
				fe.Part != want.Part || fe.Fragment != want.Fragment || fe.Fragments != want.Fragments ||
				fe.RemoteAddr != want.RemoteAddr {
				t.Errorf("%v %v: %+v", scheme, op, l.A.Err())
			}
		}
	}
}

// A virtual queue pair detects the failure of one of its queue pairs by what it has outstanding
// there. Where it keeps no receive of its own, it takes a receive of the user.
func TestWhichFailuresAreDetected(t *testing.T) {
	for _, c := range []struct {
		scheme  ibverbx.Scheme
		rail    int // 2 is the notify QP
		detects bool
	}{
		{ibverbx.DQPLB, 0, true}, {ibverbx.DQPLB, 1, true}, {ibverbx.DQPLB, 2, false},
		{ibverbx.Spray, 0, false}, {ibverbx.Spray, 1, true}, {ibverbx.Spray, 2, false},
	} {
		fabric := vqptest.NewFabric(t, soft.Config{})
		made := vqptest.PhysicalConfig{Data: 2, Notify: true, QP: ibverbx.Config{Scheme: c.scheme}}
		a := vqptest.NewPhysical(t, fabric.Device(0), made)
		b := vqptest.NewPhysical(t, fabric.Device(0), made)
		vqptest.ConnectBoth(t, a.VirtualQP, b.VirtualQP)
		if err := b.Raw[c.rail].Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.QPAttrState); err != nil {
			t.Fatal(err)
		}
		poll := func() {
			var wcs [16]ibverbx.WC
			for range 20 {
				if _, err := b.CQ().Poll(wcs[:]); err != nil {
					t.Fatal(err)
				}
			}
		}
		if poll(); (b.Err() != nil) != c.detects {
			t.Errorf("%v rail %d: %v", c.scheme, c.rail, b.Err())
		}
		if !c.detects {
			wr := ibverbx.RecvWR{ID: 1}
			if c.scheme == ibverbx.DQPLB || c.rail == 0 {
				wr.Local, _ = b.Memory(t, 8)
			}
			if _, err := b.PostRecv(wr); err != nil {
				t.Fatal(err)
			}
			if poll(); b.Err() == nil {
				t.Errorf("%v rail %d: not detected by a receive", c.scheme, c.rail)
			}
		}
	}
}
