package verbstest

import (
	"errors"
	"testing"

	"ibverbx/verbs"
)

func testLimits(t *testing.T, s *suite) {
	s.run(t, "send_queue", s.sendQueueFull)
	s.run(t, "send_queue_one_by_one", s.sendQueueFullOneByOne)
	s.run(t, "receive_queue", s.recvQueueFull)
	s.run(t, "invalid_in_a_batch", s.invalidInBatch)
	s.run(t, "empty_batch", s.emptyBatch)
	s.run(t, "completion_queue", s.cqDepth)
	s.run(t, "small_polls", s.smallPolls)
	s.run(t, "overrun", s.cqOverrun)
}

// blocked makes a pair whose sends wait: the peer has posted no receive, and the requester retries
// forever.
func (s *suite) blocked(t *testing.T) *Pair {
	t.Helper()
	return s.pair(t, PairConfig{Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
}

// unblock posts receives until every one of count sends has completed, and checks them: IDs from 0,
// in order, once.
func (p *Pair) unblock(t *testing.T, count int) {
	t.Helper()
	chunk := p.B.QP.Cap().MaxRecvWR
	for done := 0; done < count; {
		k := min(chunk, count-done)
		for i := range k {
			p.B.PostRecv(verbs.RecvWR{ID: uint64(done + i), SGL: p.B.Buf.SGL(0, 8)})
		}
		p.A.wantOK(p.A.WaitSend(k), ids(uint64(done), k)...)
		p.B.wantOK(p.B.WaitRecv(k), ids(uint64(done), k)...)
		done += k
	}
	p.A.wantNone(p.A.SendCQ)
}

func (p *Pair) sends(first, count int) []verbs.SendWR {
	wrs := make([]verbs.SendWR, count)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(first + i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled,
			SGL: p.A.Buf.SGL(0, 8)}
	}
	return wrs
}

// sendQueueFull posts more than fits in one batch. The NIC decides how many it accepts, at least as
// many as its Cap says; exactly that many complete.
func (s *suite) sendQueueFull(t *testing.T) {
	p := s.blocked(t)
	room := p.A.QP.Cap().MaxSendWR
	for round := range 3 {
		n, err := p.A.QP.PostSend(p.sends(0, 8*room))
		wantErr(t, "a batch of eight times the queue", err, verbs.ErrQueueFull)
		if n < room || n == 8*room {
			t.Fatalf("round %d: accepted %d, the queue holds %d", round, n, room)
		}
		if !verbs.IsTransient(err) {
			t.Errorf("a full queue is not transient: %v", err)
		}
		again, err := p.A.QP.PostSend(p.sends(n, 1))
		if again != 0 {
			t.Fatalf("accepted %d more", again)
		}
		wantErr(t, "one more", err, verbs.ErrQueueFull)
		p.unblock(t, n)
	}
}

func (s *suite) sendQueueFullOneByOne(t *testing.T) {
	p := s.blocked(t)
	room := p.A.QP.Cap().MaxSendWR
	n := 0
	for ; n <= 8*room; n++ {
		k, err := p.A.QP.PostSend(p.sends(n, 1))
		if k == 1 && err == nil {
			continue
		}
		if k != 0 {
			t.Fatalf("accepted %d with %v", k, err)
		}
		wantErr(t, "one too many", err, verbs.ErrQueueFull)
		break
	}
	if n < room || n > 8*room {
		t.Fatalf("accepted %d, the queue holds %d", n, room)
	}
	p.unblock(t, n)
	p.A.PostSend(p.sends(0, room)...) // there is room again
	p.unblock(t, room)
}

// recvQueueFull does the same on the receive queue, which fills without any traffic.
func (s *suite) recvQueueFull(t *testing.T) {
	p := s.pair(t, PairConfig{Cap: verbs.QPCap{MaxRecvWR: 16}})
	room := p.B.QP.Cap().MaxRecvWR
	recvs := func(first, count int) []verbs.RecvWR {
		wrs := make([]verbs.RecvWR, count)
		for i := range wrs {
			wrs[i] = verbs.RecvWR{ID: uint64(first + i), SGL: p.B.Buf.SGL(0, 8)}
		}
		return wrs
	}
	for range 3 {
		n, err := p.B.QP.PostRecv(recvs(0, 8*room))
		wantErr(t, "a batch of eight times the queue", err, verbs.ErrQueueFull)
		if n < room || n == 8*room {
			t.Fatalf("accepted %d, the queue holds %d", n, room)
		}
		again, err := p.B.QP.PostRecv(recvs(n, 1))
		if again != 0 {
			t.Fatalf("accepted %d more", again)
		}
		wantErr(t, "one more", err, verbs.ErrQueueFull)
		for i := range n {
			p.A.PostSend(p.sends(i, 1)...)
			p.A.wantOK(p.A.WaitSend(1), uint64(i))
		}
		p.B.wantOK(p.B.WaitRecv(n), ids(0, n)...)
		p.B.wantNone(p.B.RecvCQ)
	}
}

// invalidInBatch puts an invalid request into the middle of a batch: the requests before it are
// accepted, it and those after it have no effect.
func (s *suite) invalidInBatch(t *testing.T) {
	for name, spoil := range map[string]func(*Pair, *verbs.SendWR){
		"opcode":   func(_ *Pair, wr *verbs.SendWR) { wr.Opcode = 99 },
		"elements": func(p *Pair, wr *verbs.SendWR) { wr.SGL = make([]verbs.SGE, p.A.QP.Cap().MaxSendSGE+1) },
		"inline": func(p *Pair, wr *verbs.SendWR) {
			wr.SGL, wr.Flags, wr.Inline = nil, wr.Flags|verbs.SendInline,
				make([]byte, p.A.QP.Cap().MaxInline+1)
		},
	} {
		s.run(t, name, func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			Fill(p.A.Buf.B, 1)
			wrs := make([]verbs.SendWR, 7)
			for i := range wrs {
				wrs[i] = verbs.SendWR{
					ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
					SGL:        p.A.Buf.SGL(8*i, 8),
					RemoteAddr: p.B.Buf.At(8 * i), RKey: p.B.Buf.RKey(),
				}
			}
			spoil(p, &wrs[3])
			n, err := p.A.QP.PostSend(wrs)
			if n != 3 {
				t.Errorf("accepted %d, want 3", n)
			}
			wantErr(t, "the batch", err, verbs.ErrInvalid)
			p.A.wantOK(p.A.WaitSend(3), 0, 1, 2)
			p.A.probe(100)
			want := make([]byte, 56)
			copy(want, p.A.Buf.B[:24])
			wantBytes(t, "the target", p.B.Buf.B[:56], want)
			// Refused requests can be posted later.
			p.A.PostSend(wrs[4:]...)
			p.A.wantOK(p.A.WaitSend(3), 4, 5, 6)
		})
	}
	s.run(t, "receive", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		wrs := []verbs.RecvWR{{ID: 1}, {ID: 2, SGL: make([]verbs.SGE, p.A.QP.Cap().MaxRecvSGE+1)}, {ID: 3}}
		n, err := p.B.QP.PostRecv(wrs)
		if n != 1 {
			t.Errorf("accepted %d, want 1", n)
		}
		wantErr(t, "the batch", err, verbs.ErrInvalid)
		p.B.PostRecv(verbs.RecvWR{ID: 4})
		for range 2 {
			p.A.PostSend(verbs.SendWR{ID: 1, Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		}
		p.A.wantOK(p.A.WaitSend(2), 1, 1)
		p.B.wantOK(p.B.WaitRecv(2), 1, 4)
	})
}

func (s *suite) emptyBatch(t *testing.T) {
	p := s.pair(t, PairConfig{})
	if n, err := p.A.QP.PostSend(nil); n != 0 || err != nil {
		t.Errorf("send of nothing: %d, %v", n, err)
	}
	if n, err := p.A.QP.PostRecv(nil); n != 0 || err != nil {
		t.Errorf("receive of nothing: %d, %v", n, err)
	}
	if n, err := p.A.SendCQ.Poll(nil); n != 0 || err != nil {
		t.Errorf("poll into nothing: %d, %v", n, err)
	}
	p.A.wantNone(p.A.SendCQ)
}

// cqDepth leaves as many completions in the queue as its Depth says.
func (s *suite) cqDepth(t *testing.T) {
	p := s.pair(t, PairConfig{Depth: 48, Cap: verbs.QPCap{MaxSendWR: 256}})
	depth := min(p.A.SendCQ.Depth(), p.A.QP.Cap().MaxSendWR)
	p.B.PostRecv(verbs.RecvWR{ID: 1})
	wrs := make([]verbs.SendWR, depth)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	}
	wrs[depth-1].Opcode = verbs.OpSend
	p.A.PostSend(wrs...)
	// When the peer has received the last message, all have been carried out, and none was polled.
	p.B.wantOK(p.B.WaitRecv(1), 1)
	p.A.wantOK(p.A.WaitSend(depth), ids(0, depth)...)
	p.A.probe(9999)
}

// smallPolls polls a few completions at a time.
func (s *suite) smallPolls(t *testing.T) {
	p := s.pair(t, PairConfig{})
	wrs := make([]verbs.SendWR, 20)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	}
	p.A.PostSend(wrs...)
	var got []verbs.WC
	wcs := make([]verbs.WC, 4)
	p.A.Until(func() bool {
		const canary = 0xabcdef
		wcs[3].ID = canary
		n, err := p.A.SendCQ.Poll(wcs[:3])
		if n > 3 || err != nil || wcs[3].ID != canary {
			t.Fatalf("polled %d into a slice of 3: %v", n, err)
		}
		got = append(got, wcs[:n]...)
		return len(got) >= 20
	})
	p.A.wantOK(got, ids(0, 20)...)
	p.A.wantNone(p.A.SendCQ)
}

// cqOverrun polls a queue that has overrun: first the completions that it held, and then the error.
func (s *suite) cqOverrun(t *testing.T) {
	c := watch(t, s.a)
	p := s.overrun(t)
	// The queue may not be polled before it has overrun.
	p.A.wantAsync(c, verbs.EventCQErr)
	if s.env.Strict {
		p.A.wantState(verbs.StateErr) // a queue pair that can no longer report stops; in rdma_rxe it goes on
	}
	var err error
	wcs := make([]verbs.WC, 4)
	if !p.A.Until(func() bool { _, err = p.A.SendCQ.Poll(wcs); return err != nil }) {
		t.Fatal("a poll after the overrun reports nothing")
	}
	if !errors.Is(err, verbs.ErrOverrun) {
		t.Errorf("poll after the overrun: %v, want %v", err, verbs.ErrOverrun)
	}
}

// overrun posts requests with more completions than the first side's queue for sends holds.
func (s *suite) overrun(t *testing.T) *Pair {
	t.Helper()
	p := s.pair(t, PairConfig{Depth: 16, Cap: verbs.QPCap{MaxSendWR: 256}})
	count := p.A.SendCQ.Depth() + 10
	if count > p.A.QP.Cap().MaxSendWR {
		t.Skipf("a completion queue of %d entries is deeper than the send queue", p.A.SendCQ.Depth())
	}
	wrs := make([]verbs.SendWR, count)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	}
	p.A.PostSend(wrs...)
	return p
}
