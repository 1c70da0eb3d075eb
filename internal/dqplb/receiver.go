package dqplb

import "fmt"

// MaxHeld bounds the messages out of order that a receiver holds: 12 bytes each, at most 3 MiB a
// connection. It is well above [MaxInFlight], because a sender's window moves with the
// acknowledgements of NICs, and a receiver may poll one NIC's completion queue long after
// another's.
const MaxHeld = 1 << 18

// Notification reports that a request has arrived completely, and all earlier ones.
type Notification struct {
	Bytes uint64 // bytes of all its messages, including earlier requests that do not notify
	Imm   uint32 // the user's immediate; 0 if the peer sent none
	// Number is that of its last message.
	Number uint32
}

// arrival is one numbered message that has arrived.
type arrival struct {
	bytes uint32
	imm   uint32 // the user's immediate
	state arrivalState
}

type arrivalState uint8

const (
	arrived    arrivalState = 1 << iota // the slot is taken
	arrivedEnd                          // last message of its request
)

// Receiver puts the numbered messages of all rails back in order. Messages beyond the next expected
// number wait in a ring that grows with need up to MaxHeld.
//
// Invariant: next is the lowest number not passed yet; ring[(base+d)%len(ring)] is the message with
// number next+d; len(ring) is a power of two or zero; held counts the slots that are taken.
type Receiver struct {
	next   uint32 // number expected next
	base   uint64 // ring position of next
	ring   []arrival
	bytes  uint64 // of the current request, so far
	held   int    // messages in the ring
	rawImm bool   // the peer may send the user's immediate behind a message
}

// NewReceiver makes a receiver that expects the number first. rawImm says that both ends send the
// user's immediate.
func NewReceiver(first uint32, rawImm bool) Receiver { return Receiver{next: first, rawImm: rawImm} }

// Next returns the number expected next.
func (r *Receiver) Next() uint32 { return r.next }

// Held returns the number of messages that wait for an earlier one.
func (r *Receiver) Held() int { return r.held }

// Arrive handles the next message of a rail, in the order in which the peer sent it there: its
// immediate and its length. due says that n is to be delivered. Then call [Receiver.Take] while
// [Receiver.Ready] returns true, for messages that waited for this one.
//
// An error is a violation of the protocol by the peer, which ends the connection: an impossible
// number, one that arrived twice, or one too far ahead.
func (r *Receiver) Arrive(box *Inbox, imm, bytes uint32) (n Notification, due bool, err error) {
	v := Swap(imm)
	// The usual case, which does not use the ring: the next number, without a user immediate.
	if v&^Last == r.next && !box.awaitsImm {
		n, due = r.advance(arrival{bytes: bytes}, v&Last != 0)
		return n, due, nil
	}
	if box.awaitsImm {
		box.awaitsImm = false
		box.pending.imm = imm
		return r.admit(box.pendingNum, box.pending)
	}
	a, num := arrival{bytes: bytes, state: arrived}, v&numberMask
	if v&Last != 0 {
		a.state |= arrivedEnd
	}
	raw := v&Raw != 0
	if num == Mod || v&reserved != 0 || raw && (!r.rawImm || v&Last == 0) {
		return n, false, fmt.Errorf("immediate 0x%08x is no dqplb number", v)
	}
	if raw {
		box.awaitsImm, box.pending, box.pendingNum = true, a, num
		return n, false, nil
	}
	return r.admit(num, a)
}

// admit puts a message into its place.
func (r *Receiver) admit(num uint32, a arrival) (n Notification, due bool, err error) {
	d := Distance(r.next, num)
	switch {
	case d == 0:
		n, due = r.advance(a, a.state&arrivedEnd != 0)
		return n, due, nil
	case d >= Mod-MaxHeld:
		return n, false, errTwice(num, r.next)
	case d >= MaxHeld:
		return n, false, fmt.Errorf("number %d is too far ahead: expecting %d", num, r.next)
	}
	for int(d) >= len(r.ring) {
		r.grow()
	}
	slot := &r.ring[(r.base+uint64(d))&uint64(len(r.ring)-1)]
	if slot.state != 0 {
		return n, false, errTwice(num, r.next)
	}
	*slot = a
	r.held++
	return n, false, nil
}

func errTwice(num, next uint32) error {
	return fmt.Errorf("number %d came twice: expecting %d", num, next)
}

// advance moves past the message with the next number. The end of a request makes a notification.
func (r *Receiver) advance(a arrival, end bool) (n Notification, due bool) {
	num := r.next
	r.base++
	r.next = following(num)
	r.bytes += uint64(a.bytes)
	if !end {
		return n, false
	}
	n = Notification{Bytes: r.bytes, Imm: a.imm, Number: num}
	r.bytes = 0
	return n, true
}

// Ready reports whether the next message has arrived, so that Take may be called.
func (r *Receiver) Ready() bool {
	return r.held != 0 && r.ring[r.base&uint64(len(r.ring)-1)].state != 0
}

// Take moves past the next message, for which Ready has returned true. due says that n is to be
// delivered.
func (r *Receiver) Take() (n Notification, due bool) {
	slot := &r.ring[r.base&uint64(len(r.ring)-1)]
	a := *slot
	slot.state = 0
	r.held--
	return r.advance(a, a.state&arrivedEnd != 0)
}

func (r *Receiver) grow() {
	ring := make([]arrival, max(64, 2*len(r.ring)))
	for d := range uint64(len(r.ring)) {
		ring[(r.base+d)&uint64(len(ring)-1)] = r.ring[(r.base+d)&uint64(len(r.ring)-1)]
	}
	r.ring = ring
}
