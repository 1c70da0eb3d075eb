package ibverbx

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/internal/dqplb"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// FuzzArrivals lets a peer send any numbers in any order on the data rails of a DQPLB receiver. The
// completions arrive in any order, too. The receiver must report the notifications, and detect the
// protocol violations, that a slow reference implementation does.
func FuzzArrivals(f *testing.F) {
	const (
		end = 1 << iota // flags of a message
		raw
		reserved
		top    // the number that is never sent
		far    // the distance counts in 2^11
		random // the immediate is anything
	)
	send := func(rail, distance int8, flags byte) []byte {
		return []byte{0, byte(rail), byte(distance), flags, 10}
	}
	take := func(rail int8) []byte { return []byte{1, byte(rail), 0} }
	late := func(rail int8) []byte { return []byte{1, byte(rail), 1} } // the second oldest completion first
	recv := []byte{2, 0}
	wire := func(rail int8, imm uint32) []byte {
		return append([]byte{3, byte(rail)}, byte(imm), byte(imm>>8), byte(imm>>16), byte(imm>>24))
	}
	for shape := range byte(16) {
		program := func(ops ...[]byte) { f.Add(shape, slices.Concat(ops...)) }
		// in order, then not
		program(recv, send(0, 0, end), take(0), send(1, 1, 0), take(1), send(0, 0, end), take(0), recv)
		// the second message first
		program(recv, recv, send(0, 1, end), send(1, 0, end), take(0), take(1), take(1))
		// a number that came before
		program(send(0, 0, 0), take(0), send(1, -1, 0), take(1))
		// one number ahead, twice
		program(send(0, 5, 0), send(1, 5, 0), take(0), take(1))
		// just within
		program(send(0, 127, far), take(0), recv)
		// long ago
		program(send(0, -127, far), take(0), recv)
		// holes
		program(send(0, 100, far), send(1, 101, far|end), take(0), take(1), send(0, 0, end), take(0), recv)
		// the number that is never sent
		program(send(0, 0, top), take(0))
		// a reserved bit
		program(send(0, 0, reserved), take(0))
		// the user's immediate is anything
		program(recv, send(0, 0, end|raw), wire(0, 0xffffffff), take(0), take(0))
		// the user's immediate comes last
		program(recv, send(0, 0, end|raw), send(1, 1, end), take(1), take(0), recv, wire(0, 7), take(0))
		// an immediate announced before the last fragment
		program(send(0, 0, raw), take(0))
		// completions out of order
		program(send(0, 0, 0), send(0, 1, end), late(0), recv, take(0))
		// banked
		program(slices.Repeat(slices.Concat(send(0, 0, end), take(0)), 12), slices.Repeat(recv, 9),
			[]byte{0, 0, 0, 1})
		// bytes as they are on the wire
		program(wire(0, 0), take(0), wire(1, 1<<24), take(1))
	}
	f.Fuzz(func(t *testing.T, shape byte, data []byte) {
		if len(data) > 1024 {
			return // longer programs find nothing new
		}
		z := newArrivals(t, shape)
		for in := (program{data}); len(in.data) > 0; {
			z.step(t, &in)
		}
		z.end(t)
	})
}

// arrivals is a DQPLB receiver whose peer sends anything, and the reference implementation.
type arrivals struct {
	null *verbstest.Null
	q    *VirtualQP
	// by rail: messages that arrived and whose completions were not processed yet; one that is
	// taken out of the middle leaves a hole
	held     [][]verbs.WC
	ref      reference
	recvs    uint64 // posted
	done     uint64
	notified int // notifications reported
	failed   bool
	out      []WC
}

const (
	arrivalCredits = 4
	arrivalBank    = 3
)

func newArrivals(t *testing.T, shape byte) *arrivals {
	t.Helper()
	z := &arrivals{null: verbstest.NewNull(2)}
	var err error
	z.q, err = Open([]verbs.Device{z.null.Device(0), z.null.Device(1)}, Config{
		QPsPerDevice: 1 + int(shape&1), MaxMsgCntPerQP: arrivalCredits, Credits: arrivalCredits,
		MaxBanked: arrivalBank,
	})
	if err != nil {
		t.Fatal(err)
	}
	card, err := z.q.Card()
	if err != nil {
		t.Fatal(err)
	}
	card.RawImm = shape&2 != 0
	if err := z.q.Connect(Elsewhere(card)); err != nil {
		t.Fatal(err)
	}
	if shape&4 != 0 {
		z.q.recv.order = dqplb.NewReceiver(dqplb.Mod-3, card.RawImm) // the numbers wrap soon
	}
	z.held = make([][]verbs.WC, len(z.q.send.rails.data))
	z.ref = reference{next: z.q.recv.order.Next(), rawImm: card.RawImm,
		rails: make([]referenceRail, len(z.q.send.rails.data))}
	z.ref.waiting = map[uint32]referenceMessage{}
	return z
}

func (z *arrivals) step(t *testing.T, in *program) {
	op := in.byte()
	if op%4 == 2 {
		if n, err := z.q.PostRecv(RecvWR{ID: z.recvs}); n == 1 {
			z.recvs++
		} else if !errors.Is(err, ErrFailed) || !z.failed {
			t.Fatal(err)
		}
		z.process(t, 0)
		return
	}
	at := int(in.byte()) % len(z.q.send.rails.data)
	switch op % 4 {
	case 0:
		distance, flags := int32(int8(in.byte())), in.byte()
		if flags&16 != 0 {
			distance <<= 11
		}
		v := (z.ref.next + uint32(distance+dqplb.Mod)%dqplb.Mod) % dqplb.Mod
		if flags&8 != 0 {
			v = dqplb.Mod
		}
		if flags&1 != 0 {
			v |= 1 << 31
		}
		if flags&2 != 0 {
			v |= 1 << 30
		}
		if flags&4 != 0 {
			v |= 1 << (24 + flags>>6)
		}
		z.arrive(t, at, dqplb.Swap(v), uint32(in.byte()))
	case 1:
		z.take(t, at, int(in.byte()))
	case 3:
		z.arrive(t, at, in.uint32(), 1<<31)
	}
}

// arrive makes a message consume a credit, if there is one.
func (z *arrivals) arrive(t *testing.T, at int, imm, bytes uint32) {
	rl := z.q.send.rails.data[at]
	if !verbstest.CompleteRecv(rl.qp, imm, bytes, verbs.WCRecvRDMAWithImm) {
		return
	}
	var wcs [1]verbs.WC
	if n, err := z.q.cq.cqs[rl.device].cq.Poll(wcs[:]); n != 1 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if wcs[0].Status == verbs.StatusSuccess { // otherwise the rail has ended
		z.held[at] = append(z.held[at], wcs[0])
		z.ref.rails[at].messages = append(z.ref.rails[at].messages,
			referenceMessage{imm: imm, bytes: uint64(bytes)})
	}
}

// take processes the completion of one of the messages that arrived on a rail.
func (z *arrivals) take(t *testing.T, at, which int) {
	held := z.held[at]
	if len(held) == 0 {
		return
	}
	which %= len(held)
	wc := held[which]
	z.held[at] = slices.Delete(held, which, which+1)
	z.ref.take(at, which)
	z.process(t, z.q.send.rails.data[at].device, wc)
}

// process processes completions and compares the result with the reference.
func (z *arrivals) process(t *testing.T, dev uint8, wcs ...verbs.WC) {
	z.out = z.q.cq.ProcessCompletions(z.out[:0], verbs.DeviceID(dev), wcs...)
	z.failed = z.failed || z.ref.failed
	for _, wc := range z.out {
		z.reported(t, wc)
	}
	if z.failed != errors.Is(z.q.Err(), ErrProtocol) || !z.failed && z.q.Err() != nil {
		t.Fatalf("the reference says failed %t, error is %v", z.failed, z.q.Err())
	}
	if want := min(len(z.ref.notes), int(z.recvs)); z.notified != want {
		t.Fatalf("%d notifications reported, want %d of %d", z.notified, want, len(z.ref.notes))
	}
	s := z.q.Stats()
	if !z.failed && (s.OutOfOrder != len(z.ref.waiting) || s.Banked != len(z.ref.notes)-z.notified) {
		t.Fatalf("%d out of order and %d banked, want %d and %d", s.OutOfOrder, s.Banked, len(z.ref.waiting),
			len(z.ref.notes)-z.notified)
	}
	// Credits are withheld from a peer that must not send more.
	if s.Banked > arrivalBank+arrivalCredits*len(z.q.send.rails.data) || s.StaleEvents != 0 {
		t.Fatalf("%+v", s)
	}
}

// reported checks a reported receive: each comes once, in order, with the next notification, until
// all later ones are flushed.
func (z *arrivals) reported(t *testing.T, wc WC) {
	if wc.ID != z.done || z.done == z.recvs {
		t.Fatalf("reported %+v, want %d of %d", wc, z.done, z.recvs)
	}
	z.done++
	if wc.Status != verbs.StatusSuccess {
		if wc.Status != verbs.StatusWRFlushErr || !z.failed {
			t.Fatalf("%+v", wc)
		}
		return
	}
	if z.notified == len(z.ref.notes) || z.notified != int(wc.ID) {
		t.Fatalf("%+v is notification %d of %d", wc, z.notified, len(z.ref.notes))
	}
	if want := z.ref.notes[z.notified]; wc.ByteLen != want.bytes || wc.Imm != want.imm ||
		wc.Flags&verbs.WCWithImm == 0 {
		t.Fatalf("%+v, want %+v", wc, want)
	}
	z.notified++
}

// end closes everything. Receives that still wait for a notification are flushed.
func (z *arrivals) end(t *testing.T) {
	z.process(t, 0)
	z.failed = true
	if err := z.q.Close(); err != nil {
		t.Fatal(err)
	}
	for wc, err := range z.q.cq.Completions() {
		if err != nil {
			break
		}
		z.reported(t, wc)
	}
	if z.done != z.recvs {
		t.Fatalf("%d of %d receives were reported", z.done, z.recvs)
	}
	if err := z.null.Close(); err != nil {
		t.Fatalf("leak: %v", err)
	}
}

// reference puts numbered messages in order, simply and slowly.
type reference struct {
	next    uint32
	rawImm  bool
	rails   []referenceRail
	waiting map[uint32]referenceMessage // by number
	bytes   uint64
	notes   []referenceMessage
	failed  bool
}

type referenceRail struct {
	messages []referenceMessage // not handled yet, the oldest first
	whose    *referenceMessage  // the message whose immediate comes next
}

type referenceMessage struct {
	imm    uint32
	bytes  uint64
	number uint32
	end    bool
	taken  bool // its completion was processed
}

// take processes one completion of a rail and handles the messages that have all earlier ones
// before them. which counts only messages whose completion was not processed.
func (r *reference) take(at, which int) {
	rail := &r.rails[at]
	for i := range rail.messages {
		if m := &rail.messages[i]; !m.taken {
			if which == 0 {
				m.taken = true
				break
			}
			which--
		}
	}
	for len(rail.messages) > 0 && rail.messages[0].taken {
		m := rail.messages[0]
		rail.messages = rail.messages[1:]
		if !r.failed {
			r.handle(rail, m)
		}
	}
}

func (r *reference) handle(rail *referenceRail, m referenceMessage) {
	if whose := rail.whose; whose != nil {
		rail.whose = nil
		whose.imm = m.imm
		r.admit(*whose)
		return
	}
	v := dqplb.Swap(m.imm)
	m.imm, m.number, m.end = 0, v&0xffffff, v>>31 != 0
	announces := v>>30&1 != 0
	if m.number == 0xffffff || v>>24&0x3f != 0 || announces && (!r.rawImm || !m.end) {
		r.failed = true
		return
	}
	if announces {
		rail.whose = &m
		return
	}
	r.admit(m)
}

func (r *reference) admit(m referenceMessage) {
	ahead := (int64(m.number) - int64(r.next) + dqplb.Mod) % dqplb.Mod
	if _, twice := r.waiting[m.number]; twice || ahead >= dqplb.MaxHeld {
		r.failed = true
		return
	}
	r.waiting[m.number] = m
	for {
		m, there := r.waiting[r.next]
		if !there {
			return
		}
		delete(r.waiting, r.next)
		r.next = (r.next + 1) % dqplb.Mod
		r.bytes += m.bytes
		if m.end {
			r.notes = append(r.notes, referenceMessage{imm: m.imm, bytes: r.bytes})
			r.bytes = 0
		}
	}
}
