package verbstest

import (
	"slices"
	"testing"

	"ibverbx/verbs"
)

// Memory protection: memory that a key, a range or a right does not cover is neither read nor
// written, the request fails, and so does everything after it.

func testProtection(t *testing.T, s *suite) {
	s.run(t, "local", s.protectLocal)
	s.run(t, "remote", s.protectRemote)
	s.run(t, "receive", s.protectReceive)
	s.run(t, "exact_bounds", s.exactBounds)
	s.run(t, "stale_receive", s.staleReceive)
}

// wrongKey returns a key that no region of this test has.
func wrongKey(key uint32) uint32 { return key ^ 0x5a5a00 }

// violation is one way to name memory that the request must not access.
type violation struct {
	name string
	// pick returns address and key of a buffer for size bytes, given a node of the side that owns
	// the memory.
	pick func(t *testing.T, n *Node, size int) (addr uint64, lkey, rkey uint32, memory []byte)
}

// violations returns all ways. missing is an access without the right in question, and full one
// that has it.
func violations(full, missing verbs.AccessFlags, rightMatters bool) []violation {
	list := []violation{
		{"wrong_key", func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
			b := n.Register(4096, full)
			return b.At(64), wrongKey(b.LKey()), wrongKey(b.RKey()), b.B
		}},
		{"stale_key", func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
			b := n.Register(4096, full)
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			return b.At(64), b.LKey(), b.RKey(), b.B
		}},
		{"past_the_end", func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
			outer := make([]byte, 4096)
			b := n.registerIn(n.PD, outer[1024:2048], full)
			return b.At(1024 - size + 1), b.LKey(), b.RKey(), outer
		}},
		{"before_the_start", func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
			outer := make([]byte, 4096)
			b := n.registerIn(n.PD, outer[1024:2048], full)
			return b.At(-1), b.LKey(), b.RKey(), outer
		}},
		{"other_domain", func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
			b := n.registerIn(n.NewPD(), make([]byte, 4096), full)
			return b.At(64), b.LKey(), b.RKey(), b.B
		}},
	}
	if rightMatters {
		list = append(list, violation{"missing_right", func(t *testing.T, n *Node, size int) (uint64, uint32,
			uint32, []byte) {
			b := n.Register(4096, missing)
			return b.At(64), b.LKey(), b.RKey(), b.B
		}})
	}
	return list
}

// protectLocal misnames the requester's own memory. Messages have one packet: the first packets of
// a longer one may have left before the NIC reaches the bad element.
func (s *suite) protectLocal(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite, verbs.OpRDMARead,
		verbs.OpAtomicFetchAdd} {
		writes := op == verbs.OpRDMARead || op.IsAtomic() // into local memory
		for _, v := range violations(verbs.AccessLocalWrite, 0, writes) {
			s.run(t, op.String()+"_"+v.name, func(t *testing.T) {
				p := s.pair(t, PairConfig{})
				size := 64
				if op.IsAtomic() {
					size = 8
				}
				// An atomic is carried out even if its result cannot be stored.
				if !op.IsAtomic() {
					Fill(p.B.Buf.B, 7)
				}
				addr, lkey, _, memory := v.pick(t, p.A.Node, size)
				Fill(memory, 3)
				mine, theirs := slices.Clone(memory), slices.Clone(p.B.Buf.B)
				p.B.PostRecv(verbs.RecvWR{ID: 50, SGL: p.B.Buf.SGL(0, 64)})
				bad := verbs.SendWR{
					Opcode: op, SGL: []verbs.SGE{{Addr: addr, Length: uint32(size), LKey: lkey}},
					RemoteAddr: p.B.Buf.Addr(), RKey: p.B.Buf.RKey(), CompareAdd: 0,
				}
				// The IBTA says Local Protection Error. rdma_rxe says Local QP Operation Error when
				// the key is unknown, mlx5 says Local Access Error for some.
				allowed := s.allowed(verbs.StatusLocProtErr, verbs.StatusLocQPOpErr, verbs.StatusLocAccessErr)
				if s.env.Strict {
					p.A.failsAndFlushes(t, bad, allowed)
				} else {
					// A local error that meets the acknowledgement of an earlier request may hang
					// the queue pair in rdma_rxe (Linux 6.1): its requester then runs the completer
					// beside the completer's own task.
					p.A.failsAlone(t, bad, allowed)
				}
				wantBytes(t, "the memory misnamed", memory, mine)
				if !writes {
					// A read or an atomic fails when its response comes; what follows it may have
					// been carried out by then.
					wantBytes(t, "the peer's memory", p.B.Buf.B, theirs)
					p.B.wantNoSuccess()
				}
			})
		}
	}
}

// protectRemote misnames the peer's memory.
func (s *suite) protectRemote(t *testing.T) {
	for _, c := range []struct {
		op    verbs.Opcode
		right verbs.AccessFlags
	}{
		{verbs.OpRDMAWrite, verbs.AccessRemoteWrite},
		{verbs.OpRDMAWriteWithImm, verbs.AccessRemoteWrite},
		{verbs.OpRDMARead, verbs.AccessRemoteRead},
		{verbs.OpAtomicFetchAdd, verbs.AccessRemoteAtomic},
		{verbs.OpAtomicCmpAndSwp, verbs.AccessRemoteAtomic},
	} {
		without := verbs.AccessAll &^ c.right
		list := append(violations(verbs.AccessAll, without, true), violation{"missing_queue_pair_right", nil})
		for _, v := range list {
			if c.op.IsAtomic() && (v.name == "before_the_start" || v.name == "past_the_end") {
				continue // an address one byte off is misaligned; see below
			}
			s.run(t, c.op.String()+"_"+v.name, func(t *testing.T) {
				allowed := []verbs.Status{verbs.StatusRemAccessErr}
				cfg := PairConfig{}
				if v.pick == nil {
					cfg.Adjust = func(_ verbs.QP, attr *verbs.QPAttr) { attr.Access = without }
					v.pick = func(t *testing.T, n *Node, size int) (uint64, uint32, uint32, []byte) {
						b := n.Register(4096, verbs.AccessAll)
						return b.At(64), b.LKey(), b.RKey(), b.B
					}
					// The IBTA requires an invalid request, which rdma_rxe reports
					// (check_op_valid); NICs that check the queue pair's rights together with the
					// key report an access error.
					allowed = append(allowed, verbs.StatusRemInvReqErr)
				}
				s.remoteViolation(t, s.pair(t, cfg), c.op, v, allowed)
			})
		}
	}
	for _, op := range []verbs.Opcode{verbs.OpAtomicFetchAdd, verbs.OpAtomicCmpAndSwp} {
		for name, offset := range map[string]int{"past_the_end": 1024, "before_the_start": -8} {
			s.run(t, op.String()+"_"+name, func(t *testing.T) {
				outside := violation{name, func(t *testing.T, n *Node, size int) (uint64, uint32, uint32,
					[]byte) {
					outer := make([]byte, 4096)
					b := n.registerIn(n.PD, outer[1024:2048], verbs.AccessAll)
					return b.At(offset), b.LKey(), b.RKey(), outer
				}}
				s.remoteViolation(t, s.pair(t, PairConfig{}), op, outside,
					[]verbs.Status{verbs.StatusRemAccessErr})
			})
		}
	}
	// The range of a message of many packets is checked before the first byte is written (against
	// the length that the first packet announces).
	s.run(t, "RDMA_WRITE_long", func(t *testing.T) {
		p := s.pair(t, PairConfig{})
		outer := make([]byte, 32<<10)
		b := p.B.registerIn(p.B.PD, outer[:20000], verbs.AccessAll)
		Fill(outer, 9)
		want := slices.Clone(outer)
		p.A.failsAndFlushes(t, verbs.SendWR{
			Opcode: verbs.OpRDMAWrite, SGL: p.A.Buf.SGL(0, 20001), RemoteAddr: b.Addr(), RKey: b.RKey(),
		}, []verbs.Status{verbs.StatusRemAccessErr})
		wantBytes(t, "the memory misnamed", outer, want)
	})
}

func (s *suite) remoteViolation(t *testing.T, p *Pair, op verbs.Opcode, v violation, allowed []verbs.Status) {
	t.Helper()
	size := 64
	if op.IsAtomic() {
		size = 8
	}
	addr, _, rkey, memory := v.pick(t, p.B.Node, size)
	Fill(memory, 3)
	want := slices.Clone(memory)
	Fill(p.A.Buf.B, 9)
	mine := slices.Clone(p.A.Buf.B)
	p.B.PostRecv(verbs.RecvWR{ID: 50}, verbs.RecvWR{ID: 51, SGL: p.B.Buf.SGL(0, 64)})
	p.A.failsAndFlushes(t, verbs.SendWR{
		Opcode: op, SGL: p.A.Buf.SGL(0, size), RemoteAddr: addr, RKey: rkey, Imm: 1,
		CompareAdd: word(memory, 8), Swap: 1,
	}, allowed)
	wantBytes(t, "the memory misnamed", memory, want)
	wantBytes(t, "the requester's memory", p.A.Buf.B, mine)
	p.B.wantNoSuccess()
}

// failsAndFlushes posts two good requests, the bad one and two more good ones, with two receives on
// the same queue pair. The first two succeed, the bad one fails as allowed, everything after it and
// the receives are flushed in order, and the queue pair is in ERR.
func (e *End) failsAndFlushes(t *testing.T, bad verbs.SendWR, allowed []verbs.Status) {
	t.Helper()
	e.fails(t, bad, allowed, false)
}

// failsAlone does the same, but the first two have completed before the bad one is posted.
func (e *End) failsAlone(t *testing.T, bad verbs.SendWR, allowed []verbs.Status) {
	t.Helper()
	e.fails(t, bad, allowed, true)
}

func (e *End) fails(t *testing.T, bad verbs.SendWR, allowed []verbs.Status, alone bool) {
	t.Helper()
	// An operation that the peer serves even when the bad one's right is missing.
	op := verbs.OpRDMAWrite
	if bad.Opcode == verbs.OpRDMAWrite || bad.Opcode == verbs.OpRDMAWriteWithImm {
		op = verbs.OpRDMARead
	}
	good := func(id uint64, flags verbs.SendFlags) verbs.SendWR {
		return verbs.SendWR{ID: id, Opcode: op, Flags: flags}
	}
	bad.ID, bad.Flags = 3, bad.Flags|verbs.SendSignaled
	e.PostRecv(verbs.RecvWR{ID: 11, SGL: e.Buf.SGL(0, 8)}, verbs.RecvWR{ID: 12})
	before := []verbs.SendWR{good(1, verbs.SendSignaled), good(2, verbs.SendSignaled)}
	from := []verbs.SendWR{
		bad, good(4, verbs.SendSignaled), good(5, 0),
		{ID: 6, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: e.Buf.SGL(0, 8)},
	}
	var wcs []verbs.WC
	if alone {
		e.PostSend(before...)
		wcs = e.WaitSend(len(before))
		e.PostSend(from...)
	} else {
		e.PostSend(append(before, from...)...)
	}
	wcs = append(wcs, e.WaitSend(6-len(wcs))...)
	e.wantOK(wcs[:2], 1, 2)
	e.wantStatus(wcs[2:3], allowed, 3)
	e.wantFlushed(wcs[3:], 4, 5, 6)
	e.wantState(verbs.StateErr)
	e.wantFlushed(e.WaitRecv(2), 11, 12)
	e.wantNone(e.SendCQ)
	e.wantNone(e.RecvCQ)
}

// wantNoSuccess checks that no receive has completed with success. It may have failed or been
// flushed.
func (e *End) wantNoSuccess() {
	e.T.Helper()
	var wcs [16]verbs.WC
	n, err := e.RecvCQ.Poll(wcs[:])
	if err != nil {
		e.T.Error(err)
	}
	for _, wc := range wcs[:n] {
		if wc.Status == verbs.StatusSuccess {
			e.T.Errorf("receive %d of the peer succeeded", wc.ID)
		}
	}
}

// protectReceive misnames the receiver's own memory.
func (s *suite) protectReceive(t *testing.T) {
	for _, v := range violations(verbs.AccessLocalWrite, 0, true) {
		s.run(t, v.name, func(t *testing.T) {
			p := s.pair(t, PairConfig{})
			addr, lkey, _, memory := v.pick(t, p.B.Node, 64)
			Fill(memory, 3)
			want := slices.Clone(memory)
			p.B.PostRecv(
				verbs.RecvWR{ID: 1, SGL: []verbs.SGE{{Addr: addr, Length: 64, LKey: lkey}}},
				verbs.RecvWR{ID: 2, SGL: p.B.Buf.SGL(0, 64)})
			// IBTA 9.9.3: the receiver's NIC reports Local Protection Error (rdma_rxe: Local QP
			// Operation Error), the sender's a Remote Operation Error. mlx5 may take it for an
			// access error.
			p.A.failsAndFlushes(t, verbs.SendWR{Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, 64)},
				s.allowed(verbs.StatusRemOpErr, verbs.StatusRemAccessErr))
			wcs := p.B.WaitRecv(2)
			p.B.wantStatus(wcs[:1], s.allowed(verbs.StatusLocProtErr, verbs.StatusLocQPOpErr,
				verbs.StatusLocAccessErr), 1)
			p.B.wantFlushed(wcs[1:], 2)
			p.B.wantState(verbs.StateErr)
			wantBytes(t, "the memory misnamed", memory, want)
			wantBytes(t, "the next receive's memory", p.B.Buf.B[:64], make([]byte, 64))
		})
	}
}

// exactBounds uses the first and the last bytes of regions, which is allowed.
func (s *suite) exactBounds(t *testing.T) {
	p := s.pair(t, PairConfig{})
	src, dst := p.A.Register(777, 0), p.B.Register(777, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	Fill(src.B, 1)
	for _, r := range [][2]int{{0, 777}, {0, 1}, {776, 1}, {776, 0}, {777, 0}} {
		clear(dst.B)
		p.A.PostSend(verbs.SendWR{
			ID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: src.SGL(r[0], r[1]),
			RemoteAddr: dst.At(r[0]), RKey: dst.RKey(),
		})
		p.A.wantOK(p.A.WaitSend(1), 1)
		want := make([]byte, 777)
		copy(want[r[0]:r[0]+r[1]], src.B[r[0]:])
		wantBytes(t, "the target", dst.B, want)
	}
}

// staleReceive closes a region while a posted receive names it.
func (s *suite) staleReceive(t *testing.T) {
	p := s.pair(t, PairConfig{})
	b := p.B.Register(64, verbs.AccessLocalWrite)
	p.B.PostRecv(verbs.RecvWR{ID: 1, SGL: b.SGL(0, 64)})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	Fill(p.A.Buf.B, 1)
	p.A.failsAndFlushes(t, verbs.SendWR{Opcode: verbs.OpSend, SGL: p.A.Buf.SGL(0, 64)},
		s.allowed(verbs.StatusRemOpErr, verbs.StatusRemAccessErr))
	p.B.wantStatus(p.B.WaitRecv(1), s.allowed(verbs.StatusLocProtErr, verbs.StatusLocQPOpErr,
		verbs.StatusLocAccessErr), 1)
	wantBytes(t, "the closed region's memory", b.B, make([]byte, 64))
}
