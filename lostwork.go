package ibverbx

import (
	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
)

// takeLog turns the log of a rail that is being lost into entries; the newest ones, so many as are
// staged, the NIC never had.
func (s *sender) takeLog(rl *rail, staged int) {
	v, l := rl.recovery, &rl.log
	v.entries, v.acked, v.hint = v.entries[:0], l.messages, 0
	for i := l.head; i != l.tail; i++ {
		e := s.entryOf(*l.at(i))
		if i >= l.tail-uint64(staged) {
			e.state = entryUnposted
		}
		if e.isMessage() {
			v.acked--
		}
		v.entries = append(v.entries, e)
	}
	l.clear()
}

// entryOf finds out what an outstanding work request carries.
func (s *sender) entryOf(id uint64) lostEntry {
	e := lostEntry{id: id}
	if id <= doneMessage {
		e.state = entryDone
		return e
	}
	n, _ := s.resolve(id)
	r := s.win.At(n)
	switch wrid.Kind(id) {
	case wrid.Data:
		e.offset, e.size = s.fragment(r, r.index(wrid.Aux(id)))
	case wrid.Numbered:
		e.imm = wrid.Aux(id)
		if limit := uint64(s.rails.maxFragment); !r.isMarker(e.imm, limit) {
			e.offset, e.size = s.fragment(r, uint64(r.position(id, limit)))
			e.imm |= s.marks(r, e.offset+uint64(e.size))
		}
	}
	return e
}

// index is a plain fragment's place among those of its request, of which the work-request id has
// the low bits. Those outstanding are near the newest.
func (r *sendReq) index(low uint32) uint64 {
	newest := uint64(r.fragments) - 1
	return newest - (newest-uint64(low))&wrid.AuxMask
}

// fragment is where a fragment of a request begins, and how many bytes it has.
func (s *sender) fragment(r *sendReq, index uint64) (offset uint64, size uint32) {
	limit := s.fragmentLimit(r)
	switch width := s.rails.data[0].maxSGE; {
	case r.plan == planAtomic:
		return 0, 8
	case r.scattered && r.length != 0:
		f := FailedError{Fragment: int(index)}
		r.cut(limit, width, &f)
		return f.RemoteAddr - r.remoteAddr, uint32(f.Length)
	}
	offset = index * limit
	return offset, uint32(min(limit, r.length-offset))
}

// marks are those of the immediate of a numbered fragment that ends at some offset.
func (s *sender) marks(r *sendReq, end uint64) (marks uint32) {
	if end == r.length {
		marks = dqplb.Last
		if s.rawImm && r.imm != 0 {
			marks |= dqplb.Raw
		}
	}
	return marks
}
