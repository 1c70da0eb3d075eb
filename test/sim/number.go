package sim

import (
	"math/bits"

	"ibverbx/verbs"
)

// The numbers of DQPLB as they travel: low 24 bits count modulo 2^24-1, so that 0xffffff never appears; bit 31 marks the last
// fragment of a request; bit 30 says that the user's immediate follows, where both cards announced that; little-endian.
const (
	numberMod  = 1<<24 - 1
	bitLast    = 1 << 31
	bitRaw     = 1 << 30
	bitsUnused = 0x3f << 24
)

// number takes a DQPLB immediate apart.
func number(imm uint32) (n uint32, last, raw, ok bool) {
	v := bits.ReverseBytes32(imm)
	n = v & 0xffffff
	return n, v&bitLast != 0, v&bitRaw != 0, n != numberMod && v&bitsUnused == 0
}

// immediate puts one together.
func immediate(n uint32, flags uint32) uint32 { return bits.ReverseBytes32(n%numberMod | flags) }

// numberOnWire checks a numbered message.
func (e *end) numberOnWire(q *wire, s *send, wr *verbs.SendWR, length int) {
	if e.conn.lied {
		return // it does as a card said that was not true
	}
	if q.raw {
		q.raw = false
		if length != 0 || wr.Imm != s.imm {
			e.w.broken(ruleWire, "%v: behind the last fragment of %v come %d bytes with immediate %#x", e, s, length, wr.Imm)
		}
		return
	}
	n, last, raw, ok := number(wr.Imm)
	if !ok {
		e.w.broken(ruleWire, "%v: immediate %#x is no number", e, wr.Imm)
	}
	ends := length != 0 && int(wr.RemoteAddr-e.peer.host.base)+length == s.remote.off+s.remote.n
	if last != ends {
		e.w.broken(ruleWire, "%v: %d bytes of %v, marked as the last: %v", e, length, s, last)
	}
	if last && s.failed {
		e.w.broken(ruleNotification, "%v: %v has failed, and its last fragment goes out", e, s)
	}
	if raw != (last && s.imm != 0 && e.conn.raw) {
		e.w.broken(ruleWire, "%v: %v announces a user's immediate: %v", e, s, raw)
	}
	q.raw = raw
	e.useNumber(n)
}

// useNumber checks that every number is used once.
func (e *end) useNumber(n uint32) {
	first := e.conn.plan.cfg[e.index%2].FirstNumber
	d := int((n + numberMod - first) % numberMod)
	if d > len(e.numbers)+1000 {
		e.w.broken(ruleWire, "%v: number %d, %d beyond the first", e, n, d)
	}
	for d >= len(e.numbers) {
		e.numbers = append(e.numbers, false)
	}
	if e.numbers[d] {
		e.w.broken(ruleWire, "%v: number %d twice", e, n)
	}
	e.numbers[d] = true
	e.used++
}
