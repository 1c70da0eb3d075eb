package verbstest

import (
	"slices"
	"testing"

	"ibverbx/verbs"
)

// pieces cuts memory of a buffer into uneven, unaligned elements that do not touch, in descending
// order of address.
func pieces(b *Buffer, lengths ...int) (sgl []verbs.SGE, parts [][]byte) {
	at := len(b.B)
	for _, n := range lengths {
		at -= n + 13
		sgl = append(sgl, b.SGE(at, n))
		parts = append(parts, b.B[at:at+n])
	}
	return sgl, parts
}

func testSGL(t *testing.T, s *suite) {
	gather, scatter := []int{5, 1, 4091, 17}, []int{3, 4000, 8, 103} // 4114 bytes each
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead} {
		s.run(t, op.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			const total = 4114
			wr := verbs.SendWR{ID: 1, Opcode: op, Flags: verbs.SendSignaled}
			var source, target [][]byte
			switch op {
			case verbs.OpSend:
				Fill(p.A.Buf.B, 9)
				wr.SGL, source = pieces(p.A.Buf, gather...)
				into, parts := pieces(p.B.Buf, scatter...)
				target = parts
				p.B.PostRecv(verbs.RecvWR{ID: 2, SGL: into})
			case verbs.OpRDMAWrite:
				Fill(p.A.Buf.B, 9)
				wr.SGL, source = pieces(p.A.Buf, gather...)
				wr.RemoteAddr, wr.RKey = p.B.Buf.At(3), p.B.Buf.RKey()
				target = [][]byte{p.B.Buf.B[3 : 3+total]}
			case verbs.OpRDMARead:
				Fill(p.B.Buf.B, 9)
				wr.SGL, target = pieces(p.A.Buf, scatter...)
				wr.RemoteAddr, wr.RKey = p.B.Buf.At(3), p.B.Buf.RKey()
				source = [][]byte{p.B.Buf.B[3 : 3+total]}
			}
			p.A.PostSend(wr)
			p.A.wantOK(p.A.WaitSend(1), 1)
			if op == verbs.OpSend {
				wcs := p.B.WaitRecv(1)
				p.B.wantOK(wcs, 2)
				p.B.wantReceived(s, wcs[0], verbs.WCRecv, total, false, 0, p.A)
			}
			wantBytes(t, "scattered", slices.Concat(target...), slices.Concat(source...))
			var sum int
			into := p.B.Buf.B
			if op == verbs.OpRDMARead {
				into = p.A.Buf.B
			}
			for _, b := range into {
				if b != 0 {
					sum++
				}
			}
			var want int
			for _, b := range slices.Concat(target...) {
				if b != 0 {
					want++
				}
			}
			if sum != want {
				t.Errorf("%d bytes were written between the pieces", sum-want)
			}
		})
	}

	s.run(t, "receive_partly_used", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		Fill(p.A.Buf.B, 1)
		into, parts := pieces(p.B.Buf, 10, 20, 30)
		p.B.PostRecv(verbs.RecvWR{ID: 2, SGL: into})
		p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: p.A.Buf.SGL(0, 15)})
		p.A.wantOK(p.A.WaitSend(1), 1)
		wcs := p.B.WaitRecv(1)
		p.B.wantOK(wcs, 2)
		p.B.wantReceived(s, wcs[0], verbs.WCRecv, 15, false, 0, p.A)
		want := make([]byte, 60)
		copy(want, p.A.Buf.B[:15])
		wantBytes(t, "scattered", slices.Concat(parts...), want)
	})

	s.run(t, "several_regions", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		// Sending from a region needs no right.
		x, y := p.A.Register(100, 0), p.A.Register(100, verbs.AccessLocalWrite)
		Fill(x.B, 1)
		Fill(y.B, 2)
		p.A.PostSend(verbs.SendWR{
			ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
			SGL:        []verbs.SGE{x.SGE(0, 100), y.SGE(0, 100)},
			RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
		})
		p.A.wantOK(p.A.WaitSend(1), 1)
		wantBytes(t, "gathered", p.B.Buf.B[:200], slices.Concat(x.B, y.B))
	})

	s.run(t, "too_many", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		c := p.A.QP.Cap()
		many := func(n int) []verbs.SGE { return slices.Repeat(p.A.Buf.SGL(0, 8), n) }
		n, err := p.A.QP.PostSend([]verbs.SendWR{{
			ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: many(c.MaxSendSGE + 1),
			RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
		}})
		if n != 0 {
			t.Errorf("%d accepted", n)
		}
		wantErr(t, "send with an element too many", err, verbs.ErrInvalid)
		n, err = p.A.QP.PostRecv([]verbs.RecvWR{{ID: 2, SGL: many(c.MaxRecvSGE + 1)}})
		if n != 0 {
			t.Errorf("%d accepted", n)
		}
		wantErr(t, "receive with an element too many", err, verbs.ErrInvalid)
		p.A.PostSend(verbs.SendWR{
			ID: 3, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: many(c.MaxSendSGE),
			RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
		})
		p.A.wantOK(p.A.WaitSend(1), 3)
	})
}

func testInline(t *testing.T, s *suite) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMAWrite,
		verbs.OpRDMAWriteWithImm} {
		s.run(t, op.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			for _, size := range []int{0, 1, 8, p.A.QP.Cap().MaxInline} {
				clear(p.B.Buf.B)
				payload := make([]byte, size)
				Fill(payload, byte(size)+1)
				want := slices.Clone(payload)
				p.B.PostRecv(verbs.RecvWR{ID: 2, SGL: p.B.Buf.SGL(0, p.A.QP.Cap().MaxInline)})
				p.A.PostSend(
					verbs.SendWR{
						ID: 1, Opcode: op, Flags: verbs.SendSignaled | verbs.SendInline, Inline: payload,
						Imm:        5,
						RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
					},
				)
				clear(payload) // the post has returned, so it may change
				p.A.wantOK(p.A.WaitSend(1), 1)
				if !op.IsSend() && !op.HasImm() {
					p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWriteWithImm,
						Flags: verbs.SendSignaled, Imm: 5})
					p.A.wantOK(p.A.WaitSend(1), 1)
				}
				p.B.wantOK(p.B.WaitRecv(1), 2)
				wantBytes(t, "inline", p.B.Buf.B[:size+1], append(want, 0))
			}
		})
	}
	s.run(t, "too_long", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		n, err := p.A.QP.PostSend([]verbs.SendWR{{
			ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled | verbs.SendInline,
			Inline: slices.Repeat([]byte{1}, p.A.QP.Cap().MaxInline+1), RemoteAddr: p.B.Buf.Addr(),
			RKey: p.B.Buf.RKey(),
		}})
		if n != 0 {
			t.Errorf("%d accepted", n)
		}
		wantErr(t, "a byte more than MaxInline", err, verbs.ErrInvalid)
		p.A.probe(2)
		wantBytes(t, "the target", p.B.Buf.B[:8], make([]byte, 8))
	})
}
