package ibverbx_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
	"ibverbx/verbs/soft"
)

// What is told of failures that software NICs are made to have: the whole line, in every mode.
func TestStoriesOfFailures(t *testing.T) {
	const frag = 1000
	type story struct {
		name    string
		kind    soft.FaultKind
		status  verbs.Status
		vendor  uint32
		match   func(l *link, wr *verbs.SendWR) bool
		atPeer  bool // it is told at b
		post    func(t *testing.T, l *link)
		want    func(l *link, fe *ibverbx.FailedError) string // without what is in front and behind
		vendorS string
	}
	list := func(l *link) []ibverbx.Segment {
		return []ibverbx.Segment{l.a.mr.Slice(0, 700), l.a.mr.Slice(5000, 1200), l.a.mr.Slice(9000, 600)}
	}
	remote := func(l *link, off uint64) string { return fmt.Sprintf("remote 0x%x", l.a.peer.Addr()+off) }
	local := func(l *link, off uint64) string { return fmt.Sprintf("0x%x", l.a.mr.Addr()+off) }
	hits := func(off uint64) func(l *link, wr *verbs.SendWR) bool {
		return func(l *link, wr *verbs.SendWR) bool {
			return wr.Bytes() != 0 &&
				wr.RemoteAddr == l.a.peer.Addr()+off
		}
	}
	for _, s := range []story{
		{"write", soft.FailSend, verbs.StatusRetryExcErr, 0x81, hits(2 * frag), false,
			func(t *testing.T, l *link) { l.a.send(t, l.a.write(verbs.OpRDMAWrite, 7, 0, 3500)) },
			func(l *link, _ *ibverbx.FailedError) string {
				return "RDMA_WRITE id 7, fragment 3 of 4 (1000 bytes from " + local(l, 2000) + " to " +
					remote(l, 2000) + ")"
			}, " (vendor 0x81: transport retry counter exceeded)"},
		{"last fragment of a notifying write, behind a plain one", soft.FailAfterData, verbs.StatusRemOpErr,
			0, hits(4*frag + 3*frag), false,
			func(t *testing.T, l *link) {
				l.a.send(t, l.a.write(verbs.OpRDMAWrite, 6, 0, 4*frag))
				l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 7, 4*frag, 3*frag+1))
			},
			func(l *link, _ *ibverbx.FailedError) string {
				return "RDMA_WRITE id 7, fragment 4 of 4 (1 bytes from " + local(l, 7000) + " to " +
					remote(l, 7000) + ")"
			}, ""},
		{"scattered read", soft.FailSend, verbs.StatusRemAccessErr, 0x88, hits(frag), false,
			func(t *testing.T, l *link) {
				l.a.send(t, ibverbx.SendWR{ID: 7, Opcode: verbs.OpRDMARead, SGL: list(l),
					Remote: l.a.peer.Slice(0, 2500)})
			},
			func(l *link, _ *ibverbx.FailedError) string {
				return "RDMA_READ id 7, fragment 2 of 3 (1000 bytes from " + remote(l, 1000) + " to " +
					local(l, 5300) + " and on (scattered))"
			}, " (vendor 0x88: protection error at the remote buffer)"},
		{"send", soft.FailSend, verbs.StatusRNRRetryExcErr, 0,
			func(_ *link, wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSend }, false,
			func(t *testing.T, l *link) {
				l.a.send(t, ibverbx.SendWR{ID: 7, Opcode: verbs.OpSend, Local: l.a.mr.Slice(100, 64)})
			},
			func(l *link, _ *ibverbx.FailedError) string {
				return "SEND id 7 (64 bytes at " + local(l, 100) +
					")"
			}, ""},
		{"atomic", soft.FailSend, verbs.StatusRemInvReqErr, 0,
			func(_ *link, wr *verbs.SendWR) bool { return wr.Opcode.IsAtomic() }, false,
			func(t *testing.T, l *link) {
				l.a.send(t, ibverbx.SendWR{ID: 7, Opcode: verbs.OpAtomicFetchAdd, Local: l.a.mr.Slice(16, 8),
					Remote: l.a.peer.Slice(64, 8)})
			},
			func(l *link, _ *ibverbx.FailedError) string {
				return "FETCH_ADD id 7 (8 bytes from " + remote(l, 64) + " to " + local(l, 16) + ")"
			}, ""},
		{"notification", soft.FailSend, verbs.StatusRemOpErr, 0,
			func(l *link, wr *verbs.SendWR) bool {
				return wr.Opcode == verbs.OpRDMAWriteWithImm &&
					wr.Bytes() == 0
			}, false,
			func(t *testing.T, l *link) { l.a.send(t, l.a.write(verbs.OpRDMAWriteWithImm, 7, 0, 3500)) },
			func(_ *link, fe *ibverbx.FailedError) string {
				if fe.Part == ibverbx.PartImmediate {
					return "RDMA_WRITE id 7, immediate behind its data"
				}
				return "RDMA_WRITE id 7, notification behind its data"
			}, ""},
		{"receive", soft.FailRecv, verbs.StatusLocProtErr, 0,
			func(_ *link, wr *verbs.SendWR) bool { return wr.Opcode == verbs.OpSend }, true,
			func(t *testing.T, l *link) {
				if _, err := l.b.PostRecv(
					ibverbx.RecvWR{ID: 7, SGL: []ibverbx.Segment{l.b.mr.Slice(0, 40),
						l.b.mr.Slice(80, 60)}}); err != nil {
					t.Fatal(err)
				}
				l.a.send(t, ibverbx.SendWR{ID: 8, Opcode: verbs.OpSend, Local: l.a.mr.Slice(0, 64)})
			},
			func(l *link, _ *ibverbx.FailedError) string {
				return fmt.Sprintf("RECV id 7 (100 bytes at 0x%x and on (scattered))", l.b.mr.Addr())
			}, ""},
	} {
		for _, m := range modes {
			t.Run(s.name+"/"+m.name, func(t *testing.T) {
				l := newLink(t, linkConfig{nics: m.nics,
					qp: ibverbx.Config{Scheme: m.scheme, QPsPerDevice: m.qps, MaxMsgSize: frag}})
				if m.name == "single" && s.name != "receive" && s.name != "send" {
					t.Skip("a single queue pair does not fragment, and does not know what failed")
				}
				l.fabric.Inject(soft.Fault{Kind: s.kind, Status: s.status, VendorErr: s.vendor,
					Match: func(wr *verbs.SendWR) bool { return s.match(l, wr) }})
				teller := l.a
				if s.atPeer {
					teller = l.b
				}
				s.post(t, l)
				for ctx := patience(t); teller.Err() == nil; {
					l.a.pump(t)
					l.b.pump(t)
					if ctx.Err() != nil {
						t.Fatal("nothing failed")
					}
				}
				var fe *ibverbx.FailedError
				if !errors.As(teller.Err(), &fe) {
					t.Fatal(teller.Err())
				}
				what := "request or receive id 7"
				if m.name != "single" {
					what = s.want(l, fe)
				}
				if whole := s.name == "send" || s.name == "atomic" ||
					s.name == "receive"; m.name != "single" && whole != (fe.Part == ibverbx.PartMessage) {
					t.Errorf("it was a %v that failed", fe.Part)
				}
				want := fmt.Sprintf("virtual qp %d: %s: rail %d (%s qp %d): %s%s: %s", teller.Num(), what,
					fe.Rail,
					teller.nics[fe.Rail%m.nics].Name(), teller.railQP[fe.Rail], s.status.Error(), s.vendorS,
					s.status.Advice())
				// the notify QP is on the first NIC
				if fe.Rail == len(teller.railQP)-1 && teller.railQP[fe.Rail] == fe.RailQPNum {
					want = strings.Replace(want, "("+teller.nics[fe.Rail%m.nics].Name()+" qp",
						"("+fe.Device+" qp", 1)
				}
				if got := fe.Error(); got != want {
					t.Errorf("it says\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

// A post that a NIC refuses for good is told like a failed completion, and names the fragment.
func TestStoryOfARefusedPost(t *testing.T) {
	multiModes(t, linkConfig{qp: ibverbx.Config{MaxMsgSize: 1000}}, func(t *testing.T, l *link) {
		l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Err: verbs.ErrDeviceGone,
			Match: func(wr *verbs.SendWR) bool { return wr.RemoteAddr == l.a.peer.Addr()+1000 }})
		_, _ = l.a.PostSend(l.a.write(verbs.OpRDMAWriteWithImm, 7, 0, 2500))
		var fe *ibverbx.FailedError
		if err := l.a.Err(); !errors.Is(err, verbs.ErrDeviceGone) || !errors.As(err, &fe) ||
			fe.Fragment != 1 || fe.Fragments != 3 || fe.Part != ibverbx.PartFragment ||
			fe.RemoteAddr != l.a.peer.Addr()+1000 || fe.Length != 1000 ||
			!strings.Contains(err.Error(), "fragment 2 of 3 (1000 bytes") ||
			!strings.Contains(err.Error(), ": check the NIC") {
			t.Errorf("%v", err)
		}
	})
	l := newLink(t, linkConfig{})
	l.fabric.Inject(soft.Fault{Kind: soft.RefuseSend, Err: verbs.ErrDeviceGone})
	_, _ = l.a.PostSend(l.a.write(verbs.OpRDMARead, 7, 64, 100))
	var fe *ibverbx.FailedError
	if err := l.a.Err(); !errors.As(err, &fe) || fe.Opcode != verbs.WCRDMARead || fe.Length != 100 ||
		fe.LocalAddr != l.a.mr.Addr()+64 || fe.RemoteAddr != l.a.peer.Addr()+64 {
		t.Errorf("%v", err)
	}
}
