package verbstest

import (
	"testing"

	"ibverbx/verbs"
)

// Flush: what becomes of outstanding requests when a queue pair goes to ERR, is reset or closed.

func testFlush(t *testing.T, s *suite) {
	s.run(t, "modify_to_err", s.flushOnErr)
	s.run(t, "receives_only", s.flushReceives)
	s.run(t, "reset_and_reuse", s.resetAndReuse)
	s.run(t, "close_with_work", s.closeWithWork)
}

// flushOnErr has sends outstanding that wait for a receive, signaled and not, and receives.
func (s *suite) flushOnErr(t *testing.T) {
	p := s.pair(t, PairConfig{})
	p.A.PostRecv(verbs.RecvWR{ID: 50, SGL: p.A.Buf.SGL(0, 8)}, verbs.RecvWR{ID: 51})
	p.A.probe(1)
	wrs := make([]verbs.SendWR, 30)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(100 + i), Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, 8)}
		if i%3 != 0 {
			wrs[i].Flags = verbs.SendSignaled
		}
	}
	p.A.PostSend(wrs...)
	p.A.PostRecv(verbs.RecvWR{ID: 52})
	p.A.Modify(verbs.StateErr)
	p.A.wantFlushed(p.A.WaitSend(30), ids(100, 30)...)
	p.A.wantFlushed(p.A.WaitRecv(3), 50, 51, 52)
	p.A.wantState(verbs.StateErr)
	// Once more to ERR flushes nothing twice: the next completion is that of the next request.
	p.A.Modify(verbs.StateErr)
	p.A.PostSend(verbs.SendWR{ID: 200, Opcode: verbs.OpSend})
	p.A.wantFlushed(p.A.WaitSend(1), 200)
	p.A.wantNone(p.A.SendCQ)
	p.A.wantNone(p.A.RecvCQ)
	p.B.wantNone(p.B.RecvCQ)
}

// flushReceives goes to ERR from INIT and from RTR.
func (s *suite) flushReceives(t *testing.T) {
	for _, state := range []verbs.QPState{verbs.StateInit, verbs.StateRTR} {
		s.run(t, state.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{Unconnected: true})
			s.raise(t, p, state)
			for _, id := range ids(1, 10) {
				p.A.PostRecv(verbs.RecvWR{ID: id, SGL: p.A.Buf.SGL(0, 8)})
			}
			p.A.Modify(verbs.StateErr)
			p.A.wantFlushed(p.A.WaitRecv(10), ids(1, 10)...)
		})
	}
}

// resetAndReuse resets a queue pair with work outstanding and one that has failed, and connects
// them anew. RESET forgets work without completions. Some of before the reset may still lie in the
// completion queue (rdma_rxe leaves them, mlx5 removes them), so they are drained first.
func (s *suite) resetAndReuse(t *testing.T) {
	p := s.pair(t, PairConfig{})
	for round := range uint64(3) {
		Fill(p.A.Buf.B, byte(round))
		clear(p.B.Buf.B)
		p.B.PostRecv(verbs.RecvWR{ID: 10 + round, SGL: p.B.Buf.SGL(0, 64)})
		// The other way: the message takes the new receive, not the one that the reset forgot.
		p.A.PostRecv(verbs.RecvWR{ID: 30 + round})
		p.B.PostSend(verbs.SendWR{ID: 40 + round, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		p.A.wantOK(p.A.WaitRecv(1), 30+round)
		p.B.wantOK(p.B.WaitSend(1), 40+round)
		p.A.PostRecv(verbs.RecvWR{ID: 900}) // outstanding at the reset
		p.A.PostSend(
			verbs.SendWR{ID: 20 + round, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
				SGL: p.A.Buf.SGL(0, 64)},
			// waits for a receive
			verbs.SendWR{ID: 901, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 64)})
		p.A.wantOK(p.A.WaitSend(1), 20+round)
		p.B.wantOK(p.B.WaitRecv(1), 10+round)
		wantBytes(t, "the message", p.B.Buf.B[:64], p.A.Buf.B[:64])
		if round == 1 {
			p.A.Modify(verbs.StateErr)
			p.A.wantFlushed(p.A.WaitSend(1), 901)
			p.A.wantFlushed(p.A.WaitRecv(1), 900)
		}
		p.A.Modify(verbs.StateReset)
		p.B.Modify(verbs.StateReset)
		if a, b := p.A.QP.State(), p.B.QP.State(); a != verbs.StateReset || b != verbs.StateReset {
			t.Fatalf("states %v and %v after the reset", a, b)
		}
		p.A.Drain()
		p.B.Drain()
		p.Connect()
	}
	// The whole queue is free again.
	for range p.A.QP.Cap().MaxSendWR {
		p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	}
	p.A.WaitSend(p.A.QP.Cap().MaxSendWR)
	p.A.wantNone(p.A.SendCQ)
}

// closeWithWork closes everything while requests are outstanding on both sides; then the memory is
// the caller's.
func (s *suite) closeWithWork(t *testing.T) {
	p := s.pair(t, PairConfig{BufSize: 4 << 20})
	p.B.PostRecv(verbs.RecvWR{ID: 1, SGL: p.B.Buf.SGL(0, 1<<20)})
	wrs := make([]verbs.SendWR, 20)
	for i := range wrs {
		wrs[i] = verbs.SendWR{
			ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 2<<20),
			RemoteAddr: p.B.Buf.At(1 << 20), RKey: p.B.Buf.RKey(),
		}
	}
	wrs[10].Opcode, wrs[11].Opcode = verbs.OpSend, verbs.OpRDMARead
	wrs[10].SGL = p.A.Buf.SGL(0, 1<<20)
	p.A.PostSend(wrs...)
	for _, e := range []*End{p.A, p.B} {
		for _, x := range []interface{ Close() error }{e.QP, e.Buf, e.SendCQ, e.RecvCQ, e.PD} {
			if err := x.Close(); err != nil {
				t.Errorf("close %T: %v", x, err)
			}
		}
		// Nothing writes here any more; the race detector would report it.
		clear(e.Buf.B)
	}
	wantBytes(t, "memory after close", p.B.Buf.B, make([]byte, len(p.B.Buf.B)))
}
