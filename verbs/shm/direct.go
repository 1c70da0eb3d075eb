package shm

import (
	"encoding/binary"
	"errors"
	"os"
	"sync/atomic"

	"ibverbx/verbs"
	"ibverbx/verbs/internal/nic"
)

// mapArena maps an arena of the peer. Without room or descriptors for it the ring serves.
func (l *link) mapArena(n *note, fd int) error {
	d := l.dev
	d.mu.Lock()
	known := l.arenas[n.id] != nil
	full := len(l.arenas) >= mostShown
	d.mu.Unlock()
	switch {
	case known || full || n.size == 0 || n.size > mostArena+1<<20:
		return errors.New("the peer shows memory twice, too much, or none")
	case fd < 0:
		return nil
	}
	mem, err := mapMemory(fd, int(n.size), true)
	if _, system := errors.AsType[*os.SyscallError](err); system {
		return nil
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.ended {
		unmapMemory(mem)
		return nil
	}
	if l.arenas == nil {
		l.arenas = map[uint64][]byte{}
	}
	l.arenas[n.id] = mem
	l.mappings++
	return nil
}

// unmapArena gives up an arena of the peer. Nobody copies, because that takes the lock.
func (l *link) unmapArena(id uint64) {
	l.dev.mu.Lock()
	defer l.dev.mu.Unlock()
	if mem := l.arenas[id]; mem != nil {
		delete(l.arenas, id)
		l.mappings++
		unmapMemory(mem)
	}
}

// granted is a region of the peer that this end accesses itself.
type granted struct {
	rkey   uint32
	rights verbs.AccessFlags
	addr   uint64
	mem    []byte
}

// A request that this end carries out itself:
//
//	copyBytes     at a time, and with one hold; a longer copy() writes past the caches
//	requestBytes  is what a request counts for at least, so some small ones share a hold
//	directBytes   in a row with the lock; the rest of the message is left to a poll
//	mostDetours   small requests in a row take the ring behind others, although they need not
const (
	copyBytes    = 256 << 10
	requestBytes = 4 << 10
	directBytes  = 1 << 20
	mostDetours  = 16
)

// readGrants reads the grants of the peer, of which it believes what its own mappings confirm.
func (o *requester) readGrants(version uint64) {
	l := o.lane
	o.version, o.mappings = version, l.link.mappings
	clear(o.grants)
	o.grants = o.grants[:0]
	if version&1 != 0 {
		return
	}
	for i := range mostGrants {
		w := l.grant(i)
		key := atomic.LoadUint64(&w[0])
		addr, n := atomic.LoadUint64(&w[1]), atomic.LoadUint64(&w[2])
		mem, off := l.link.arenas[atomic.LoadUint64(&w[3])], atomic.LoadUint64(&w[4])
		if size := uint64(len(mem)); key == 0 || off > size || n > size-off || addr+n < addr {
			continue
		}
		o.grants = append(o.grants, granted{uint32(key), verbs.AccessFlags(key>>32) & remoteRights, addr,
			mem[off : off+n : off+n]})
	}
	if l.load(wordGrants) != version {
		o.grants = o.grants[:0]
	}
}

// reach returns the memory that a request names if this end may access it itself; nil if the peer
// is to carry it out, who also refuses what is wrong.
func (q *QP) reach(s *nic.SendSlot) []byte {
	o, l := &q.out, q.out.lane
	if v := l.load(wordGrants); v != o.version || l.link.mappings != o.mappings {
		o.readGrants(v)
	}
	right := nic.Need(s.Opcode)
	if len(o.grants) == 0 || right == 0 || s.Length == 0 || o.around == q.core.SQ.Executed+1 {
		return nil
	}
	for i := range o.grants {
		g := &o.grants[i]
		off, size := s.RemoteAddr-g.addr, uint64(len(g.mem))
		if g.rkey != s.RKey || g.rights&right != right || off > size || s.Length > size-off {
			continue
		}
		mem := g.mem[off : off+s.Length : off+s.Length]
		if s.Opcode.IsAtomic() && (s.RemoteAddr%8 != 0 || nic.Word64(mem) == nil) {
			return nil
		}
		return mem
	}
	return nil
}

// hasOrder reports whether all payloads before the head request have reached their places, so what
// this end does itself overtakes none.
func (o *requester) hasOrder() bool {
	l := o.lane
	if l.cursor >= o.payloads {
		return true
	}
	done := l.load(wordDone)
	return done-l.cursor <= o.published-l.cursor && done >= o.payloads &&
		laneState(l.load(wordState)&stateMask) == laneOpen
}

// hold tells the owner that this end is about to access n bytes itself, unless it still has a hold
// with room for them. To begin and end one for each small request took a seventh of its time.
func (o *requester) hold(n uint64) {
	if o.holds&1 != 0 && o.held+n > copyBytes {
		o.release(o.lane)
	}
	if o.holds&1 == 0 {
		o.holds++
		o.lane.store(wordHold, o.holds)
		o.held = 0
	}
	o.held += max(n, requestBytes)
}

// release ends the hold, if there is one.
func (o *requester) release(l *lane) {
	if o.holds&1 != 0 {
		o.holds++
		l.store(wordHold, o.holds)
	}
}

// direct carries out the head request, whose local memory is in the device's pieces, on memory of
// the peer. It returns false if the rest must wait.
func (q *QP) direct(s *nic.SendSlot, memory []byte) bool {
	o, l, pieces := &q.out, q.out.lane, q.dev.pieces.Bytes
	for o.at < s.Length {
		n := min(s.Length-o.at, copyBytes)
		if o.copied += n; o.copied > directBytes {
			l.unfinished.Store(true)
			return false
		}
		o.hold(n)
		if l.load(wordGrants) != o.version {
			o.release(l)
			o.around, o.at = q.core.SQ.Executed+1, 0 // from the beginning, through the ring
			return true
		}
		target := memory[o.at : o.at+n]
		switch {
		case s.Opcode.IsAtomic():
			answer := q.dev.scratch[:8]
			binary.NativeEndian.PutUint64(answer, nic.FetchAndChange(s.Opcode, s.CompareAdd, s.Swap, target))
			scatter(pieces, 0, answer)
		case s.Opcode == verbs.OpRDMARead:
			scatter(pieces, o.at, target)
		default:
			gather(target, pieces, o.at)
		}
		o.at += n
	}
	o.at = 0
	seq := q.core.SQ.Executed
	q.core.SQ.Executed++
	switch {
	case s.Opcode.HasImm():
		out := slot{op: s.Opcode, flags: slotFirst | slotLast | slotPlaced, imm: s.Imm, rkey: s.RKey,
			addr: s.RemoteAddr, payload: [4]uint64{0, s.Length}}
		if s.Flags&verbs.SendSolicited != 0 {
			out.flags |= slotSolicited
		}
		o.taken++
		o.flights[o.published%ringSlots] = flight{seq: seq, end: o.head, last: true}
		l.publish(o.published, &out)
		o.published++
	case o.published != l.cursor:
		o.flights[(o.published-1)%ringSlots].behind++
	default:
		q.succeeded(seq, s)
		return true
	}
	if q.core.Signaled(s) {
		o.asked = o.published
	}
	return true
}
