package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
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

// steppedModes runs a test on a stepped fabric, with three data rails, in both schemes; sends is
// the rail of SENDs.
func steppedModes(t *testing.T, cfg ibverbx.Config, test func(t *testing.T, l *vqptest.Link, sends int)) {
	for scheme, sends := range map[ibverbx.Scheme]int{ibverbx.DQPLB: 3, ibverbx.Spray: 0} {
		t.Run(scheme.String(), func(t *testing.T) {
			c := cfg
			c.Scheme = scheme
			test(t, vqptest.SteppedLink(t, 3, c), sends)
		})
	}
}

// sent is how many SENDs an end has staged so far.
func sent(e *vqptest.End, rail int) uint64 { return e.Stats().Rails[rail].Notifications }

func TestRelaxedSendGoesOutWhileAnEarlierWriteIsStalled(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		if l.A.DataRails() == 1 {
			t.Skip("a single queue pair is in order")
		}
		vqptest.FillRandom(l.A.Buf[:6000], 1)
		stall := l.Fabric.Inject(soft.Fault{Kind: soft.StallQP, Count: -1,
			Match: func(wr *verbs.SendWR) bool {
				return wr.Opcode == verbs.OpRDMAWrite && wr.RemoteAddr == l.A.Peer.Addr()+1000
			}})
		expectMessage(l.B, t, 7, 10000, 3000)
		expectMessage(l.B, t, 8, 13000, 3000)
		// its fragment on some rail waits
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, uint64(l.A.DataRails())*1000))
		l.A.Send(t, message(l.A, 2, 0, 3000, false, 0)) // waits for that write
		l.A.Send(t, message(l.A, 3, 3000, 2000, true, 0))
		wc := l.B.Wait(t, 1)[0]
		if stalled := l.A.Stats().SendWindow == 3; !stalled {
			t.Fatal("the write was not stalled")
		}
		if wc.ID != 7 || wc.Imm != 3 || wc.ByteLen != 2000 || wc.Flags&verbs.WCWithImm == 0 ||
			wc.Opcode != verbs.WCRecv {
			t.Fatalf("%+v", wc)
		}
		vqptest.MustEqual(t, "relaxed", l.B.Buf[10000:12000], l.A.Buf[3000:5000])
		stall.Remove()
		if wc := l.B.Wait(t, 1)[0]; wc.ID != 8 || wc.Imm != 2 || wc.ByteLen != 3000 {
			t.Fatalf("%+v", wc)
		}
		vqptest.MustEqual(t, "ordinary", l.B.Buf[13000:16000], l.A.Buf[:3000])
		if got := vqptest.IDs(t, l.A.Wait(t, 3), verbs.StatusSuccess); !slices.Equal(got, []uint64{1, 2, 3}) {
			t.Fatalf("completed %v", got)
		}
	})
}

func TestFencedRelaxedSendWaitsForEarlierData(t *testing.T) {
	steppedModes(t, ibverbx.Config{FragmentSize: 1000}, func(t *testing.T, l *vqptest.Link, sends int) {
		expectMessage(l.B, t, 7, 0, 8)
		l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 2000)) // rails 0 and 1
		l.A.Send(t, message(l.A, 2, 0, 8, true, verbs.SendFence))
		for rail := range 2 {
			if n := sent(l.A, sends); n != 0 {
				t.Fatal("it went out before the data was acknowledged")
			}
			l.Complete(l.A, rail)
			l.A.Pump(t)
		}
		l.Complete(l.A, sends)
		l.Reports(l.A, 1, 2)
		l.Reports(l.B, 7)
	})
}

// Requests that wait for earlier data also wait for a relaxed SEND: a fenced request, an ordinary
// SEND, and in Spray a notification.
func TestLaterRequestsWaitForARelaxedSend(t *testing.T) {
	steppedModes(t, ibverbx.Config{FragmentSize: 1000}, func(t *testing.T, l *vqptest.Link, sends int) {
		for _, c := range []struct {
			name string
			wr   ibverbx.SendWR
		}{
			{"fenced read", l.A.Write(verbs.OpRDMARead, 2, 0, 8)},
			{"fenced relaxed SEND", message(l.A, 2, 0, 8, true, verbs.SendFence)},
			{"ordinary SEND", message(l.A, 2, 0, 8, false, 0)},
		} {
			if c.wr.Opcode == verbs.OpRDMARead {
				c.wr.Flags |= verbs.SendFence
			}
			expectMessage(l.B, t, 7, 0, 8)
			expectMessage(l.B, t, 8, 0, 8)
			l.A.Send(t, message(l.A, 1, 0, 8, true, 0))
			before := l.Fabric.Actions(nil)
			l.A.Send(t, c.wr)
			if after := l.Fabric.Actions(nil); len(after) != len(before) {
				t.Fatalf("%s: it did not wait: %v", c.name, after)
			}
			l.Complete(l.A, sends)
			l.A.Pump(t)
			for range 100 {
				l.Fabric.Run(10)
				l.A.Pump(t)
				l.B.Pump(t)
			}
			if got := vqptest.IDs(t, l.A.Poll(t), verbs.StatusSuccess); !slices.Equal(got, []uint64{1, 2}) {
				t.Fatalf("%s: completed %v", c.name, got)
			}
			if c.wr.Opcode == verbs.OpRDMARead { // uses up the second receive
				l.A.Send(t, message(l.A, 3, 0, 8, true, 0))
				l.Complete(l.A, sends)
				l.Reports(l.A, 3)
			}
			l.B.Poll(t)
		}
	})
}

// Relaxed SENDs arrive in posting order through a send queue that holds two at a time. An ordinary
// SEND waits for those before it; once it is due, it goes ahead of those that still wait.
func TestRelaxedSendsKeepTheirOrderUnderBackpressure(t *testing.T) {
	steppedModes(t, ibverbx.Config{MaxMsgCntPerQP: 2}, func(t *testing.T, l *vqptest.Link, sends int) {
		const relaxed, ordinary = 9, 3
		var order []uint32
		for id := range uint64(relaxed + 1) {
			expectMessage(l.B, t, id, id*100, 100)
			l.A.Send(t, message(l.A, id, id*100, 100, id != ordinary, 0))
		}
		for range relaxed + 1 {
			if s := l.A.Stats().Rails[sends]; s.Outstanding > s.Limit || s.Outstanding == 0 {
				t.Fatalf("%d of %d outstanding", s.Outstanding, s.Limit)
			}
			l.Complete(l.A, sends)
			l.A.Pump(t)
			for _, wc := range l.B.Poll(t) {
				order = append(order, wc.Imm)
			}
		}
		if want := []uint32{0, 1, 2, 4, 3, 5, 6, 7, 8, 9}; !slices.Equal(order, want) {
			t.Fatalf("received %v", order)
		}
		if s := l.A.Stats(); s.Rails[sends].Outstanding != 0 || s.Rails[sends].Notifications != relaxed+1 ||
			s.Rails[sends].Bytes != 100*(relaxed+1) {
			t.Fatalf("%+v", s)
		}
		if got := vqptest.IDs(t, l.A.Poll(t), verbs.StatusSuccess); len(got) != relaxed+1 ||
			!slices.IsSorted(got) {
			t.Fatalf("completed %v", got)
		}
	})
}

// Scatter lists, inline payloads, empty payloads and the solicited flag work as with an ordinary
// SEND.
func TestRelaxedSendTakesEveryPayload(t *testing.T) {
	vqptest.EachMode(t, 10, func(t *testing.T, l *vqptest.Link) {
		vqptest.FillRandom(l.A.Buf[:1000], 3)
		for i, c := range []struct {
			wr   ibverbx.SendWR
			want []byte
		}{
			{ibverbx.SendWR{Local: l.A.MR.Slice(5, 50)}, l.A.Buf[5:55]},
			{ibverbx.SendWR{}, nil},
			{ibverbx.SendWR{SGL: []ibverbx.Segment{l.A.MR.Slice(500, 7), l.A.MR.Slice(100, 9)}},
				slices.Concat(l.A.Buf[500:507], l.A.Buf[100:109])},
			{ibverbx.SendWR{Flags: verbs.SendInline | verbs.SendSolicited, Inline: []byte("at once")},
				[]byte("at once")},
		} {
			expectMessage(l.B, t, uint64(i), 2000, 100)
			c.wr.ID, c.wr.Opcode, c.wr.Relaxed = uint64(i), verbs.OpSend, true
			l.A.Send(t, c.wr)
			wc := l.B.Wait(t, 1)[0]
			if wc.ID != uint64(i) || wc.Status != 0 || wc.ByteLen != uint64(len(c.want)) {
				t.Fatalf("%d: %+v", i, wc)
			}
			vqptest.MustEqual(t, fmt.Sprint(i), l.B.Buf[2000:2000+len(c.want)], c.want)
			if wc := l.A.Wait(t, 1)[0]; wc.ID != uint64(i) || wc.Opcode != verbs.WCSend || wc.Status != 0 {
				t.Fatalf("%d: %+v", i, wc)
			}
		}
	})
}

func TestFailedRelaxedSendIsDescribedAndFlushesLaterRequests(t *testing.T) {
	multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
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

// Relaxed SENDs without a matching receive are flushed like other requests, once each, and a reset
// frees their slots.
func TestRelaxedSendsEndWithTheVirtualQP(t *testing.T) {
	for name, end := range map[string]func(*vqptest.End) error{
		"reset": func(e *vqptest.End) error { return e.Reset() },
		"close": func(e *vqptest.End) error { return e.Close() },
		"drain": func(e *vqptest.End) error {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			return errors.Join(e.Drain(ctx), e.Reset())
		},
	} {
		t.Run(name, func(t *testing.T) {
			multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{MaxMsgCntPerQP: 4}},
				func(t *testing.T, l *vqptest.Link) {
					for id := range uint64(10) {
						l.A.Send(t, message(l.A, id, 0, 8, true, 0))
					}
					if err := end(l.A); err != nil && !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
					if got := vqptest.IDs(t, l.A.Poll(t), verbs.StatusWRFlushErr); len(got) != 10 ||
						!slices.IsSorted(got) {
						t.Fatalf("completed %v", got)
					}
					if name == "close" {
						return
					}
					if err := l.B.Reset(); err != nil {
						t.Fatal(err)
					}
					if err := l.Reconnect(); err != nil {
						t.Fatal(err)
					}
					for id := range uint64(10) {
						expectMessage(l.B, t, id, 0, 8)
						l.A.Send(t, message(l.A, id, 0, 8, true, 0))
					}
					if got := vqptest.IDs(t, l.A.Wait(t, 10), verbs.StatusSuccess); !slices.IsSorted(got) {
						t.Fatalf("completed %v", got)
					}
				})
		})
	}
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

func TestEveryRailUsesEveryRail(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		rails := uint64(l.A.DataRails())
		vqptest.FillRandom(l.B.Buf[:100_000], 1)
		for i, size := range []uint64{1, 8, 1000} {
			n := rails * size
			before := l.A.Stats().Rails
			read := l.A.Write(verbs.OpRDMARead, uint64(i), 200_000, n)
			read.EveryRail, read.Remote = true, l.A.Peer.At(uint64(i)*20_000)
			l.A.Send(t, l.A.Write(verbs.OpRDMARead, 77, 300_000, 1)) // advances the round robin
			l.A.Send(t, read)
			vqptest.IDs(t, l.A.Wait(t, 2), verbs.StatusSuccess)
			vqptest.MustEqual(t, "read", l.A.Buf[200_000:200_000+n],
				l.B.Buf[uint64(i)*20_000:uint64(i)*20_000+n])
			write := ibverbx.SendWR{ID: 5, Opcode: verbs.OpRDMAWrite, EveryRail: true,
				Remote: l.A.Peer.At(500_000),
				SGL:    []ibverbx.Segment{l.A.MR.Slice(200_000, n-n/3), l.A.MR.Slice(200_000+n-n/3, n/3)}}
			l.A.Send(t, write)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			vqptest.MustEqual(t, "write", l.B.Buf[500_000:500_000+n], l.A.Buf[200_000:200_000+n])
			for r, s := range l.A.Stats().Rails[:rails] {
				fragments, bytes := s.Fragments-before[r].Fragments, s.Bytes-before[r].Bytes
				if fragments == 3 {
					fragments, bytes = 2, bytes-1 // with the read that advanced the round robin
				}
				if fragments != 2 || bytes != 2*size {
					t.Errorf("size %d, rail %d: %+v before, %+v after", size, r, before[r], s)
				}
			}
		}
	})
}

// A request for every rail waits for a full rail: its fragment there follows the write.
func TestEveryRailWaitsForAFullRail(t *testing.T) {
	l := vqptest.SteppedLink(t, 3, ibverbx.Config{FragmentSize: 1000, MaxMsgCntPerQP: 1})
	vqptest.FillRandom(l.A.Buf[:1000], 1)
	l.A.Send(t, l.A.Write(verbs.OpRDMARead, 1, 9000, 8)) // rail 0
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 2, 0, 8))   // rail 1
	read := l.A.Write(verbs.OpRDMARead, 3, 5000, 24)
	read.EveryRail = true
	l.A.Send(t, read)
	l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 4, 0, 8)) // waits behind the read, although rail 2 is free
	if got := fragments(l.A); !slices.Equal(got[:3], []uint64{1, 1, 0}) {
		t.Fatalf("fragments %v", got)
	}
	l.Complete(l.A, 1)
	l.A.Pump(t)
	if got := fragments(l.A); !slices.Equal(got[:3], []uint64{1, 1, 0}) {
		t.Fatalf("fragments %v: rail 0 is still full", got)
	}
	l.Complete(l.A, 0)
	l.A.Pump(t)
	if got := fragments(l.A); !slices.Equal(got[:3], []uint64{2, 2, 1}) {
		t.Fatalf("fragments %v, want one more on each", got)
	}
	for rail := range 3 {
		l.Complete(l.A, rail)
		l.A.Pump(t)
	}
	l.Fabric.Run(100)
	l.Reports(l.A, 1, 2, 3, 4)
	if !bytes.Equal(l.A.Buf[5000:5024], l.B.Buf[5000:5024]) {
		t.Error("the read brought something else")
	}
}

// Whichever fragment fails, the error names it, and every request completes once.
func TestFailedFragmentOfEveryRailIsDescribed(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpRDMAWrite} {
		for fragment := range uint64(4) {
			multiModes(t, vqptest.LinkConfig{QP: ibverbx.Config{FragmentSize: 1000}},
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
