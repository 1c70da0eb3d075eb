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

func TestOrderOptionsAreRefusedWhereTheyDoNotApply(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		rails := uint64(l.A.DataRails())
		every := func(op verbs.Opcode, n uint64) ibverbx.SendWR {
			wr := l.A.Write(op, 1, 0, n)
			wr.EveryRail = true
			return wr
		}
		relaxed := func(op verbs.Opcode) ibverbx.SendWR {
			wr := l.A.Write(op, 1, 0, 8)
			wr.Relaxed = true
			return wr
		}
		pieces := every(verbs.OpRDMARead, 0)
		pieces.Local = ibverbx.Segment{}
		for range 64 * rails {
			pieces.SGL = append(pieces.SGL, l.A.MR.Slice(0, 1))
		}
		type refusal struct {
			wr   ibverbx.SendWR
			want error
			says string
		}
		list := []refusal{
			{relaxed(verbs.OpRDMAWrite), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpRDMAWriteWithImm), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpRDMARead), verbs.ErrInvalid, "Relaxed"},
			{relaxed(verbs.OpAtomicFetchAdd), verbs.ErrInvalid, "Relaxed"},
			{every(verbs.OpRDMAWriteWithImm, rails), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpSend, rails), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpAtomicCmpAndSwp, 8), verbs.ErrInvalid, "EveryRail"},
			{every(verbs.OpRDMARead, 0), ibverbx.ErrLength,
				fmt.Sprintf("0 bytes over every rail: must be a multiple of the %d", rails)},
			{pieces, verbs.ErrInvalid, "pieces over every rail"},
		}
		if rails > 1 {
			list = append(list,
				refusal{every(verbs.OpRDMARead, rails+1), ibverbx.ErrLength,
					fmt.Sprintf("must be a multiple of the %d", rails)},
				refusal{every(verbs.OpRDMAWrite, rails*1001), ibverbx.ErrLength,
					"a fragment has at most 1000"})
		}
		for _, c := range list {
			if n, err := l.A.PostSend(c.wr); n != 0 || !errors.Is(err, c.want) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%v: %d, %v", c.wr.Opcode, n, err)
			}
		}
		if s := l.A.Stats(); s.Sends != 0 || s.SendWindow != 0 {
			t.Errorf("a trace is left: %+v", s)
		}
	})
}

// Whichever fragment fails, the error names it, and every request completes once.
func TestFailedFragmentOfEveryRailIsDescribed(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpRDMAWrite} {
		for fragment := range uint64(4) {
			vqptest.EachMultiMode(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
				func(t *testing.T, l *vqptest.Link) {
					rails := uint64(l.A.DataRails())
					if fragment >= rails {
						t.Skip("fewer rails")
					}
					l.Fabric.Inject(soft.Fault{Kind: soft.FailSend, Status: verbs.StatusRemOpErr,
						Match: func(wr *verbs.SendWR) bool {
							return wr.RemoteAddr == l.A.Peer.Addr()+fragment*100 && wr.Bytes() == 100
						}})
					wr := l.A.Write(op, 2, 0, 100*rails)
					wr.EveryRail = true
					if n, err := l.A.PostSend(l.A.Write(verbs.OpRDMAWrite, 1, 5000, 8), wr,
						l.A.Write(verbs.OpRDMARead, 3, 5000, 8)); n != 3 || err != nil {
						t.Fatal(n, err)
					}
					wcs := l.A.Wait(t, 3)
					if wcs[0].Status != 0 || wcs[1].ID != 2 || wcs[1].Status != verbs.StatusRemOpErr ||
						wcs[2].Status != verbs.StatusWRFlushErr {
						t.Fatal(vqptest.FormatWCs(wcs))
					}
					var fe *ibverbx.FailedError
					if !errors.As(l.A.Err(), &fe) || fe.ID != 2 || fe.Part != ibverbx.PartFragment ||
						fe.Fragment != int(fragment) || fe.Fragments != int(rails) ||
						fe.Rail != int(fragment) || fe.RemoteAddr != l.A.Peer.Addr()+fragment*100 ||
						fe.LocalAddr != l.A.MR.Addr()+fragment*100 || fe.Length != 100 {
						t.Errorf("%+v", fe)
					}
					if more := l.A.Poll(t); len(more) != 0 {
						t.Errorf("completed again: %s", vqptest.FormatWCs(more))
					}
				})
		}
	}
}
