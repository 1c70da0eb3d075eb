package verbstest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"

	"ibverbx/verbs"
)

// sizes are the message sizes to try: none, less than a word, a page, more than 64 KiB by one, 1
// MiB.
var sizes = []int{0, 1, 7, 8, 4096, 65537, 1 << 20}

const (
	margin    = 64   // bytes on both sides of a target that must not change
	untouched = 0xee // the value of the bytes in the margins
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
		const access = verbs.AccessAll | verbs.AccessRelaxedOrdering // relaxed ordering is optional
		p.A.Buf, p.B.Buf = p.A.Register(10000, access), p.B.Register(10000, access)
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead} {
			p.transfer(t, s, op, 8000, 3)
		}
	})
	s.run(t, "no_bytes_no_key", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		// IBTA C9-88: the key and address of an empty RDMA request are not checked.
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
	var spare *Buffer // memory of a receive that an RDMA write with immediate consumes
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

func testAtomics(t *testing.T, s *suite) {
	s.run(t, "one_by_one", s.atomicsOneByOne)
	s.run(t, "misaligned", s.atomicMisaligned)
	s.run(t, "concurrent", s.atomicsConcurrent)
}

// word reads and writes the 64-bit words of a buffer as the processor does, which is how a NIC
// treats them.
func word(b []byte, i int) uint64       { return binary.NativeEndian.Uint64(b[8*i:]) }
func setWord(b []byte, i int, v uint64) { binary.NativeEndian.PutUint64(b[8*i:], v) }

func (s *suite) atomicsOneByOne(t *testing.T) {
	const max = ^uint64(0)
	for _, c := range []struct {
		name         string
		op           verbs.Opcode
		before       uint64
		compare, swp uint64
		after        uint64
	}{
		{"add", verbs.OpAtomicFetchAdd, 0x0102030405060708, 0x1000, 0, 0x0102030405061708},
		{"add_wraps", verbs.OpAtomicFetchAdd, max, 2, 0, 1},
		{"add_zero", verbs.OpAtomicFetchAdd, 77, 0, 0, 77},
		{"add_negative", verbs.OpAtomicFetchAdd, 5, max, 0, 4},
		{"swap_hit", verbs.OpAtomicCmpAndSwp, 0x0102030405060708, 0x0102030405060708, max - 1, max - 1},
		{"swap_miss", verbs.OpAtomicCmpAndSwp, 0x0102030405060708, 0x0102030405060709, max - 1,
			0x0102030405060708},
		{"swap_zero", verbs.OpAtomicCmpAndSwp, 0, 0, 9, 9},
	} {
		s.run(t, c.name, func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			Fill(p.A.Buf.B, 3)
			Fill(p.B.Buf.B, 4)
			setWord(p.B.Buf.B, 1, c.before)
			wantA, wantB := slices.Clone(p.A.Buf.B), slices.Clone(p.B.Buf.B)
			setWord(wantA, 2, c.before)
			setWord(wantB, 1, c.after)
			p.A.PostSend(verbs.SendWR{
				ID: 1, Opcode: c.op, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(16, 8),
				RemoteAddr: p.B.Buf.At(8), RKey: p.B.Buf.RKey(), CompareAdd: c.compare, Swap: c.swp,
			})
			wcs := p.A.WaitSend(1)
			p.A.wantOK(wcs, 1)
			if wcs[0].Opcode != c.op.WCOpcode() || wcs[0].ByteLen != 8 {
				t.Errorf("completion of a %v of %d bytes, want %v of 8", wcs[0].Opcode, wcs[0].ByteLen,
					c.op.WCOpcode())
			}
			wantBytes(t, "the requester's memory", p.A.Buf.B, wantA)
			wantBytes(t, "the target", p.B.Buf.B, wantB)
		})
	}
}

// atomicMisaligned uses an address that is not a multiple of 8. IBTA 9.4.5 makes that an invalid
// request; a provider may also refuse it at the post.
func (s *suite) atomicMisaligned(t *testing.T) {
	p := s.pair(t, PairConfig{})
	n, err := p.A.QP.PostSend([]verbs.SendWR{{
		ID: 1, Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 8),
		RemoteAddr: p.B.Buf.At(4), RKey: p.B.Buf.RKey(), CompareAdd: 1,
	}})
	if n == 0 {
		wantErr(t, "post", err, verbs.ErrInvalid)
	} else {
		p.A.wantStatus(p.A.WaitSend(1), []verbs.Status{verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr}, 1)
	}
	wantBytes(t, "the target", p.B.Buf.B[:16], make([]byte, 16))
}

// atomicsConcurrent adds one to the same two words over four connections at once, two in each
// direction. Every value is fetched exactly once, which no lost or doubled addition would allow.
func (s *suite) atomicsConcurrent(t *testing.T) {
	const (
		perQP = 200
		batch = 4
	)
	a, b := NewNode(t, s.env, s.a), NewNode(t, s.env, s.b)
	p1, p2 := NewPair(a, b, PairConfig{}), NewPair(a, b, PairConfig{})
	// A second connection's target is the first one's.
	jobs := []struct {
		from   *End
		target *Buffer
	}{{p1.A, p1.B.Buf}, {p2.A, p1.B.Buf}, {p1.B, p1.A.Buf}, {p2.B, p1.A.Buf}}
	fetched := make([][]uint64, len(jobs))
	var wg sync.WaitGroup
	for i, job := range jobs {
		wg.Go(func() {
			e := job.from
			for range perQP / batch {
				for k := range batch {
					n, err := e.QP.PostSend([]verbs.SendWR{{
						ID: uint64(k), Opcode: verbs.OpAtomicFetchAdd, Flags: verbs.SendSignaled,
						SGL:        e.Buf.SGL(1024+8*k, 8),
						RemoteAddr: job.target.Addr(), RKey: job.target.RKey(), CompareAdd: 1,
					}})
					if n != 1 {
						t.Errorf("post: %v", err)
						return
					}
				}
				for got := 0; got < batch; {
					var wcs [batch]verbs.WC
					n := 0
					if !e.Until(func() bool { n, _ = e.SendCQ.Poll(wcs[:]); return n > 0 }) {
						t.Error("no completion")
						return
					}
					for _, wc := range wcs[:n] {
						if wc.Status != verbs.StatusSuccess || wc.ID != uint64(got) {
							t.Errorf("request %d: %v, want request %d", wc.ID, wc.Status, got)
							return
						}
						fetched[i] = append(fetched[i], word(e.Buf.B, 128+got))
						got++
					}
				}
			}
		})
	}
	wg.Wait()
	for side := range 2 {
		all := slices.Concat(fetched[2*side], fetched[2*side+1])
		slices.Sort(all)
		if !slices.Equal(all, ids(0, 2*perQP)) {
			t.Errorf("word %d: the fetched values are not each of 0 to %d once", side, 2*perQP-1)
		}
		if got := word(jobs[2*side].target.B, 0); got != 2*perQP {
			t.Errorf("word %d: sum %d, want %d", side, got, 2*perQP)
		}
	}
}
