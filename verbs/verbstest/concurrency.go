package verbstest

import (
	"sync"
	"testing"

	"ibverbx/verbs"
)

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
