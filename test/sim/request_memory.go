package sim

import (
	"fmt"

	"ibverbx"
	"ibverbx/test/internal/lab"
	"ibverbx/verbs"
)

// giveMemory gives a request memory on both sides. It reports false when there is none left.
func (e *end) giveMemory(s *send, wr *ibverbx.SendWR) bool {
	own, peers := e.host.Memory, e.peer.host.Memory
	all, ok := own.Alloc(s.length, s)
	if !ok {
		return false
	}
	e.mustBeUntouched(own, all)
	s.local = []lab.Span{all}
	switch {
	case s.op.IsAtomic():
		return e.giveWord(s, wr)
	case s.length == 0 && !s.op.IsSend():
		return e.giveNothing(s, wr)
	case s.op == verbs.OpRDMARead:
		if !e.giveReadable(s) {
			return false
		}
	default:
		if isWrite(s.op) {
			if s.remote, ok = peers.Alloc(s.length, s); !ok {
				return false
			}
			e.mustBeUntouched(peers, s.remote)
		}
		s.key = own.FillDrawn(all, e.w.Rng)
	}
	if s.remote.N != 0 {
		wr.Remote = e.peer.host.RemoteSegment(s.remote)
		if s.remote.Off%2 == 0 {
			wr.Remote = carried(wr.Remote)
		}
	}
	e.cut(s, wr)
	return true
}

func (e *end) mustBeUntouched(m *lab.Memory, s lab.Span) {
	if !m.Untouched(s) {
		e.w.Broken(lab.Ownership, "%v: memory was written to before a request got it: bytes %d to %d", e,
			s.Off, s.Off+s.N)
	}
}

// giveNothing gives a request of no bytes a unique address at the peer, which identifies it on the
// wire. Its other memory does not matter, and may be missing.
func (e *end) giveNothing(s *send, wr *ibverbx.SendWR) (ok bool) {
	if s.remote, ok = e.peer.host.Memory.Alloc(0, s); !ok {
		return false
	}
	rng, own := e.w.Rng, e.host.MR
	wr.Remote = e.peer.host.RemoteSegment(s.remote)
	if rng.IntN(2) == 0 {
		wr.Remote.Keys = nil
	}
	switch rng.IntN(4) {
	case 0:
		wr.Local = own.Slice(uint64(s.local[0].Off), 0)
	case 1:
		wr.SGL = []ibverbx.Segment{own.Slice(0, 0),
			{}}[:1+rng.IntN(min(2, e.conn.plan.cfg[e.index%2].MaxSGE))]
	case 2:
		if s.op != verbs.OpRDMARead {
			s.flags |= verbs.SendInline
		}
	}
	return true
}

// cut names the local memory in the request: in one piece, in several, or inline.
func (e *end) cut(s *send, wr *ibverbx.SendWR) {
	rng, all := e.w.Rng, s.local[0]
	cfg := &e.conn.plan.cfg[e.index%2]
	switch n := rng.IntN(6); {
	case n == 0 && s.op != verbs.OpRDMARead && all.N <= cfg.MaxInline:
		s.flags |= verbs.SendInline
		wr.Inline = append([]byte(nil), e.host.Memory.Bytes(all)...)
		e.host.Memory.Reuse(all) // the caller may reuse it at once
		s.local = nil
	case n == 1 && all.N > 1:
		// SENDs and requests of a single queue pair are not fragmented: the NIC takes the whole
		// list.
		most := 5
		if s.op.IsSend() || s.everyRail || e.single {
			most = cfg.MaxSGE
		}
		s.local = s.local[:0]
		for at := 0; at < all.N; {
			size := 1 + rng.IntN(all.N-at)
			if len(s.local) == most-1 {
				size = all.N - at
			}
			s.local = append(s.local, all.Part(at, size))
			at += size
		}
		wr.SGL = e.host.Segments(s.local)
		if len(wr.SGL) < most && rng.IntN(3) == 0 {
			wr.SGL = append(wr.SGL, ibverbx.Segment{}) // no bytes need no keys
		}
	case all.N != 0:
		wr.Local = e.host.Segment(all)
	}
}

// fitsEvery reports whether an EveryRail request can have so many bytes.
func (e *end) fitsEvery(n int) bool {
	rails := e.conn.plan.rails
	return n%rails == 0 && n/rails <= int(e.conn.plan.cfg[0].FragmentSize)
}

// giveReadable chooses what a read fetches: memory that is never written to, or the target of an
// earlier write, and then the read has a fence.
func (e *end) giveReadable(s *send) bool {
	if e.w.Rng.IntN(2) == 0 && !e.conn.plan.late {
		for i := len(e.sends) - 1; i >= max(e.sendHead, len(e.sends)-8); i-- {
			if t := e.sends[i]; isWrite(t.op) && t.session == e.sessionNo && t.length <= s.length &&
				t.length != 0 && !t.taken {
				t.reread, s.reread = true, true
				s.flags |= verbs.SendFence
				s.remote, s.key, s.length = t.remote, t.key, t.length
				s.local[0].N = t.length
				s.everyRail = s.everyRail && e.fitsEvery(t.length)
				return true
			}
		}
	}
	at, ok := e.peer.host.Memory.Alloc(s.length, s)
	if !ok {
		return false
	}
	s.remote = at
	s.key = e.peer.host.Memory.FillDrawn(at, e.w.Rng)
	e.peer.host.Memory.Settle(at, s.key)
	return true
}

// giveWord chooses what an atomic changes.
func (e *end) giveWord(s *send, wr *ibverbx.SendWR) bool {
	rng := e.w.Rng
	if len(e.words) == 0 || !e.words[len(e.words)-1].known || rng.IntN(10) == 0 {
		at, ok := e.peer.host.Memory.Alloc(8, s)
		if !ok {
			return false
		}
		v := rng.Uint64()
		e.peer.host.Memory.SetWord(at.Off, v)
		e.words = append(e.words, &word{at: at, value: v, planned: v, known: true})
	}
	s.word = e.words[len(e.words)-1]
	s.first, s.second = rng.Uint64(), rng.Uint64()
	if s.op == verbs.OpAtomicCmpAndSwp && rng.IntN(2) == 0 {
		s.first = s.word.planned
	}
	s.word.planned = s.word.after(s, s.word.planned)
	wr.CompareAdd, wr.Swap = s.first, s.second
	wr.Local = e.host.MR.Slice(uint64(s.local[0].Off), 8)
	wr.Remote = e.peer.host.Remote.Slice(uint64(s.word.at.Off), 8)
	return true
}

// carried sends a remote segment through its binary form.
func carried(s ibverbx.RemoteSegment) ibverbx.RemoteSegment {
	got, rest, err := new(ibverbx.Keys).DecodeSegment(s.AppendBinary(make([]byte, 0, s.BinarySize())))
	if err != nil || len(rest) != 0 {
		panic(fmt.Sprintf("sim: %v comes back as %v and %d bytes: %v", s, got, len(rest), err))
	}
	return got
}
