package ibverbx_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// sizes are around every boundary of fragments of 1000 bytes.
var sizes = []uint64{1, 8, 999, 1000, 1001, 1999, 2000, 2001, 15999, 16000, 16001, 100000}

func TestWriteArrivesWholeAtEverySize(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for i, n := range sizes {
			fillRandom(l.a.buf, n)
			clear(l.b.buf)
			l.a.send(t, l.a.write(verbs.OpRDMAWrite, uint64(i), 3, n))
			wc := l.a.wait(t, 1)[0]
			if wc.ID != uint64(i) || wc.Status != 0 || wc.Opcode != verbs.WCRDMAWrite ||
				wc.QPNum != l.a.Num() {
				t.Fatalf("size %d: %+v", n, wc)
			}
			mustEqual(t, fmt.Sprint("size ", n), l.b.buf[3:3+n], l.a.buf[3:3+n])
			if l.b.buf[2] != 0 || l.b.buf[3+n] != 0 {
				t.Fatalf("size %d: a byte beside the target was written", n)
			}
		}
	})
}

func TestReadReturnsEveryByteAtEverySize(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		fillRandom(l.b.buf, 1)
		for i, n := range sizes {
			clear(l.a.buf)
			l.a.send(t, l.a.write(verbs.OpRDMARead, uint64(i), 5, n))
			if wc := l.a.wait(t, 1)[0]; wc.Status != 0 || wc.Opcode != verbs.WCRDMARead {
				t.Fatalf("size %d: %+v", n, wc)
			}
			mustEqual(t, fmt.Sprint("size ", n), l.a.buf[5:5+n], l.b.buf[5:5+n])
		}
	})
}

func TestWriteWithImmNotifiesWithImmediateAndLength(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for i, n := range sizes {
			fillRandom(l.a.buf, n)
			l.b.expectRecv(t, uint64(100+i))
			wr := l.a.write(verbs.OpRDMAWriteWithImm, uint64(i), 0, n)
			wr.Imm = 0xdead0000 + uint32(i)
			l.a.send(t, wr)
			wc := l.b.wait(t, 1)[0]
			if wc.ID != uint64(100+i) || wc.Status != 0 || wc.Opcode != verbs.WCRecvRDMAWithImm ||
				wc.Flags&verbs.WCWithImm == 0 || wc.Imm != wr.Imm {
				t.Fatalf("size %d: %+v", n, wc)
			}
			if l.b.Scheme() == ibverbx.DQPLB && wc.ByteLen != n {
				t.Fatalf("size %d: %d bytes reported", n, wc.ByteLen)
			}
			mustEqual(t, fmt.Sprint("size ", n), l.b.buf[:n], l.a.buf[:n])
			ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
		}
	})
}

func TestSendArrivesInThePostedReceive(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for i, n := range []uint64{1, 1000, 5000} {
			fillRandom(l.a.buf, n)
			if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 7, Local: l.b.mr.Slice(100, 6000)}); err != nil {
				t.Fatal(err)
			}
			wr := ibverbx.SendWR{ID: uint64(i), Opcode: verbs.OpSendWithImm, Local: l.a.mr.Slice(0, n),
				Imm: 9}
			l.a.send(t, wr)
			wc := l.b.wait(t, 1)[0]
			if wc.ID != 7 || wc.Status != 0 || wc.Opcode != verbs.WCRecv || wc.ByteLen != n || wc.Imm != 9 {
				t.Fatalf("%+v", wc)
			}
			mustEqual(t, "payload", l.b.buf[100:100+n], l.a.buf[:n])
			if wc := l.a.wait(t, 1)[0]; wc.Opcode != verbs.WCSend || wc.Status != 0 {
				t.Fatalf("%+v", wc)
			}
		}
	})
}

func TestAtomics(t *testing.T) {
	eachMode(t, 1, func(t *testing.T, l *link) { // fragments of one byte do not cut an atomic
		for i, c := range []struct {
			op                    verbs.Opcode
			before, operand, swap uint64
			after                 uint64
		}{
			{verbs.OpAtomicFetchAdd, 40, 2, 0, 42},
			{verbs.OpAtomicCmpAndSwp, 42, 42, 7, 7},
			{verbs.OpAtomicCmpAndSwp, 7, 42, 99, 7},
		} {
			binary.NativeEndian.PutUint64(l.b.buf[16:], c.before)
			l.a.send(t, ibverbx.SendWR{ID: uint64(i), Opcode: c.op, Local: l.a.mr.Slice(32, 8),
				Remote: l.a.peer.Slice(16, 8), CompareAdd: c.operand, Swap: c.swap})
			if wc := l.a.wait(t, 1)[0]; wc.Status != 0 || wc.Opcode != c.op.WCOpcode() {
				t.Fatalf("%+v", wc)
			}
			if got := binary.NativeEndian.Uint64(l.a.buf[32:]); got != c.before {
				t.Errorf("%v brought %d, want %d", c.op, got, c.before)
			}
			if got := binary.NativeEndian.Uint64(l.b.buf[16:]); got != c.after {
				t.Errorf("%v left %d, want %d", c.op, got, c.after)
			}
		}
	})
}

// Buffers of 100, 200 and 150 bytes, fragments of 150. A fragment crosses buffer
// boundaries with several elements, so there are three fragments and not four.
func TestScatterGatherFragmentsCrossBufferBoundaries(t *testing.T) {
	eachMode(t, 150, func(t *testing.T, l *link) {
		fillRandom(l.a.buf, 1)
		pieces := []ibverbx.Segment{l.a.mr.Slice(1000, 100), l.a.mr.Slice(5000, 0), l.a.mr.Slice(3000, 200),
			l.a.mr.Slice(2000, 150)}
		want := append(append(append([]byte(nil), l.a.buf[1000:1100]...), l.a.buf[3000:3200]...),
			l.a.buf[2000:2150]...)
		l.a.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: pieces, Remote: l.a.peer.At(64)})
		clear(pieces) // the caller may reuse the list
		if wc := l.a.wait(t, 1)[0]; wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
		mustEqual(t, "gathered", l.b.buf[64:64+450], want)
		if l.a.DataRails() > 1 {
			var fragments uint64
			for _, r := range l.a.Stats().Rails {
				fragments += r.Fragments
			}
			if fragments != 3 {
				t.Errorf("%d fragments, want 3", fragments)
			}
		}
		// A read scatters it back.
		fillRandom(l.b.buf, 2)
		l.a.send(t, ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMARead,
			SGL: []ibverbx.Segment{l.a.mr.Slice(0, 333), l.a.mr.Slice(700, 17)}, Remote: l.a.peer.At(10)})
		if wc := l.a.wait(t, 1)[0]; wc.Status != 0 {
			t.Fatalf("%+v", wc)
		}
		mustEqual(t, "scattered 1", l.a.buf[:333], l.b.buf[10:343])
		mustEqual(t, "scattered 2", l.a.buf[700:717], l.b.buf[343:360])
	})
}

// More pieces than a work request may have: fragments end early.
func TestScatterGatherOfManySmallPieces(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		if l.a.DataRails() == 1 {
			t.Skip("a single queue pair does not fragment")
		}
		fillRandom(l.a.buf, 1)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			var pieces []ibverbx.Segment
			var want []byte
			for i := range uint64(37) {
				pieces = append(pieces, l.a.mr.Slice(i*100, 7+i))
				want = append(want, l.a.buf[i*100:i*100+7+i]...)
			}
			clear(l.b.buf)
			l.b.expectRecv(t, 5)
			l.a.send(t, ibverbx.SendWR{ID: 1, Opcode: op, SGL: pieces, Remote: l.a.peer.At(0)})
			if wc := l.a.wait(t, 1)[0]; wc.Status != 0 || wc.ByteLen != uint64(len(want)) {
				t.Fatalf("%+v", wc)
			}
			if op == verbs.OpRDMAWriteWithImm {
				ids(t, l.b.wait(t, 1), verbs.StatusSuccess)
			}
			mustEqual(t, op.String(), l.b.buf[:len(want)], want)
		}
	})
}

func TestInlinePayloadMayBeReusedAtOnce(t *testing.T) {
	eachMode(t, 10, func(t *testing.T, l *link) {
		payload := []byte("the quick brown fox jumps over")
		p := append([]byte(nil), payload...)
		l.b.expectRecv(t, 1)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			l.a.send(t, ibverbx.SendWR{ID: 1, Opcode: op, Flags: verbs.SendInline, Inline: p,
				Remote: l.a.peer.At(0)})
			clear(p)
			ids(t, l.a.wait(t, 1), verbs.StatusSuccess)
			mustEqual(t, op.String(), l.b.buf[:len(payload)], payload)
			copy(p, payload)
			clear(l.b.buf)
		}
		ids(t, l.b.wait(t, 1), verbs.StatusSuccess)
		if _, err := l.b.PostRecv(ibverbx.RecvWR{ID: 2, Local: l.b.mr.Slice(0, 64)}); err != nil {
			t.Fatal(err)
		}
		l.a.send(t, ibverbx.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendInline, Inline: p})
		ids(t, l.b.wait(t, 1), verbs.StatusSuccess)
		mustEqual(t, "send", l.b.buf[:len(payload)], payload)
	})
}

// A fence makes a read see an earlier write over several rails.
func TestFenceOrdersAReadBehindAWrite(t *testing.T) {
	eachMode(t, 1000, func(t *testing.T, l *link) {
		for i := range 50 {
			fillRandom(l.a.buf[:20000], uint64(i))
			l.a.send(t, l.a.write(verbs.OpRDMAWrite, 1, 0, 20000))
			read := ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendFence,
				Local: l.a.mr.Slice(50000, 20000), Remote: l.a.peer.Slice(0, 20000)}
			l.a.send(t, read)
			ids(t, l.a.wait(t, 2), verbs.StatusSuccess)
			mustEqual(t, "read back", l.a.buf[50000:70000], l.a.buf[:20000])
		}
	})
}
