package nic

import (
	"testing"

	"ibverbx/verbs"
)

// A Modify stores the attributes that its mask names, each by itself, and no others.
func TestAttributesAreStored(t *testing.T) {
	r := newRig(t)
	all := verbs.QPAttr{Access: verbs.AccessRemoteRead, PKeyIndex: 3, Port: 1, PathMTU: verbs.MTU2048,
		AH: verbs.AH{DGID: verbs.GID{7}, Port: 1, Global: true, SL: 2}, Timeout: 11, RetryCount: 5,
		RNRRetry: 6, RQPSN: 77, MaxRDAtomic: 2, MinRNRTimer: 9, SQPSN: 88, MaxDestRDAtomic: 3,
		DestQPNum: 99}
	whole := verbs.QPAttr{}
	for _, c := range []struct {
		mask verbs.QPAttrMask
		want verbs.QPAttr
	}{
		{0, verbs.QPAttr{}},
		{verbs.QPAttrState, verbs.QPAttr{}},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: all.Access}},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{PKeyIndex: all.PKeyIndex}},
		{verbs.QPAttrPort, verbs.QPAttr{Port: all.Port}},
		{verbs.QPAttrAV, verbs.QPAttr{AH: all.AH}},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: all.PathMTU}},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: all.Timeout}},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: all.RetryCount}},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: all.RNRRetry}},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: all.RQPSN}},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: all.MaxRDAtomic}},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: all.MinRNRTimer}},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: all.SQPSN}},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: all.MaxDestRDAtomic}},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: all.DestQPNum}},
	} {
		r.qp.Attr = verbs.QPAttr{}
		if Apply(&r.qp.Attr, &all, c.mask); r.qp.Attr != c.want {
			t.Errorf("%v: stored\n%+v, want\n%+v", c.mask, r.qp.Attr, c.want)
		}
		r.qp.Attr = whole
		Apply(&r.qp.Attr, &all, c.mask)
		whole = r.qp.Attr
	}
	if whole != all {
		t.Errorf("one after the other:\n%+v, want\n%+v", whole, all)
	}
}

// Every value is accepted up to its limit, and refused beyond in words that name it.
func TestAttributesAtTheirLimits(t *testing.T) {
	r := newRig(t)
	r.dev.GIDs = 2
	ah := verbs.AH{DGID: verbs.GID{1}, Port: 1, Global: true}
	with := func(change func(ah *verbs.AH)) verbs.QPAttr {
		changed := ah
		change(&changed)
		return verbs.QPAttr{AH: changed}
	}
	for _, c := range []struct {
		mask verbs.QPAttrMask
		attr verbs.QPAttr
		says string // "" where it is accepted
	}{
		{verbs.QPAttrPort, verbs.QPAttr{Port: 1}, ""},
		{verbs.QPAttrPort, verbs.QPAttr{Port: 0}, "port 0, there is only port 1"},
		{verbs.QPAttrPort, verbs.QPAttr{Port: 2}, "port 2, there is only port 1"},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{}, ""},
		{verbs.QPAttrPKeyIndex, verbs.QPAttr{PKeyIndex: 1}, "partition key index 1"},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: verbs.AccessAll}, ""},
		{verbs.QPAttrAccess, verbs.QPAttr{Access: verbs.AccessAll << 8}, "access"},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU256}, ""},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU4096}, ""},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: 0}, "path MTU code 0"},
		{verbs.QPAttrPathMTU, verbs.QPAttr{PathMTU: verbs.MTU4096 + 1}, "path MTU code 6"},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: 1<<24 - 1}, ""},
		{verbs.QPAttrDestQPNum, verbs.QPAttr{DestQPNum: 1 << 24},
			"queue pair 0x1000000 has more than 24 bits"},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: 1<<24 - 1}, ""},
		{verbs.QPAttrRQPSN, verbs.QPAttr{RQPSN: 1 << 24}, "receive PSN 0x1000000"},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: 1<<24 - 1}, ""},
		{verbs.QPAttrSQPSN, verbs.QPAttr{SQPSN: 1 << 24}, "send PSN 0x1000000"},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: 4}, ""},
		{verbs.QPAttrMaxRDAtomic, verbs.QPAttr{MaxRDAtomic: 5}, "5 reads outstanding, the NIC allows 4"},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: 4}, ""},
		{verbs.QPAttrMaxDestRDAtomic, verbs.QPAttr{MaxDestRDAtomic: 5}, "5 reads of the peer outstanding"},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: 31}, ""},
		{verbs.QPAttrMinRNRTimer, verbs.QPAttr{MinRNRTimer: 32}, "RNR timer code 32"},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: 31}, ""},
		{verbs.QPAttrTimeout, verbs.QPAttr{Timeout: 32}, "timeout code 32"},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: 7}, ""},
		{verbs.QPAttrRetryCount, verbs.QPAttr{RetryCount: 8}, "8 retries, at most 7"},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: 7}, ""},
		{verbs.QPAttrRNRRetry, verbs.QPAttr{RNRRetry: 8}, "8 RNR retries, at most 7"},
		{verbs.QPAttrAV, verbs.QPAttr{AH: ah}, ""},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.SGIDIndex = 1 }), ""},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.SGIDIndex = 2 }),
			"source GID index 2, the table has 2"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.Global = false }), "not global"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.Port = 2 }), "port 2 in the address handle"},
		{verbs.QPAttrAV, with(func(ah *verbs.AH) { ah.DGID = verbs.GID{} }), "no destination GID"},
	} {
		got := r.dev.checkAttr(&c.attr, c.mask)
		if (got == "") != (c.says == "") {
			t.Errorf("%v of %+v: %q, want %q", c.mask, c.attr, got, c.says)
		}
		if c.says != "" {
			refused(t, c.mask.String(), r.qp.Err("modify qp", verbs.ErrInvalid, got), verbs.ErrInvalid,
				c.says)
		}
		// What the mask does not name is not looked at.
		if got := r.dev.checkAttr(&c.attr, verbs.QPAttrState); got != "" {
			t.Errorf("%+v, not named: %q", c.attr, got)
		}
	}
}

// A Modify is refused of a queue pair that is closed or whose NIC is gone, of a step that there is
// none, and of wrong values. One that names no state leaves the queue pair in its own.
func TestModify(t *testing.T) {
	r := newRig(t)
	toInit := verbs.QPAttr{State: verbs.StateInit, Port: 1}
	const initMask = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccess
	refuse := func(what string, attr verbs.QPAttr, mask verbs.QPAttrMask, want error, says string) {
		t.Helper()
		next, err := r.qp.CheckModify(&attr, mask)
		refused(t, what, err, want, says)
		if next != 0 {
			t.Errorf("%s: refused, and yet to %v", what, next)
		}
	}
	refuse("from RESET to RTS", verbs.QPAttr{State: verbs.StateRTS}, verbs.QPAttrState, verbs.ErrState, "")
	refuse("port 2", verbs.QPAttr{State: verbs.StateInit, Port: 2}, initMask, verbs.ErrInvalid, "port 2")
	r.qp.Closed = true
	refuse("closed", toInit, initMask, verbs.ErrClosed, "")
	r.qp.Closed, r.dev.Gone = false, true
	refuse("gone", toInit, initMask, verbs.ErrDeviceGone, "")
	r.dev.Gone = false
	if next, err := r.qp.CheckModify(&toInit, initMask); next != verbs.StateInit || err != nil {
		t.Errorf("to INIT: %v, %v", next, err)
	}
	r.ready()
	attr := verbs.QPAttr{State: verbs.StateErr, MinRNRTimer: 3}
	if next, err := r.qp.CheckModify(&attr, verbs.QPAttrMinRNRTimer); next != verbs.StateRTS || err != nil {
		t.Errorf("a new timer in RTS: %v, %v", next, err)
	}
}

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
