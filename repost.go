package ibverbx

import (
	"ibverbx/internal/dqplb"
	"ibverbx/internal/wrid"
	"ibverbx/verbs"
)

// lostWork is what lost rails of one kind had outstanding and the peer has not received, in the
// order in which it is to be posted again: all of it on one live rail, so that a message still
// proves what was posted ahead of it.
type lostWork struct {
	entries []lostEntry
	on      *rail  // carries them
	last    uint64 // the work request that was posted last on it; 0 for none
}

func (l *lostWork) any() bool { return len(l.entries) != 0 }

// add adds what a rail has lost. Where the rail carries this very work, that comes ahead of what
// waits; otherwise behind it, since nothing may come between a fragment and the user's immediate.
func (l *lostWork) add(rl *rail, again []lostEntry) {
	if rl == l.on {
		l.entries, l.on = append(again, l.entries...), nil
		return
	}
	l.entries = append(l.entries, again...)
}

func (l *lostWork) clear() { *l = lostWork{} }

// awaitsImm reports whether a rail has carried a last fragment whose immediate still waits here.
func (l *lostWork) awaitsImm(rl *rail) bool {
	return l.on == rl && l.any() && wrid.Kind(l.entries[0].id) == wrid.Imm
}

// lost is the lost work of the rails of a role.
func (f *failover) lost(role railRole) *lostWork {
	switch role {
	case roleSends:
		return &f.sends
	case roleFinals:
		return &f.finals
	}
	return &f.data
}

// repost posts lost work again, as far as there is room. Every rail that is lost is settled.
func (q *VirtualQP) repost() {
	f, rails := q.failover, &q.send.rails
	if !q.send.finishImm() {
		return
	}
	for role := range roles {
		l := f.lost(role)
		if !l.any() {
			continue
		}
		if l.on == nil {
			l.on, l.last = rails.nextForAtomics(), 0
			if role != roleData {
				l.on = *rails.serving(role)
			}
		}
		q.repostOn(l.on, l)
	}
	q.postStaged()
}

// repostOn stages lost work on a rail, as far as that has room.
func (q *VirtualQP) repostOn(rl *rail, l *lostWork) {
	s := &q.send
	for len(l.entries) != 0 && rl.hasRoom() {
		e := l.entries[0]
		if wrid.Kind(e.id) == wrid.Imm {
			if last := s.lastBefore(&e); wrid.OnNoRail(last.id) != l.last {
				// The fragment that announces the user's immediate has arrived, but without that it
				// has not counted: it goes out again.
				n, _ := s.resolve(e.id)
				s.win.At(n).left++
				l.entries = append([]lostEntry{last}, l.entries...)
				continue
			}
		}
		s.stageAgain(rl, &e)
		q.reposted++
		l.last = wrid.OnNoRail(e.id)
		l.entries = l.entries[1:]
	}
	if len(l.entries) == 0 {
		l.clear()
	}
}

// finishImm stages the user's immediate that is due behind a fragment which is out on a live rail:
// nothing may come between the two. It reports false when there is no room.
func (s *sender) finishImm() bool {
	if s.next == s.win.Tail {
		return true
	}
	r := s.win.At(s.next)
	return !r.immDue || s.stageRawImm(s.next, r)
}

// firstLive is the first live rail of a role.
func (s *railSet) firstLive(role railRole) *rail {
	for _, rl := range s.group(role) {
		if !rl.down {
			return rl
		}
	}
	return nil
}

// lastBefore is the last fragment of a request, which announces the user's immediate e.
func (s *sender) lastBefore(e *lostEntry) lostEntry {
	n, _ := s.resolve(e.id)
	r := s.win.At(n)
	newest := uint64(r.firstNum) + uint64(r.fragments) + uint64(r.markers) - 1
	return s.entryOf(wrid.New(wrid.Numbered, 0, uint32(newest%dqplb.Mod), n))
}

// immOf is the user's immediate that was due behind the last fragment on a rail that is lost, and
// had not found room. It counts as staged from here on.
func (s *sender) immOf(rl *rail) (e lostEntry, due bool) {
	if s.next == s.win.Tail {
		return e, false
	}
	r := s.win.At(s.next)
	if !r.immDue || int(r.immRail) != rl.index() {
		return e, false
	}
	r.immDue = false
	r.left++
	return lostEntry{id: wrid.New(wrid.Imm, 0, 0, s.next)}, true
}

// stageAgain stages a work request that was lost with its rail on another one that has room.
func (s *sender) stageAgain(rl *rail, e *lostEntry) {
	n, _ := s.resolve(e.id)
	r := s.win.At(n)
	if wrid.Kind(e.id) == wrid.Final || wrid.Kind(e.id) == wrid.Message {
		wr := s.stageMessage(rl, r, wrid.New(wrid.Kind(e.id), rl.idBits, 0, n))
		if r.opcode.IsSend() {
			s.fillMessage(rl, r, wr)
		} else {
			s.fillNotification(rl, r, wr)
		}
		return
	}
	id := wrid.New(wrid.Kind(e.id), rl.idBits, wrid.Aux(e.id), n)
	s.rails.takeData(rl)
	if c := s.rails.abilities; c != nil {
		rl.ability.add(uint64(e.size), c.clock)
	}
	if rl.batch == nil {
		s.lendBatch(rl)
	}
	wr := rl.batch.add()
	wr.ID, wr.Flags, wr.RKey = id, verbs.SendSignaled, r.remoteKeys.at(rl.peerDev)
	wr.RemoteAddr = r.remoteAddr + e.offset
	r.payload(rl, wr, e.offset, e.size)
	if e.isMessage() {
		rl.log.pushMessage(id)
	} else {
		rl.log.push(id)
	}
	rl.stats.bytes += uint64(e.size)
	rl.stats.fragments++
	switch wrid.Kind(e.id) {
	case wrid.Numbered:
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, dqplb.Swap(e.imm)
		if e.imm&dqplb.Last != 0 && r.solicited {
			wr.Flags |= verbs.SendSolicited
		}
		rl.dirty = false
	case wrid.Imm:
		wr.Opcode, wr.Imm = verbs.OpRDMAWriteWithImm, r.imm
		wr.RemoteAddr = r.remoteAddr
		rl.batch.setSGL(wr, 0)
	default:
		wr.Opcode = r.fragmentOpcode()
		if r.plan == planAtomic {
			wr.CompareAdd, wr.Swap = r.ext.compareAdd, r.ext.swap
			s.rails.atomicRail = rl // later ones stay behind it
		}
		rl.dirty = rl.dirty || wr.Opcode != verbs.OpRDMARead
	}
}

// payload gives a work request the memory of a fragment.
func (r *sendReq) payload(rl *rail, wr *verbs.SendWR, offset uint64, size uint32) {
	switch {
	case size == 0:
		rl.batch.setSGL(wr, 0)
	case r.inline:
		wr.Flags |= verbs.SendInline
		rl.batch.setInline(wr, r.ext.inline[offset:offset+uint64(size)])
	case r.scattered:
		sgl := rl.batch.list(rl.maxSGE)
		rl.batch.setSGL(wr, r.ext.list.part(sgl, r.localKeys, rl.device, offset, uint64(size)))
	default:
		sgl := rl.batch.setSGL(wr, 1)
		sgl[0] = verbs.SGE{Addr: r.localAddr + offset, Length: size, LKey: r.localKeys.at(rl.device)}
	}
}
