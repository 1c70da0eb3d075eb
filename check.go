package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

const knownSendFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline

// The checks of requests against what the rails can carry. They change nothing and return a
// [*PostError].

// checkSend checks a request for several queue pairs. It returns its length, and the keys of all
// its local memory; nil if they differ, or there are none.
func (s *railSet) checkSend(i int, wr *SendWR) (n uint64, keys *Keys, err error) {
	if !wr.wellFormed() || wr.Flags&verbs.SendSignaled == 0 {
		return 0, nil, malformed(i, wr)
	}
	need, send := s.localDevs, wr.Opcode.IsSend()
	if send {
		need = s.sendDevs
	}
	if s.sendRail == nil && send || s.noNotify && wr.Opcode == verbs.OpRDMAWriteWithImm {
		return 0, nil, s.noCarrier(i, wr)
	}
	// The plain case, one piece of registered memory, is checked in line.
	if p := wr.onlyPiece(); p != nil && p.usable(need) {
		n, keys = p.Length, p.Keys
	} else if n, keys, err = s.checkMemory(i, wr, need); err != nil {
		return 0, nil, err
	}
	if wr.Relaxed || wr.EveryRail {
		if err = s.checkOrder(i, wr, n); err != nil {
			return 0, nil, err
		}
	}
	if send {
		return n, keys, s.checkSendLength(i, wr, n)
	}
	if n == 0 {
		return n, keys, s.checkEmpty(i, wr)
	}
	if k := wr.Remote.Keys; k == nil || s.peerDevs&^k.have != 0 || n > wr.Remote.Length ||
		!k.covers(wr.Remote.Addr, n) {
		return n, keys, s.checkRemote(i, wr, n)
	}
	if wr.Opcode.IsAtomic() {
		return n, keys, s.checkAtomic(i, wr, n)
	}
	return n, keys, nil
}

// onlyPiece is the one piece of local memory that a request names, as Local or as a list of one;
// nil if it names several, or none.
func (wr *SendWR) onlyPiece() *Segment {
	switch {
	case wr.Flags&verbs.SendInline != 0:
		return nil
	case len(wr.SGL) == 0:
		return &wr.Local
	case len(wr.SGL) == 1 && wr.Local == (Segment{}):
		return &wr.SGL[0]
	}
	return nil
}

// wellFormed reports whether opcode and flags are known, and an inline payload has its flag.
func (wr *SendWR) wellFormed() bool {
	return wr.Opcode.Valid() && wr.Flags&^knownSendFlags == 0 &&
		(len(wr.Inline) == 0 || wr.Flags&verbs.SendInline != 0)
}

// malformed returns what is wrong with a request that is not well formed, or not signaled.
func malformed(i int, wr *SendWR) error {
	switch {
	case !wr.Opcode.Valid():
		return refuseSend(i, wr, ErrOpcode, wr.Opcode.String())
	case wr.wellFormed():
		return refuseSend(i, wr, ErrUnsignaled, "with several queue pairs every request needs SendSignaled")
	case wr.Flags&^knownSendFlags != 0:
		return refuseSend(i, wr, verbs.ErrInvalid, fmt.Sprintf("flags %v: unknown bits", wr.Flags))
	}
	return refuseSend(i, wr, verbs.ErrInvalid, "Inline is set and the flag SendInline is not")
}

// noCarrier returns the error of a request that none of the queue pairs carries.
func (s *railSet) noCarrier(i int, wr *SendWR) error {
	if wr.Opcode.IsSend() {
		return refuseSend(i, wr, ErrOpcode, wr.Opcode.String()+" in dqplb travels on the notify QP, "+
			"and there is none: add one")
	}
	return refuseSend(i, wr, ErrOpcode, wr.Opcode.String()+noNotifyText)
}

// noNotifyText is why Spray refuses requests that need a notify QP.
const noNotifyText = " in spray needs the notify QP, and there is none: add one, or take dqplb"

// usable reports whether the piece is registered memory with keys for the devices in need.
func (s *Segment) usable(need uint64) bool {
	return s.Keys != nil && need&^s.Keys.have == 0 && s.Keys.covers(s.Addr, s.Length)
}

// checkSegment checks one piece of local memory. An empty one needs no keys.
func (s *railSet) checkSegment(i int, wr *SendWR, p Segment, need uint64) error {
	if p.Length == 0 {
		return nil
	}
	if detail, err := checkLocal(p, need); err != nil {
		return refuseSend(i, wr, err, detail)
	}
	return nil
}

// checkLocal returns what is wrong with a piece of local memory that must have keys for the devices
// in need; "" and nil if nothing is.
func checkLocal(s Segment, need uint64) (detail string, err error) {
	if s.Keys == nil {
		return "local memory " + s.String() + " has no keys: name it with MR.Slice, or give Segment.Keys",
			ErrNoKey
	}
	if missing := need &^ s.Keys.have; missing != 0 {
		return fmt.Sprintf("local memory %v has no key for device %s (have %s): register it on every "+
			"device of the virtual QP",
			s, deviceList(missing), deviceList(s.Keys.have)), ErrNoKey
	}
	if !s.Keys.covers(s.Addr, s.Length) {
		return fmt.Sprintf("local memory %v reaches beyond its region %s", s,
			addrRange(s.Keys.base, s.Keys.length)), ErrBounds
	}
	return "", nil
}

// checkMemory checks the local memory of a request of any kind, or its inline payload. It returns
// the length, and the keys of all memory; nil if they differ.
func (s *railSet) checkMemory(i int, wr *SendWR, need uint64) (n uint64, keys *Keys, err error) {
	switch {
	case wr.Flags&verbs.SendInline != 0:
		return uint64(len(wr.Inline)), nil, s.checkInline(i, wr)
	case len(wr.SGL) == 0:
		if !wr.Local.usable(need) {
			err = s.checkSegment(i, wr, wr.Local, need)
		}
		return wr.Local.Length, wr.Local.Keys, err
	case wr.Local != (Segment{}):
		return 0, nil, refuseSend(i, wr, verbs.ErrInvalid, "both Local and SGL are set: use one")
	}
	return s.checkPieces(i, wr, need)
}

// checkPieces checks a scatter list. It returns its length, and the keys of all pieces; nil if they
// differ.
func (s *railSet) checkPieces(i int, wr *SendWR, need uint64) (n uint64, keys *Keys, err error) {
	keys = wr.SGL[0].Keys
	var k *Keys // of the piece before
	for j := range wr.SGL {
		p := &wr.SGL[j]
		if k != p.Keys || k == nil {
			if k = p.Keys; k == nil || need&^k.have != 0 {
				return s.checkOddPieces(i, wr, need)
			}
			if k != keys {
				keys = nil
			}
		}
		sum := n + p.Length
		if sum < n || !k.covers(p.Addr, p.Length) {
			return s.checkOddPieces(i, wr, need)
		}
		n = sum
	}
	return n, keys, nil
}

// checkInline checks a request with an inline payload.
func (s *railSet) checkInline(i int, wr *SendWR) error {
	switch {
	case len(wr.SGL) != 0 || wr.Local != (Segment{}):
		return refuseSend(i, wr, verbs.ErrInvalid,
			"an inline request takes its payload from Inline: leave Local and SGL empty")
	case wr.Opcode == verbs.OpRDMARead || wr.Opcode.IsAtomic():
		return refuseSend(i, wr, verbs.ErrInvalid, wr.Opcode.String()+" cannot be inline: it brings data")
	case len(wr.Inline) > s.maxInline:
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%d bytes inline: the queue pairs take %d",
			len(wr.Inline), s.maxInline))
	}
	return nil
}

// checkOddPieces continues checkPieces for a list in which not every piece is registered memory:
// empty pieces without keys pass, and it returns what is wrong with the others. It is separate
// because a loop without calls keeps everything in registers (8 pieces: 10 ns).
func (s *railSet) checkOddPieces(i int, wr *SendWR, need uint64) (n uint64, keys *Keys, err error) {
	for _, p := range wr.SGL {
		if err := s.checkSegment(i, wr, p, need); err != nil {
			return 0, nil, err
		}
		if n+p.Length < n {
			return 0, nil, refuseSend(i, wr, ErrLength,
				"the pieces together are longer than the address space")
		}
		n += p.Length
	}
	return n, nil, nil
}

// checkSendLength checks a SEND, which travels as one message.
func (s *railSet) checkSendLength(i int, wr *SendWR, n uint64) error {
	if n > s.sendRail.maxMessage {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("SEND of %d bytes: it is not fragmented, and %s "+
			"carries at most %d in a message", n, s.sendRail.qp.Device().Name(), s.sendRail.maxMessage))
	}
	if len(wr.SGL) > s.sendRail.maxSGE {
		return refuseSend(i, wr, verbs.ErrInvalid,
			fmt.Sprintf("SEND of %d pieces: it is not fragmented, and the queue pair takes %d", len(wr.SGL),
				s.sendRail.maxSGE))
	}
	return nil
}

// checkOrder checks a request of n bytes that is relaxed, or takes one fragment on each data rail.
func (s *railSet) checkOrder(i int, wr *SendWR, n uint64) error {
	if wr.Relaxed && !wr.Opcode.IsSend() {
		return refuseSend(i, wr, verbs.ErrInvalid,
			wr.Opcode.String()+" cannot be Relaxed: only a SEND waits for earlier data")
	}
	if !wr.EveryRail {
		return nil
	}
	rails, limit := uint64(len(s.data)), uint64(s.maxFragment)
	if wr.Opcode != verbs.OpRDMARead && wr.Opcode != verbs.OpRDMAWrite {
		return refuseSend(i, wr, verbs.ErrInvalid,
			wr.Opcode.String()+" cannot go over EveryRail: only a plain read or write can")
	}
	if n == 0 || n%rails != 0 {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%d bytes over every rail: must be a multiple of "+
			"the %d data queue pairs, and not 0", n, rails))
	}
	if n/rails > limit && rails > 1 {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%d bytes on each of %d rails: a fragment has at "+
			"most %d", n/rails, rails, limit))
	}
	if width, _ := s.width(); len(wr.SGL) > width {
		return refuseSend(i, wr, verbs.ErrInvalid,
			fmt.Sprintf("%d pieces over every rail: a fragment takes %d, and must not be cut short",
				len(wr.SGL), width))
	}
	return nil
}

// checkRemote returns what is wrong with the peer's memory. The caller has found that something is.
func (s *railSet) checkRemote(i int, wr *SendWR, n uint64) error {
	m := wr.Remote
	if m.Keys == nil {
		return refuseSend(i, wr, ErrNoKey, "remote memory has no keys: name it with RemoteMR.Slice, or "+
			"give RemoteSegment.Keys")
	}
	if missing := s.peerDevs &^ m.Keys.have; missing != 0 {
		return refuseSend(i, wr, ErrNoKey, fmt.Sprintf("remote memory %v has no key for the peer's device "+
			"%s (have %s): the peer must register it on every device of the virtual QP",
			m, deviceList(missing), deviceList(m.Keys.have)))
	}
	if n > m.Length {
		return refuseSend(i, wr, ErrBounds, fmt.Sprintf("%d bytes for a remote segment of %d", n, m.Length))
	}
	return refuseSend(i, wr, ErrBounds, fmt.Sprintf("remote memory %s reaches beyond its region %s",
		addrRange(m.Addr, n), addrRange(m.Keys.base, m.Keys.length)))
}

// checkEmpty checks the remote side of an empty request, which accesses no memory and needs no
// keys: the NIC does not look at them (IBTA C9-88).
func (s *railSet) checkEmpty(i int, wr *SendWR) error {
	if wr.Opcode.IsAtomic() {
		return s.checkAtomic(i, wr, 0)
	}
	return nil
}

// checkAtomic checks the shape of an atomic of n bytes.
func (s *railSet) checkAtomic(i int, wr *SendWR, n uint64) error {
	if n != 8 || len(wr.SGL) > 1 {
		return refuseSend(i, wr, ErrLength, fmt.Sprintf("%v of %d bytes in %d pieces: an atomic is of "+
			"eight bytes in one", wr.Opcode, n, max(1, len(wr.SGL))))
	}
	if wr.Remote.Addr%8 != 0 {
		return refuseSend(i, wr, ErrAlignment, fmt.Sprintf("remote address 0x%x of an atomic: must be a "+
			"multiple of 8", wr.Remote.Addr))
	}
	return nil
}

func refuseSend(i int, wr *SendWR, err error, detail string) error {
	return &PostError{Op: "post send", Index: i, ID: wr.ID, Err: err, Detail: detail}
}

// checkBareRecv checks a receive without memory.
func (s *railSet) checkBareRecv(i int, wr *RecvWR) error {
	if s.noNotify {
		return refuseRecv(i, wr, ErrOpcode, "a receive without memory"+noNotifyText)
	}
	return nil
}

// checkRecv checks a receive with memory.
func (s *railSet) checkRecv(i int, wr *RecvWR, pieces []Segment) error {
	if s.sendRail == nil {
		return refuseRecv(i, wr, ErrOpcode, "a receive with memory takes a SEND, which in dqplb travels on "+
			"the notify QP, and there is none: add one")
	}
	if limit := s.sendRail.maxRecvSGE; len(pieces) > limit {
		return refuseRecv(i, wr, verbs.ErrInvalid, fmt.Sprintf("%d pieces: the queue pair takes %d",
			len(pieces), limit))
	}
	for j := range pieces {
		p := &pieces[j]
		if p.Length > maxMessage || !p.usable(s.sendDevs) {
			if err := s.checkOddRecv(i, wr, *p); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOddRecv checks a piece of a receive that may not be registered memory, as an empty one.
func (s *railSet) checkOddRecv(i int, wr *RecvWR, p Segment) error {
	if p.Length == 0 {
		return nil
	}
	if p.Length > maxMessage {
		return refuseRecv(i, wr, ErrLength, fmt.Sprintf("a piece of %d bytes: a message carries at most "+
			"2 GiB", p.Length))
	}
	if detail, err := checkLocal(p, s.sendDevs); err != nil {
		return refuseRecv(i, wr, err, detail)
	}
	return nil
}

func refuseRecv(i int, wr *RecvWR, err error, detail string) error {
	return &PostError{Op: "post recv", Index: i, ID: wr.ID, Err: err, Detail: detail}
}

// deviceList returns a set of devices as "0, 3".
func deviceList(set uint64) string {
	s := ""
	for dev := range verbs.MaxDevices {
		if set&(1<<dev) != 0 {
			if s != "" {
				s += ", "
			}
			s += fmt.Sprint(dev)
		}
	}
	if s == "" {
		return "none"
	}
	return s
}
