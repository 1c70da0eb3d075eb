package verbstest

import (
	"fmt"
	"testing"

	"ibverbx/verbs"
)

// sizes are the message sizes to try: none, less than a word, a page, more than 64 KiB by one, 1
// MiB.
var sizes = []int{0, 1, 7, 8, 4096, 65537, 1 << 20}

const (
	margin    = 64   // bytes on both sides of a target that must not change
	untouched = 0xee // what they hold
)

func testOps(t *testing.T, s *suite) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite,
		verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
		s.run(t, op.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{BufSize: 1<<20 + 2*margin})
			for _, size := range sizes {
				p.transfer(t, s, op, size, 0x01020304)
			}
			for _, imm := range []uint32{0, 1, 0x80000000, 0xffffffff} {
				if op.HasImm() {
					p.transfer(t, s, op, 32, imm)
				}
			}
			back := &Pair{A: p.B, B: p.A, cfg: p.cfg}
			back.transfer(t, s, op, 4096, 7)
		})
	}
	s.run(t, "relaxed_ordering", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		const access = verbs.AccessAll | verbs.AccessRelaxedOrdering // a provider without it leaves it out
		p.A.Buf, p.B.Buf = p.A.Register(10000, access), p.B.Register(10000, access)
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			p.transfer(t, s, op, 8000, 3)
		}
	})
	s.run(t, "no_bytes_no_key", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		// IBTA C9-88: of an RDMA request for no bytes neither key nor address is looked at.
		p.B.PostRecv(verbs.RecvWR{ID: 4})
		p.A.PostSend(
			verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RKey: 0xdeadbeef,
				RemoteAddr: 12345},
			verbs.SendWR{ID: 2, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RKey: 0xdeadbeef,
				RemoteAddr: 12345},
			verbs.SendWR{ID: 3, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: 77},
		)
		p.A.wantOK(p.A.WaitSend(3), 1, 2, 3)
		wcs := p.B.WaitRecv(1)
		p.B.wantOK(wcs, 4)
		p.B.wantReceived(s, wcs[0], verbs.WCRecvRDMAWithImm, 0, true, 77, p.A)
	})
	s.run(t, "receive_without_memory", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		p.B.PostRecv(verbs.RecvWR{ID: 5})
		p.A.PostSend(verbs.SendWR{ID: 6, Opcode: verbs.OpSendWithImm, Imm: 3, Flags: verbs.SendSignaled})
		p.A.wantOK(p.A.WaitSend(1), 6)
		wcs := p.B.WaitRecv(1)
		p.B.wantOK(wcs, 5)
		p.B.wantReceived(s, wcs[0], verbs.WCRecv, 0, true, 3, p.A)
	})
}

// transfer moves size bytes from A to B, or for a read from B to A, and checks memory and
// completions.
func (p *Pair) transfer(t *testing.T, s *suite, op verbs.Opcode, size int, imm uint32) {
	t.Helper()
	what := fmt.Sprintf("%v of %d bytes", op, size)
	src, dst := p.A.Buf, p.B.Buf
	if op == verbs.OpRDMARead {
		src, dst = dst, src
	}
	Fill(src.B, byte(size)+byte(imm)+1)
	for i := range dst.B {
		dst.B[i] = untouched
	}
	wr := verbs.SendWR{ID: 100 + uint64(size), Opcode: op, Flags: verbs.SendSignaled,
		SGL: p.A.Buf.SGL(margin, size), Imm: imm}
	if !op.IsSend() {
		wr.RemoteAddr, wr.RKey = p.B.Buf.At(margin), p.B.Buf.RKey()
	}
	receives := op.IsSend() || op.HasImm()
	var spare *Buffer // what a receive names that an RDMA write with immediate consumes
	if receives {
		into := dst.SGL(margin, size)
		if !op.IsSend() {
			spare = p.B.Register(256, verbs.AccessLocalWrite)
			into = spare.SGL(0, 256)
		}
		p.B.PostRecv(verbs.RecvWR{ID: 200, SGL: into})
	}

	p.A.PostSend(wr)
	wcs := p.A.WaitSend(1)
	p.A.wantOK(wcs, wr.ID)
	if wcs[0].Opcode != op.WCOpcode() {
		t.Errorf("%s: completion of a %v", what, wcs[0].Opcode)
	}
	if op == verbs.OpRDMARead && wcs[0].ByteLen != uint32(size) {
		t.Errorf("%s: the completion says %d bytes", what, wcs[0].ByteLen)
	}
	if receives {
		wcs := p.B.WaitRecv(1)
		p.B.wantOK(wcs, 200)
		opcode := verbs.WCRecv
		if !op.IsSend() {
			opcode = verbs.WCRecvRDMAWithImm
			wantBytes(t, what+": the memory of the receive", spare.B, make([]byte, 256))
		}
		p.B.wantReceived(s, wcs[0], opcode, size, op.HasImm(), imm, p.A)
	}

	want := make([]byte, len(dst.B))
	for i := range want {
		want[i] = untouched
	}
	copy(want[margin:margin+size], src.B[margin:])
	wantBytes(t, what, dst.B, want)
}

// wantReceived checks a successful receive completion.
func (e *End) wantReceived(s *suite, wc verbs.WC, op verbs.WCOpcode, size int, withImm bool, imm uint32,
	from *End) {
	e.T.Helper()
	if wc.Opcode != op || !wc.Opcode.IsRecv() || wc.ByteLen != uint32(size) {
		e.T.Errorf("completion of a %v with %d bytes, want %v with %d", wc.Opcode, wc.ByteLen, op, size)
	}
	if got := wc.Flags&verbs.WCWithImm != 0; got != withImm || withImm && wc.Imm != imm {
		e.T.Errorf("immediate %t %#x, want %t %#x", got, wc.Imm, withImm, imm)
	}
	// ibv_poll_cq(3) leaves the source to datagrams; rdma_rxe reports none on a connection.
	if s.env.Strict && wc.SrcQP != from.QP.Num() {
		e.T.Errorf("source queue pair %d, want %d", wc.SrcQP, from.QP.Num())
	}
}
