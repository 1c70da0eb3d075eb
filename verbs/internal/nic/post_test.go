package nic

import (
	"testing"

	"ibverbx/verbs"
)

// The driver refuses requests that the queue was not made for, each at its limit: pieces, inline
// bytes, opcodes, flags, room.
func TestRequestsAtTheirLimits(t *testing.T) {
	r := newRig(t) // 16 requests, 2 pieces, 16 bytes inline
	r.ready()
	sge := func(n int) []verbs.SGE { return make([]verbs.SGE, n) }
	const inline = verbs.SendInline
	for _, c := range []struct {
		wr   verbs.SendWR
		says string // "" where it is accepted
	}{
		{verbs.SendWR{Opcode: verbs.OpSend}, ""},
		{verbs.SendWR{Opcode: verbs.OpSend, SGL: sge(2)}, ""},
		{verbs.SendWR{Opcode: verbs.OpSend, SGL: sge(3)}, "3 scatter-gather elements, the queue takes 2"},
		{verbs.SendWR{Opcode: 99}, "99"},
		{verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendFence | verbs.SendSignaled |
			verbs.SendSolicited}, ""},
		{verbs.SendWR{Opcode: verbs.OpSend, Flags: 1 << 30}, "flags"},
		{verbs.SendWR{Opcode: verbs.OpSend, Flags: inline, Inline: make([]byte, 16)}, ""},
		{verbs.SendWR{Opcode: verbs.OpSend, Flags: inline, Inline: make([]byte, 17)},
			"17 bytes inline, the queue takes 16"},
		{verbs.SendWR{Opcode: verbs.OpSend, Flags: inline, SGL: sge(1)}, "no scatter-gather list"},
		{verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: inline}, ""},
		{verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: inline}, "inline"},
		{verbs.SendWR{Opcode: verbs.OpAtomicFetchAdd, Flags: inline}, "inline"},
		{verbs.SendWR{Opcode: verbs.OpAtomicCmpAndSwp, Flags: inline}, "inline"},
		{verbs.SendWR{Opcode: verbs.OpRDMARead}, ""},
		{verbs.SendWR{Opcode: verbs.OpAtomicFetchAdd}, ""},
	} {
		err := r.qp.CheckSend(&c.wr)
		if c.says == "" {
			must(t, err)
		} else {
			refused(t, c.says, err, verbs.ErrInvalid, c.says)
		}
	}
	must(t, r.qp.CheckRecv(&verbs.RecvWR{SGL: sge(2)}))
	refused(t, "pieces", r.qp.CheckRecv(&verbs.RecvWR{SGL: sge(3)}), verbs.ErrInvalid,
		"3 scatter-gather elements, the queue takes 2")
	for range 16 {
		r.recv(verbs.RecvWR{})
	}
	refused(t, "room", r.qp.CheckRecv(&verbs.RecvWR{}), verbs.ErrQueueFull, "the queue holds 16")
}

// What is in the queues stays what it was while they grow, wherever their rings begin.
func TestQueuesGrow(t *testing.T) {
	for ended := range uint64(5) { // requests that came and went before
		s, r := newSendQueue(32, 2, 8), newRecvQueue(32, 2)
		for seq := range ended {
			s.Push(&verbs.SendWR{ID: 1000})
			s.free(seq)
			r.Push(&verbs.RecvWR{ID: 1000})
			r.free(seq)
		}
		const n = 32
		sges := func(i uint64) []verbs.SGE {
			return []verbs.SGE{{Addr: i, Length: uint32(i), LKey: 1},
				{Addr: 2 * i, Length: 5, LKey: 2}}[:1+i%2]
		}
		inlined := func(i uint64) []byte { return []byte{1, byte(i), 3, 4, 5, 6, 7, byte(2 * i)}[:4+i%5] }
		for i := range uint64(n) {
			if s.full() || r.full() {
				t.Fatalf("full with %d", i)
			}
			wr := verbs.SendWR{ID: i, SGL: sges(i)}
			if i >= 4 && i%3 == 0 { // the memory for them is made when the first one comes
				wr = verbs.SendWR{ID: i, Flags: verbs.SendInline, Inline: inlined(i)}
			}
			s.Push(&wr)
			r.Push(&verbs.RecvWR{ID: i, SGL: sges(i)})
		}
		if !s.full() || !r.full() {
			t.Error("not full")
		}
		for i := range uint64(n) {
			seq := ended + i
			var length uint64
			for j, e := range sges(i) {
				length += uint64(e.Length)
				if got := r.SGL(seq)[j]; got != e || len(r.SGL(seq)) != len(sges(i)) {
					t.Errorf("receive %d of %d: piece %d is %+v, want %+v", i, ended, j, got, e)
				}
			}
			if slot := r.At(seq); slot.ID != i || slot.Length != length {
				t.Errorf("receive %d of %d: %+v, want %d bytes", i, ended, slot, length)
			}
			if i >= 4 && i%3 == 0 {
				if got, want := s.Inlined(seq), inlined(i); string(got) != string(want) {
					t.Errorf("send %d of %d: inline % x, want % x", i, ended, got, want)
				}
				length = uint64(len(inlined(i)))
			} else {
				for j, e := range sges(i) {
					if got := s.SGL(seq)[j]; got != e || len(s.SGL(seq)) != len(sges(i)) {
						t.Errorf("send %d of %d: piece %d is %+v, want %+v", i, ended, j, got, e)
					}
				}
			}
			if slot := s.At(seq); slot.ID != i || slot.Length != length {
				t.Errorf("send %d of %d: %+v, want %d bytes", i, ended, slot, length)
			}
		}
	}
}

// A completion queue begins small and grows to its depth, whatever came and went before.
func TestCompletionQueuesGrow(t *testing.T) {
	r := newRig(t)
	r.dev.Limits.MaxCQE = 1 << 10
	for _, before := range []int{0, 5, minRing} {
		var cq CQ
		must(t, cq.Init(&r.dev, nil, verbs.CQConfig{Depth: 1 << 10}))
		one := make([]verbs.WC, 1)
		for range before {
			cq.Add(&Completion{QP: r.qp})
			if n, err := cq.Poll(one); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		small := len(cq.ring)
		const n = 3 * minRing
		for i := range n {
			cq.Add(&Completion{QP: r.qp, WC: verbs.WC{ID: uint64(i)}})
		}
		if small != minRing || len(cq.ring) != 4*minRing {
			t.Errorf("rings of %d and, for %d completions, %d", small, n, len(cq.ring))
		}
		wcs := make([]verbs.WC, n+1)
		got, err := cq.Poll(wcs)
		if got != n || err != nil {
			t.Fatalf("polled %d, %v", got, err)
		}
		for i := range n {
			if wcs[i].ID != uint64(i) {
				t.Fatalf("place %d has %d", i, wcs[i].ID)
			}
		}
		must(t, cq.Close())
	}
}
