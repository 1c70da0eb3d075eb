package verbstest

import (
	"fmt"
	"testing"

	"ibverbx/verbs"
)

func testErrors(t *testing.T, s *suite) {
	s.run(t, "longer_than_the_receive", s.tooLong)
	s.run(t, "receiver_not_ready", s.receiverNotReady)
	s.run(t, "receiver_late", s.receiverLate)
	s.run(t, "peer_gone", s.peerGone)
	s.run(t, "only_the_pair_concerned", s.onlyThePair)
}

// tooLong sends a message that does not fit.
func (s *suite) tooLong(t *testing.T) {
	for _, size := range []int{101, 4096, 20000} {
		s.run(t, fmt.Sprint(size), func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			Fill(p.A.Buf.B, 1)
			p.B.PostRecv(verbs.RecvWR{ID: 1, SGL: p.B.Buf.SGL(0, 100)},
				verbs.RecvWR{ID: 2, SGL: p.B.Buf.SGL(0, 100)})
			// IBTA 9.9.3: NAK invalid request; the receiver reports a Local Length Error. Versions
			// of rdma_rxe report a Remote Invalid Request Error there too, or a Local QP Operation
			// Error (Linux 6.1).
			p.A.failsAndFlushes(t, verbs.SendWR{Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, size)},
				s.allowed(verbs.StatusRemInvReqErr, verbs.StatusRemOpErr))
			p.B.wantStatus(p.B.WaitRecv(1), s.allowed(verbs.StatusLocLenErr, verbs.StatusRemInvReqErr,
				verbs.StatusLocQPOpErr), 1)
			// The part that fits may have been written, but nothing beyond it.
			wantBytes(t, "behind the receive", p.B.Buf.B[100:], make([]byte, len(p.B.Buf.B)-100))
			p.B.wantState(verbs.StateErr)
			p.B.wantFlushed(p.B.WaitRecv(1), 2)
		})
	}
}

// receiverNotReady sends to a peer that has posted no receive.
func (s *suite) receiverNotReady(t *testing.T) {
	for _, retries := range []uint8{0, 1} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
			s.run(t, fmt.Sprintf("%v_%d_retries", op, retries), func(t *testing.T) {
				p := s.pair(t, PairConfig{Adjust: func(_ verbs.QP,
					attr *verbs.QPAttr) {
					attr.RNRRetry = retries
				}})
				p.A.failsAndFlushes(t, verbs.SendWR{
					Opcode: op, SGL: p.A.Buf.SGL(0, 8), RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
				}, []verbs.Status{verbs.StatusRNRRetryExcErr})
			})
		}
	}
}

// receiverLate retries forever, and the receive is posted later.
func (s *suite) receiverLate(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWriteWithImm} {
		s.run(t, op.String(), func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			Fill(p.A.Buf.B, 1)
			p.A.PostSend(
				verbs.SendWR{
					ID: 1, Opcode: op, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 100),
					RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
				},
				verbs.SendWR{
					ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 100),
					RemoteAddr: p.B.Buf.At(200), RKey: p.B.Buf.RKey(),
				})
			// A round trip the other way: by then the message has arrived, or is about to. Either
			// way it waits.
			p.B.probe(9)
			p.A.wantNone(p.A.SendCQ)
			p.B.PostRecv(verbs.RecvWR{ID: 3, SGL: p.B.Buf.SGL(0, 100)})
			p.A.wantOK(p.A.WaitSend(2), 1, 2)
			p.B.wantOK(p.B.WaitRecv(1), 3)
			wantBytes(t, "the message", p.B.Buf.B[:100], p.A.Buf.B[:100])
			wantBytes(t, "the write behind it", p.B.Buf.B[200:300], p.A.Buf.B[:100])
		})
	}
}

// peerGone sends to a queue pair that does not answer. Timeout code 12 and six retries are
// nominally 0.1 s; NICs have their own minimum, up to seconds. A live software peer needs a
// processor to answer: if its process does not run for a while, it misses one of many retries, but
// not all. In an emulated machine the peer gets 67 ms each time.
func (s *suite) peerGone(t *testing.T) {
	for name, goAway := range map[string]func(*testing.T, *End){
		"closed": func(t *testing.T, e *End) {
			if err := e.QP.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"reset": func(t *testing.T, e *End) { e.Modify(verbs.StateReset) },
		"err":   func(t *testing.T, e *End) { e.Modify(verbs.StateErr) },
	} {
		for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead,
			verbs.OpAtomicFetchAdd} {
			s.run(t, name+"_"+op.String(), func(t *testing.T) {
				if s.env.Idle == nil {
					t.Parallel() // mostly it waits
				}
				p := s.alivePair(t)
				goAway(t, p.B)
				p.A.PostRecv(verbs.RecvWR{ID: 11})
				p.A.PostSend(
					verbs.SendWR{
						ID: 1, Opcode: op, SGL: p.A.Buf.SGL(0, 8), RemoteAddr: p.B.Buf.Addr(),
						RKey: p.B.Buf.RKey(),
					},
					verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
				wcs := p.A.WaitSend(2)
				p.A.wantStatus(wcs[:1], []verbs.Status{verbs.StatusRetryExcErr}, 1)
				p.A.wantFlushed(wcs[1:], 2)
				p.A.wantState(verbs.StateErr)
				p.A.wantFlushed(p.A.WaitRecv(1), 11)
				wantBytes(t, "the peer's memory", p.B.Buf.B[:8], make([]byte, 8))
			})
		}
	}
}

// alivePair makes a pair with that timeout, which has worked.
func (s *suite) alivePair(t *testing.T) *Pair {
	for try := 1; ; try++ {
		p := s.pair(t, PairConfig{Adjust: func(_ verbs.QP, attr *verbs.QPAttr) {
			attr.Timeout, attr.RetryCount = 12, 6
			if s.env.Timeout > usualTimeout {
				attr.Timeout, attr.RetryCount = 14, 2
			}
		}})
		p.A.PostSend(verbs.SendWR{ID: 9, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
		wcs := p.A.WaitSend(1)
		if wcs[0].Status != verbs.StatusRetryExcErr || try == 5 { // a busy machine fails some
			p.A.wantOK(wcs, 9)
			return p
		}
	}
}

// onlyThePair checks that the failure of one queue pair does not affect another between the same
// devices, even on the same completion queues.
func (s *suite) onlyThePair(t *testing.T) {
	a, b := NewNode(t, s.env, s.a), NewNode(t, s.env, s.b)
	p1 := NewPair(a, b, PairConfig{})
	p2 := NewPair(a, b, PairConfig{Unconnected: true})
	// The second pair's requester shares the first one's completion queues.
	p2.A.SendCQ, p2.A.RecvCQ = p1.A.SendCQ, p1.A.RecvCQ
	p2.A.QP = a.NewQP(verbs.QPConfig{SendCQ: p1.A.SendCQ, RecvCQ: p1.A.RecvCQ})
	p2.Connect()
	p1.A.failsAndFlushes(t, verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, SGL: p1.A.Buf.SGL(0, 8), RemoteAddr: p1.B.Buf.At(len(p1.B.Buf.B)),
		RKey: p1.B.Buf.RKey(),
	}, []verbs.Status{verbs.StatusRemAccessErr})
	p2.B.PostRecv(verbs.RecvWR{ID: 1, SGL: p2.B.Buf.SGL(0, 8)})
	p2.A.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
		SGL: p2.A.Buf.SGL(0, 8)})
	p2.A.wantOK(p2.A.WaitSend(1), 2)
	p2.B.wantOK(p2.B.WaitRecv(1), 1)
	if got := p2.A.QP.State(); got != verbs.StateRTS {
		t.Errorf("the other queue pair is in %v", got)
	}
}

// Flush: what becomes of outstanding requests when a queue pair goes to ERR, is reset or closed.

func testFlush(t *testing.T, s *suite) {
	s.run(t, "modify_to_err", s.flushOnErr)
	s.run(t, "receives_only", s.flushReceives)
	s.run(t, "reset_and_reuse", s.resetAndReuse)
	s.run(t, "close_with_work", s.closeWithWork)
}

// flushOnErr has receives outstanding, and sends, signaled and not, that wait for a receive.
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
	// A second move to ERR flushes nothing twice: the next completion is that of the next request.
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
// them anew. RESET forgets work without completions. Completions from before the reset may still be
// in the completion queue (rdma_rxe leaves them, mlx5 removes them), so they are drained first.
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

// closeWithWork closes everything while requests are outstanding on both sides; then the memory
// belongs to the caller.
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
		// Nothing writes here any more; otherwise the race detector reports it.
		clear(e.Buf.B)
	}
	wantBytes(t, "memory after close", p.B.Buf.B, make([]byte, len(p.B.Buf.B)))
}
