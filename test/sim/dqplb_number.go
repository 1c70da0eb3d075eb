package sim

import (
	"math/bits"

	"ibverbx"
	"ibverbx/verbs"
)

// These are the numbers of DQPLB on the wire, little-endian. The low 24 bits count modulo 2^24-1,
// so 0xffffff never appears. Bit 31 marks the last fragment of a request. Bit 30 says that the
// user's immediate follows, if both cards announced that.
const (
	numberModulo = 1<<24 - 1
	bitLast      = 1 << 31
	bitRaw       = 1 << 30
	bitsUnused   = 0x3f << 24
)

// number splits a DQPLB immediate.
func number(imm uint32) (n uint32, last, raw, ok bool) {
	v := bits.ReverseBytes32(imm)
	n = v & 0xffffff
	return n, v&bitLast != 0, v&bitRaw != 0, n != numberModulo && v&bitsUnused == 0
}

// immediate composes a DQPLB immediate.
func immediate(n uint32, flags uint32) uint32 { return bits.ReverseBytes32(n%numberModulo | flags) }

// immediateText describes an immediate on the wire in words.
func (e *end) immediateText(q *wire, wr *verbs.SendWR) string {
	if !wr.Opcode.HasImm() {
		return ""
	}
	n, last, raw, ok := number(wr.Imm)
	if e.single || e.vq.Scheme() != ibverbx.DQPLB || wr.Opcode.IsSend() || q.raw || !ok {
		return sprintf(", immediate %#x", wr.Imm)
	}
	text := sprintf(", number %d", n)
	if last {
		text += ", the last"
	}
	if raw {
		text += ", the user's immediate follows"
	}
	return text
}

// numberOnWire checks a numbered message.
func (e *end) numberOnWire(q *wire, s *send, wr *verbs.SendWR, length int) {
	if q.raw {
		q.raw = false
		if length != 0 || wr.Imm != s.imm {
			e.w.Broken(ruleWire, "%v: behind the last fragment of %v come %d bytes with immediate %#x", e, s,
				length, wr.Imm)
		}
		return
	}
	n, last, raw, ok := number(wr.Imm)
	if !ok {
		e.w.Broken(ruleWire, "%v: immediate %#x is no number", e, wr.Imm)
	}
	ends := length != 0 && int(wr.RemoteAddr-e.peer.host.MR.Addr())+length == s.remote.Off+s.remote.N
	switch {
	case s.length == 0 && !s.emptyOut:
		if last { // the messages before it were markers
			e.emptyOnWire(s)
		}
	case last != ends:
		e.w.Broken(ruleWire, "%v: %d bytes of %v, marked as the last: %v", e, length, s, last)
	}
	if last && s.failed {
		e.w.Broken(ruleNotification, "%v: %v has failed, and its last fragment goes out", e, s)
	}
	if raw != (last && s.imm != 0 && e.conn.raw) {
		e.w.Broken(ruleWire, "%v: %v announces a user's immediate: %v", e, s, raw)
	}
	if last {
		e.mustSolicit(s, wr)
	}
	if length == 0 && !last && !q.plain && !e.conn.struck { // perhaps meant for a rail that died
		e.w.Broken(ruleWire, "%v: a marker on %v, which has carried nothing since the last number", e, q)
	}
	q.raw, q.plain = raw, false
	e.useNumber(n)
}

// firstNumber returns the first number that an end uses.
func (e *end) firstNumber() uint32 {
	if e.conn.plan.strip {
		return 0
	}
	return e.conn.plan.cfg[e.index%2].Testing.FirstNumber
}

// arrived handles a message that has used a credit: the library must notice a message that no peer
// may send. If completions come out of order, the order of arrival is not known here.
func (q *wire) arrived(wc *verbs.WC) {
	e := q.end
	if e.single || e.vq.Scheme() != ibverbx.DQPLB || e.w.plan.Scramble || !q.isData() ||
		e.state != connected && e.state != draining {
		return
	}
	if e.conn.failover && wc.Opcode == verbs.WCRecv && wc.ByteLen == 0 {
		return // one of the library's own messages
	}
	if q.rawIn { // it completes the message before
		q.rawIn = false
		e.countArrival(q.rawOf, wc.Opcode == verbs.WCRecvRDMAWithImm)
		return
	}
	n, last, raw, ok := number(wc.Imm)
	d := int((n + numberModulo - e.peer.firstNumber()) % numberModulo)
	ok = ok && wc.Opcode == verbs.WCRecvRDMAWithImm && (!raw || last && e.conn.raw)
	if ok && raw {
		q.rawIn, q.rawOf = true, d
		return
	}
	e.countArrival(d, ok)
}

// countArrival records the number d of a message that has arrived; ok if it is well formed.
func (e *end) countArrival(d int, ok bool) {
	if !ok || e.arrived[d] || d > 1<<20 {
		e.peerViolated = true
		return
	}
	if e.arrived == nil {
		e.arrived = map[int]bool{}
	}
	e.arrived[d] = true
}

// useNumber checks that every number is used once.
func (e *end) useNumber(n uint32) {
	d := int((n + numberModulo - e.firstNumber()) % numberModulo)
	if d > len(e.numbers)+1000 {
		e.w.Broken(ruleWire, "%v: number %d, %d beyond the first", e, n, d)
	}
	for d >= len(e.numbers) {
		e.numbers = append(e.numbers, false)
	}
	if e.numbers[d] {
		e.w.Broken(ruleWire, "%v: number %d twice", e, n)
	}
	e.numbers[d] = true
	e.used++
}
