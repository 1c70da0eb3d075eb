package rc

import (
	"bytes"

	"ibverbx/verbs/roce/internal/wire"
)

// The forger of the simulation has the address of either end and the numbers of the queue pairs,
// and no key. It knows which numbers it would have to guess, as few as package roce says in its
// section Security, and takes others: nothing that the model knows of may change, at all.

// far is how many numbers ahead of those sent a forger begins: more than a network that does harm
// ever loses or holds up in a row, and one more than may be missing without harm.
func (w *world) far() seq {
	if w.perfect {
		return overtaken + 2
	}
	return 80
}

// forge has the forger send a packet to an end.
func (w *world) forge() {
	to := w.rng.IntN(2)
	switch w.rng.IntN(8) {
	case 0, 1, 2:
		w.forgeAhead(to)
	case 3:
		w.forgeBehind(to)
	case 4, 5:
		w.forgeAnswer(to)
	case 6:
		w.forgeSameNumber(to)
	case 7:
		w.forgeWhileIdle(to)
	}
}

// forgeAhead forges a request with a number that is not yet in use.
func (w *world) forgeAhead(to int) {
	first := w.ends[1-to].q.req.next + w.far()
	distance := seq(w.rng.IntN(maxTrack))
	switch w.rng.IntN(4) {
	case 0:
		distance = seq(w.rng.IntN(1 << 22))
	case 1:
		distance = seq(w.rng.IntN(4))
	}
	w.forgeRequest(to, first+distance)
}

// forgeBehind forges a request with a number that has been acknowledged.
func (w *world) forgeBehind(to int) {
	w.forgeRequest(to, w.ends[1-to].q.req.una-1-seq(w.rng.IntN(2*maxTrack)))
}

func (w *world) forgeRequest(to int, s seq) {
	requests := strangeOpcodes[:len(strangeOpcodes):len(strangeOpcodes)]
	h := wire.Header{Opcode: wire.ReadResponseOnly}
	for !h.Opcode.IsRequest() {
		h.Opcode = requests[w.rng.IntN(len(requests))]
	}
	h.PSN, h.AckReq = s.psn(), w.chance(2)
	mr := &w.ends[to].mr
	h.Addr, h.RKey, h.Length = mr.Addr()+uint64(w.rng.IntN(areaLen)), mr.RKey()^0x5a00, w.rng.Uint32N(1000)
	w.deliver(to, h)
}

// forgeAnswer forges an answer to a number that is not under way.
func (w *world) forgeAnswer(to int) {
	answers := []wire.Opcode{wire.Acknowledge, wire.Acknowledge, wire.ReadResponseOnly,
		wire.ReadResponseFirst, wire.ReadResponseMiddle, wire.ReadResponseLast, wire.AtomicAcknowledge}
	syndromes := []wire.Syndrome{wire.Ack, wire.NakSequence, wire.NakInvalidRequest, wire.NakRemoteAccess,
		wire.NakRemoteOperation}
	r := &w.ends[to].q.req
	s := r.una - 1 - seq(w.rng.IntN(2*maxTrack))
	if w.chance(2) {
		s = r.next + 1 + seq(w.rng.IntN(1<<22))
	}
	w.deliver(to, wire.Header{Opcode: answers[w.rng.IntN(len(answers))], PSN: s.psn(),
		Syndrome: syndromes[w.rng.IntN(len(syndromes))]})
}

// forgeSameNumber forges a request with the number of one of the peer's that is kept, or that
// arrives before the one that is expected can.
func (w *world) forgeSameNumber(to int) {
	r := &w.ends[to].q.resp
	for s := r.expected + 1; s <= r.ahead.highest; s++ {
		if r.ahead.find(s) != nil && w.chance(2) {
			w.forgeRequest(to, s)
			return
		}
	}
	soon := seq(0)
	for i := range w.flight {
		var h wire.Header
		d := &w.flight[i]
		if _, err := wire.Parse(d.bytes, &h); err != nil || d.to != to || !h.Opcode.IsRequest() {
			continue
		}
		switch s := r.expected.near(h.PSN); {
		case s == r.expected:
			return
		case s > r.expected && d.at <= w.now+w.latency:
			soon = s
		}
	}
	if soon != 0 && w.ends[to].q.ours {
		w.forgeRequest(to, soon)
	}
}

// forgeWhileIdle forges a request with one of the next numbers, when no packet will be lost that
// would have to be sent again and nothing is under way. After that nothing happens for a while.
func (w *world) forgeWhileIdle(to int) {
	if w.harm.lose != 0 {
		return
	}
	w.flushAll()
	for _, e := range w.ends {
		if len(w.flight) != 0 || !e.q.ours || e.q.req.una != e.q.req.end {
			return
		}
	}
	w.forgeRequest(to, w.ends[to].q.resp.expected+1+seq(w.rng.IntN(3)))
	w.flushAll()
	w.now += overtakenWithin + 1 + w.latency
}

// deliver gives an end a forged packet.
func (w *world) deliver(to int, h wire.Header) {
	marks := []uint8{0, 0, wire.FromRequester, wire.FromResponder, wire.Repeated, 0x7f}
	h.Reserved = marks[w.rng.IntN(len(marks))]
	h.DestQP, h.PKey = w.ends[to].q.Num, defaultPKey
	var payload []byte
	if h.Opcode.HasPayload() {
		sizes := []int{0, 1, w.shape.mtu.Bytes(), w.shape.mtu.Bytes() + 1, w.rng.IntN(300)}
		payload = bytes.Repeat([]byte{0x5a}, sizes[w.rng.IntN(len(sizes))])
	}
	w.forged++
	w.ends[to].q.Receive(w.now, &h, payload)
}
