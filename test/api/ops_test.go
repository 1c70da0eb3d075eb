package api_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/vqptest"
	"ibverbx/verbs"
)

// sizes are around every boundary of fragments of 1000 bytes.
var sizes = []uint64{1, 8, 999, 1000, 1001, 1999, 2000, 2001, 15999, 16000, 16001, 100000}

func TestWriteArrivesWholeAtEverySize(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for i, n := range sizes {
			vqptest.FillRandom(l.A.Buf, n)
			clear(l.B.Buf)
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, uint64(i), 3, n))
			wc := l.A.Wait(t, 1)[0]
			if wc.ID != uint64(i) || wc.Status != 0 || wc.Opcode != verbs.WCRDMAWrite ||
				wc.QPNum != l.A.Num() {
				t.Fatalf("size %d: %+v", n, wc)
			}
			vqptest.MustEqual(t, fmt.Sprint("size ", n), l.B.Buf[3:3+n], l.A.Buf[3:3+n])
			if l.B.Buf[2] != 0 || l.B.Buf[3+n] != 0 {
				t.Fatalf("size %d: a byte beside the target was written", n)
			}
		}
	})
}

func TestReadReturnsEveryByteAtEverySize(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		vqptest.FillRandom(l.B.Buf, 1)
		for i, n := range sizes {
			clear(l.A.Buf)
			l.A.Send(t, l.A.Write(verbs.OpRDMARead, uint64(i), 5, n))
			if wc := l.A.Wait(t, 1)[0]; wc.Status != 0 || wc.Opcode != verbs.WCRDMARead {
				t.Fatalf("size %d: %+v", n, wc)
			}
			vqptest.MustEqual(t, fmt.Sprint("size ", n), l.A.Buf[5:5+n], l.B.Buf[5:5+n])
		}
	})
}

func TestWriteWithImmNotifiesWithImmediateAndLength(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for i, n := range sizes {
			vqptest.FillRandom(l.A.Buf, n)
			l.B.ExpectRecv(t, uint64(100+i))
			wr := l.A.Write(verbs.OpRDMAWriteWithImm, uint64(i), 0, n)
			wr.Imm = 0xdead0000 + uint32(i)
			l.A.Send(t, wr)
			wc := l.B.Wait(t, 1)[0]
			if wc.ID != uint64(100+i) || wc.Status != 0 || wc.Opcode != verbs.WCRecvRDMAWithImm ||
				wc.Flags&verbs.WCWithImm == 0 || wc.Imm != wr.Imm {
				t.Fatalf("size %d: %+v", n, wc)
			}
			if l.B.Scheme() == ibverbx.DQPLB && wc.ByteLen != n {
				t.Fatalf("size %d: %d bytes reported", n, wc.ByteLen)
			}
			vqptest.MustEqual(t, fmt.Sprint("size ", n), l.B.Buf[:n], l.A.Buf[:n])
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
		}
	})
}

func TestSendArrivesInThePostedReceive(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for i, n := range []uint64{1, 1000, 5000} {
			vqptest.FillRandom(l.A.Buf, n)
			if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 7, Local: l.B.MR.Slice(100, 6000)}); err != nil {
				t.Fatal(err)
			}
			wr := ibverbx.SendWR{ID: uint64(i), Opcode: verbs.OpSendWithImm, Local: l.A.MR.Slice(0, n),
				Imm: 9}
			l.A.Send(t, wr)
			wc := l.B.Wait(t, 1)[0]
			if wc.ID != 7 || wc.Status != 0 || wc.Opcode != verbs.WCRecv || wc.ByteLen != n || wc.Imm != 9 {
				t.Fatalf("%+v", wc)
			}
			vqptest.MustEqual(t, "payload", l.B.Buf[100:100+n], l.A.Buf[:n])
			if wc := l.A.Wait(t, 1)[0]; wc.Opcode != verbs.WCSend || wc.Status != 0 {
				t.Fatalf("%+v", wc)
			}
		}
	})
}

func TestAtomics(t *testing.T) {
	vqptest.EachMode(t, 1, func(t *testing.T, l *vqptest.Link) { // fragments of one byte do not cut an atomic
		for i, c := range []struct {
			op                    verbs.Opcode
			before, operand, swap uint64
			after                 uint64
		}{
			{verbs.OpAtomicFetchAdd, 40, 2, 0, 42},
			{verbs.OpAtomicCmpAndSwp, 42, 42, 7, 7},
			{verbs.OpAtomicCmpAndSwp, 7, 42, 99, 7},
		} {
			binary.NativeEndian.PutUint64(l.B.Buf[16:], c.before)
			l.A.Send(t, ibverbx.SendWR{ID: uint64(i), Opcode: c.op, Local: l.A.MR.Slice(32, 8),
				Remote: l.A.Peer.Slice(16, 8), CompareAdd: c.operand, Swap: c.swap})
			if wc := l.A.Wait(t, 1)[0]; wc.Status != 0 || wc.Opcode != c.op.WCOpcode() {
				t.Fatalf("%+v", wc)
			}
			if got := binary.NativeEndian.Uint64(l.A.Buf[32:]); got != c.before {
				t.Errorf("%v brought %d, want %d", c.op, got, c.before)
			}
			if got := binary.NativeEndian.Uint64(l.B.Buf[16:]); got != c.after {
				t.Errorf("%v left %d, want %d", c.op, got, c.after)
			}
		}
	})
}

// Buffers of 100, 200 and 150 bytes, fragments of 150. A fragment crosses buffer
// boundaries with several elements, so there are three fragments and not four.
func TestScatterGatherFragmentsCrossBufferBoundaries(t *testing.T) {
	vqptest.EachMode(t, 150, func(t *testing.T, l *vqptest.Link) {
		vqptest.FillRandom(l.A.Buf, 1)
		pieces := []ibverbx.Segment{l.A.MR.Slice(1000, 100), l.A.MR.Slice(5000, 0), l.A.MR.Slice(3000, 200),
			l.A.MR.Slice(2000, 150)}
		want := append(append(append([]byte(nil), l.A.Buf[1000:1100]...), l.A.Buf[3000:3200]...),
			l.A.Buf[2000:2150]...)
		l.A.Send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: pieces, Remote: l.A.Peer.At(64)})
		clear(pieces) // the caller may reuse the list
		if wc := l.A.Wait(t, 1)[0]; wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
		vqptest.MustEqual(t, "gathered", l.B.Buf[64:64+450], want)
		if l.A.DataRails() > 1 {
			var fragments uint64
			for _, r := range l.A.Stats().Rails {
				fragments += r.Fragments
			}
			if fragments != 3 {
				t.Errorf("%d fragments, want 3", fragments)
			}
		}
		// A read scatters it back.
		vqptest.FillRandom(l.B.Buf, 2)
		l.A.Send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMARead,
			SGL: []ibverbx.Segment{l.A.MR.Slice(0, 333), l.A.MR.Slice(700, 17)}, Remote: l.A.Peer.At(10)})
		if wc := l.A.Wait(t, 1)[0]; wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
		vqptest.MustEqual(t, "scattered 1", l.A.Buf[:333], l.B.Buf[10:343])
		vqptest.MustEqual(t, "scattered 2", l.A.Buf[700:717], l.B.Buf[343:360])
	})
}

// More pieces than a work request may have: fragments end early.
func TestScatterGatherOfManySmallPieces(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		if l.A.DataRails() == 1 {
			t.Skip("a single queue pair does not fragment")
		}
		vqptest.FillRandom(l.A.Buf, 1)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			var pieces []ibverbx.Segment
			var want []byte
			for i := range uint64(37) {
				pieces = append(pieces, l.A.MR.Slice(i*100, 7+i))
				want = append(want, l.A.Buf[i*100:i*100+7+i]...)
			}
			clear(l.B.Buf)
			l.B.ExpectRecv(t, 5)
			l.A.Send(t, ibverbx.SendWR{ID: 1, Opcode: op, SGL: pieces, Remote: l.A.Peer.At(0)})
			if wc := l.A.Wait(t, 1)[0]; wc.Status != 0 || wc.ByteLen != uint64(len(want)) {
				t.Fatalf("%+v", wc)
			}
			if op == verbs.OpRDMAWriteWithImm {
				vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
			}
			vqptest.MustEqual(t, op.String(), l.B.Buf[:len(want)], want)
		}
	})
}

func TestInlinePayloadMayBeReusedAtOnce(t *testing.T) {
	vqptest.EachMode(t, 10, func(t *testing.T, l *vqptest.Link) {
		payload := []byte("the quick brown fox jumps over")
		p := append([]byte(nil), payload...)
		l.B.ExpectRecv(t, 1)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			l.A.Send(t, ibverbx.SendWR{ID: 1, Opcode: op, Flags: verbs.SendInline, Inline: p,
				Remote: l.A.Peer.At(0)})
			clear(p)
			vqptest.IDs(t, l.A.Wait(t, 1), verbs.StatusSuccess)
			vqptest.MustEqual(t, op.String(), l.B.Buf[:len(payload)], payload)
			copy(p, payload)
			clear(l.B.Buf)
		}
		vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
		if _, err := l.B.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.B.MR.Slice(0, 64)}); err != nil {
			t.Fatal(err)
		}
		l.A.Send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: p})
		vqptest.IDs(t, l.B.Wait(t, 1), verbs.StatusSuccess)
		vqptest.MustEqual(t, "send", l.B.Buf[:len(payload)], payload)
	})
}

// A fence makes a read see an earlier write over several rails.
func TestFenceOrdersAReadBehindAWrite(t *testing.T) {
	vqptest.EachMode(t, 1000, func(t *testing.T, l *vqptest.Link) {
		for i := range 50 {
			vqptest.FillRandom(l.A.Buf[:20000], uint64(i))
			l.A.Send(t, l.A.Write(verbs.OpRDMAWrite, 1, 0, 20000))
			read := ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendFence,
				Local: l.A.MR.Slice(50000, 20000), Remote: l.A.Peer.Slice(0, 20000)}
			l.A.Send(t, read)
			vqptest.IDs(t, l.A.Wait(t, 2), verbs.StatusSuccess)
			vqptest.MustEqual(t, "read back", l.A.Buf[50000:70000], l.A.Buf[:20000])
		}
	})
}
