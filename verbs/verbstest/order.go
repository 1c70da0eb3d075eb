package verbstest

import (
	"sync"
	"testing"

	"ibverbx/verbs"
)

func testSignaling(t *testing.T, s *suite) {
	write := func(p *Pair, id uint64, flags verbs.SendFlags) verbs.SendWR {
		return verbs.SendWR{
			ID: id, Opcode: verbs.OpRDMAWrite, Flags: flags, SGL: p.A.Buf.SGL(0, 8),
			RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(),
		}
	}
	s.run(t, "unsignaled", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		p.A.PostSend(write(p, 1, 0), write(p, 2, verbs.SendSignaled), write(p, 3, 0), write(p, 4, 0),
			write(p, 5, verbs.SendSignaled))
		p.A.wantOK(p.A.WaitSend(2), 2, 5)
		p.A.wantNone(p.A.SendCQ)
	})
	s.run(t, "signal_all", func(t *testing.T) {
		p := s.pair(t, PairConfig{SignalAll: true})
		p.A.PostSend(write(p, 1, 0), write(p, 2, verbs.SendSignaled), write(p, 3, 0))
		p.A.wantOK(p.A.WaitSend(3), 1, 2, 3)
	})
	s.run(t, "unsignaled_receives_complete", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		p.B.PostRecv(verbs.RecvWR{ID: 1, SGL: p.B.Buf.SGL(0, 8)}, verbs.RecvWR{ID: 2})
		p.A.PostSend(
			verbs.SendWR{ID: 1, Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, 8)},
			verbs.SendWR{ID: 2, Opcode: verbs.OpRDMAWriteWithImm},
		)
		p.B.wantOK(p.B.WaitRecv(2), 1, 2)
		p.A.probe(3)
	})
	s.run(t, "unsignaled_failure_completes", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		bad := write(p, 2, 0)
		stale := p.B.Register(64, verbs.AccessAll)
		bad.RKey, bad.RemoteAddr = stale.RKey(), stale.Addr()
		if err := stale.Close(); err != nil {
			t.Fatal(err)
		}
		p.A.PostSend(write(p, 1, 0), bad, write(p, 3, 0))
		wcs := p.A.WaitSend(2)
		p.A.wantStatus(wcs[:1], []verbs.Status{verbs.StatusRemAccessErr}, 2)
		p.A.wantFlushed(wcs[1:], 3)
	})
	s.run(t, "many_unsignaled", func(t *testing.T) {
		// Every signaled completion frees the slots up to it: go round the queue four times.
		p := s.pair(t, PairConfig{Cap: verbs.QPCap{MaxSendWR: 16}})
		for i := range uint64(8) {
			for range 7 {
				p.A.PostSend(write(p, 99, 0))
			}
			p.A.PostSend(write(p, i, verbs.SendSignaled))
			p.A.wantOK(p.A.WaitSend(1), i)
		}
	})
}

func testOrdering(t *testing.T, s *suite) {
	s.run(t, "mixed_1000", s.mixed)
	s.run(t, "write_then_send", s.writeThenSend)
	s.run(t, "fence", s.fence)
}

// mixed posts a thousand requests of all kinds and sizes, signaled and not, and expects the
// completions of each queue in posting order.
func (s *suite) mixed(t *testing.T) {
	const total, batch = 1000, 20
	p := s.pair(t, PairConfig{BufSize: 256 << 10})
	// Deterministic and uneven.
	rnd := uint32(12345)
	next := func(n uint32) uint32 { rnd = rnd*1664525 + 1013904223; return (rnd >> 8) % n }
	id := uint64(0)
	for id < total {
		var wrs []verbs.SendWR
		var sent, received []uint64
		for range batch {
			size := int(next(3000))
			if next(16) == 0 {
				size = 20000 + int(next(60000))
			}
			wr := verbs.SendWR{ID: id, Opcode: verbs.Opcode(next(7)), RemoteAddr: p.B.Buf.At(128 << 10),
				RKey: p.B.Buf.RKey(), Imm: uint32(id)}
			if wr.Opcode.IsAtomic() {
				size = 8
			}
			if wr.Opcode.IsSend() || wr.Opcode.HasImm() {
				p.B.PostRecv(verbs.RecvWR{ID: 5000 + id, SGL: p.B.Buf.SGL(0, 100000)})
				received = append(received, 5000+id)
			}
			wr.SGL = p.A.Buf.SGL(0, size)
			if wr.Opcode == verbs.OpRDMARead || wr.Opcode.IsAtomic() {
				wr.SGL = p.A.Buf.SGL(128<<10, size)
			}
			if next(4) != 0 || len(wrs) == batch-1 {
				wr.Flags |= verbs.SendSignaled
				sent = append(sent, id)
			}
			wrs = append(wrs, wr)
			id++
		}
		p.A.PostSend(wrs...)
		p.A.wantOK(p.A.WaitSend(len(sent)), sent...)
		wcs := p.B.WaitRecv(len(received))
		p.B.wantOK(wcs, received...)
		for _, wc := range wcs {
			if wc.Flags&verbs.WCWithImm != 0 && wc.Imm != uint32(wc.ID-5000) {
				t.Errorf("receive %d has the immediate of %d", wc.ID-5000, wc.Imm)
			}
		}
	}
	p.A.wantNone(p.A.SendCQ)
	p.B.wantNone(p.B.RecvCQ)
}

// writeThenSend checks that a receive's completion proves the writes before it.
func (s *suite) writeThenSend(t *testing.T) {
	const size, rounds = 100_000, 50
	p := s.pair(t, PairConfig{BufSize: 2 * size})
	for i := range rounds {
		Fill(p.A.Buf.B, byte(i))
		p.B.PostRecv(verbs.RecvWR{ID: uint64(i)})
		notify := verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		if i%2 != 0 {
			notify.Opcode = verbs.OpRDMAWriteWithImm
		}
		p.A.PostSend(verbs.SendWR{
			ID: 1, Opcode: verbs.OpRDMAWrite, SGL: p.A.Buf.SGL(0, size), RemoteAddr: p.B.Buf.At(size),
			RKey: p.B.Buf.RKey(),
		}, notify)
		p.B.wantOK(p.B.WaitRecv(1), uint64(i))
		wantBytes(t, "written before the message", p.B.Buf.B[size:], p.A.Buf.B[:size])
		p.A.wantOK(p.A.WaitSend(1), 2)
	}
}

// fence reads and, without waiting, sends the data that the read returns.
func (s *suite) fence(t *testing.T) {
	const size = 50_000
	p := s.pair(t, PairConfig{BufSize: 2 * size})
	for i := range 20 {
		Fill(p.B.Buf.B[:size], byte(3*i+1))
		setWord(p.B.Buf.B, 0, uint64(i))
		p.B.PostRecv(verbs.RecvWR{ID: 3, SGL: p.B.Buf.SGL(size, size)})
		p.A.PostSend(
			verbs.SendWR{ID: 1, Opcode: verbs.OpRDMARead, SGL: p.A.Buf.SGL(0, size),
				RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey()},
			verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendFence,
				SGL: p.A.Buf.SGL(0, size)},
		)
		p.A.wantOK(p.A.WaitSend(1), 2)
		p.B.wantOK(p.B.WaitRecv(1), 3)
		wantBytes(t, "read and sent back", p.B.Buf.B[size:], p.B.Buf.B[:size])
	}
	// The same behind an atomic.
	setWord(p.B.Buf.B, 0, 41)
	p.B.PostRecv(verbs.RecvWR{ID: 3, SGL: p.B.Buf.SGL(size, 8)})
	p.A.PostSend(
		verbs.SendWR{ID: 1, Opcode: verbs.OpAtomicFetchAdd, SGL: p.A.Buf.SGL(0, 8),
			RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(), CompareAdd: 1},
		verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendFence,
			SGL: p.A.Buf.SGL(0, 8)},
	)
	p.A.wantOK(p.A.WaitSend(1), 2)
	p.B.wantOK(p.B.WaitRecv(1), 3)
	if fetched, now := word(p.B.Buf.B[size:], 0), word(p.B.Buf.B, 0); fetched != 41 || now != 42 {
		t.Errorf("fetched %d and left %d, want 41 and 42", fetched, now)
	}
}

func testConcurrency(t *testing.T, s *suite) {
	s.run(t, "two_post_one_polls", s.twoPostOnePolls)
	s.run(t, "one_queue_pair", s.postersOnOneQP)
	s.run(t, "create_and_close", s.createWhileBusy)
}

// twoPostOnePolls has a goroutine for each of two queue pairs post, and a third poll the queue they
// share.
func (s *suite) twoPostOnePolls(t *testing.T) {
	const perQP = 500
	a, b := NewNode(t, s.env, s.a), NewNode(t, s.env, s.b)
	p1 := NewPair(a, b, PairConfig{Depth: 2 * perQP})
	p2 := NewPair(a, b, PairConfig{Unconnected: true})
	p2.A.QP = a.NewQP(verbs.QPConfig{SendCQ: p1.A.SendCQ, RecvCQ: p1.A.RecvCQ})
	p2.Connect()
	pairs := []*Pair{p1, p2}
	var wg sync.WaitGroup
	for _, p := range pairs {
		Fill(p.A.Buf.B, byte(p.A.QP.Num()))
		wg.Go(func() {
			for i := 0; i < perQP; {
				wrs := make([]verbs.SendWR, min(7, perQP-i))
				for k := range wrs {
					at := (i + k) * 64
					wrs[k] = verbs.SendWR{
						ID: uint64(i + k), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
						SGL:        p.A.Buf.SGL(at, 64),
						RemoteAddr: p.B.Buf.At(at), RKey: p.B.Buf.RKey(),
					}
				}
				n := 0
				if !p.A.Until(func() bool {
					var err error
					n, err = p.A.QP.PostSend(wrs)
					if err != nil && !verbs.IsTransient(err) {
						t.Errorf("post: %v", err)
						return true
					}
					return n > 0
				}) || n == 0 {
					t.Error("the queue stays full")
					return
				}
				i += n
			}
		})
	}
	next := map[uint32]uint64{}
	for range 2 * perQP {
		wc := a.Wait(p1.A.SendCQ, 1)[0]
		if wc.Status != verbs.StatusSuccess || wc.ID != next[wc.QPNum] {
			t.Fatalf("request %d of queue pair %d: %v, want request %d", wc.ID, wc.QPNum, wc.Status,
				next[wc.QPNum])
		}
		next[wc.QPNum]++
	}
	wg.Wait()
	for _, p := range pairs {
		if next[p.A.QP.Num()] != perQP {
			t.Errorf("queue pair %d: %d completions, want %d", p.A.QP.Num(), next[p.A.QP.Num()], perQP)
		}
		wantBytes(t, "written", p.B.Buf.B[:64*perQP], p.A.Buf.B[:64*perQP])
	}
}

// postersOnOneQP has four goroutines post on one queue pair. Each one's requests stay in order.
func (s *suite) postersOnOneQP(t *testing.T) {
	const posters, each = 4, 100
	p := s.pair(t, PairConfig{Cap: verbs.QPCap{MaxSendWR: 512}})
	var wg sync.WaitGroup
	for i := range posters {
		wg.Go(func() {
			for k := range each {
				wr := verbs.SendWR{ID: uint64(i)<<32 | uint64(k), Opcode: verbs.OpRDMAWrite,
					Flags: verbs.SendSignaled}
				if n, err := p.A.QP.PostSend([]verbs.SendWR{wr}); n != 1 {
					t.Errorf("post: %v", err)
				}
			}
		})
	}
	wg.Wait()
	var next [posters]uint64
	for _, wc := range p.A.WaitSend(posters * each) {
		if i := wc.ID >> 32; wc.Status != verbs.StatusSuccess || uint64(uint32(wc.ID)) != next[i] {
			t.Fatalf("poster %d: request %d with %v, want request %d", i, uint32(wc.ID), wc.Status, next[i])
		} else {
			next[i]++
		}
	}
}

// createWhileBusy makes and closes objects while traffic flows on others.
func (s *suite) createWhileBusy(t *testing.T) {
	a, b := NewNode(t, s.env, s.a), NewNode(t, s.env, s.b)
	p := NewPair(a, b, PairConfig{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 20 {
			cq, err := s.a.CreateCQ(verbs.CQConfig{})
			if err != nil {
				t.Error(err)
				return
			}
			mr, err := a.PD.RegisterMR(make([]byte, 8192), verbs.AccessAll)
			if err != nil {
				t.Error(err)
				return
			}
			qp, err := a.PD.CreateQP(verbs.QPConfig{SendCQ: cq, RecvCQ: cq})
			if err != nil {
				t.Error(err)
				return
			}
			for _, x := range []interface{ Close() error }{qp, mr, cq} {
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for i := range uint64(200) {
		p.A.probe(i)
	}
	wg.Wait()
}

// testAllocs checks that posting and polling allocate nothing once warm.
func testAllocs(t *testing.T, s *suite) {
	p := s.pair(t, PairConfig{})
	send := []verbs.SendWR{
		{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: p.A.Buf.SGL(0, 4096), RemoteAddr: p.B.Buf.Addr(),
			RKey: p.B.Buf.RKey()},
		{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: p.A.Buf.SGL(0, 64)},
	}
	recv := []verbs.RecvWR{{ID: 3, SGL: p.B.Buf.SGL(4096, 64)}}
	var wcs [4]verbs.WC
	var failed bool
	sent, received := 0, 0
	pollSent := func() bool { n, err := p.A.SendCQ.Poll(wcs[:]); sent += n; return sent == 1 || err != nil }
	pollReceived := func() bool {
		n, err := p.B.RecvCQ.Poll(wcs[:])
		received += n
		return received == 1 ||
			err != nil
	}
	once := func() {
		sent, received = 0, 0
		if n, _ := p.B.QP.PostRecv(recv); n != 1 {
			failed = true
		}
		if n, _ := p.A.QP.PostSend(send); n != 2 {
			failed = true
		}
		if !p.A.Until(pollSent) || !p.B.Until(pollReceived) {
			failed = true
		}
	}
	for range 100 {
		once()
	}
	allocs := testing.AllocsPerRun(200, once)
	if failed || wcs[0].Status != verbs.StatusSuccess {
		t.Fatal("the traffic failed")
	}
	if allocs != 0 {
		t.Errorf("%v allocations for two sends, a receive and their completions", allocs)
	}
}
