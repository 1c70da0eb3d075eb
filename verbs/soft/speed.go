package soft

import (
	"math/bits"
	"time"

	"ibverbx/verbs/internal/nic"
)

// lookAhead is the time before the wire is free at which the next message may leave: long enough to
// copy it meanwhile, short enough that queue pairs share the wire in turn.
const lookAhead = int64(100 * time.Microsecond)

// timed reports whether the NIC simulates a speed.
func (d *Device) timed() bool { return d.bandwidth != 0 || d.latency != 0 }

// departure returns the time at which the next message may leave the NIC; 0 means now.
func (b *background) departure(d *Device) int64 {
	if d.bandwidth == 0 {
		return 0
	}
	if at := d.worker.wireFree - lookAhead; at > b.now() {
		return at
	}
	return 0
}

// transmit puts a message on the wire, which carries one after the other. The data of a read goes
// over the wire of the peer's NIC. The receiving side's bandwidth is not simulated.
func (b *background) transmit(q, peer *QP, s *nic.SendSlot) (arrive, ack int64) {
	latency := int64(max(q.dev.latency, peer.dev.latency))
	sender := q.dev
	if s.Answered() {
		sender = peer.dev
	}
	if latency == 0 && sender.bandwidth == 0 {
		return 0, 0
	}
	start := b.now()
	if s.Answered() {
		start += latency
	}
	start = max(start, sender.worker.wireFree)
	finish := start + wireTime(s.Length, sender.bandwidth)
	sender.worker.wireFree = finish
	if s.Answered() {
		return 0, finish + latency
	}
	return finish + latency, finish + 2*latency
}

// wireTime returns the nanoseconds that n bytes take on the wire.
func wireTime(n, bandwidth uint64) int64 {
	if bandwidth == 0 {
		return 0
	}
	hi, lo := bits.Mul64(n, uint64(time.Second))
	if hi >= bandwidth {
		return int64(time.Hour)
	}
	ns, _ := bits.Div64(hi, lo, bandwidth)
	return int64(ns)
}
