package dqplb

// Inbox puts the arrivals of one rail back into the order in which its receives were posted, which
// is the order in which the peer sent them. Providers report them in that order anyway, and then
// nothing is kept here. The inbox also keeps a message whose user immediate has not arrived.
//
// Each receive that the rail keeps posted, a credit, has a count: 0, 1, 2, ...
//
// Invariant: next is the count of the oldest credit not yet handled; slot c&mask holds the arrival
// on credit c, for next <= c <= next+mask; the slot of next itself is free, or its credit has
// failed; kept counts the slots that are taken. There are mask+1 slots from when the first is
// needed.
type Inbox struct {
	next  uint64
	mask  uint64
	kept  int
	slots []credit
	// pending is a numbered message whose user immediate must come next on this rail.
	pending    arrival
	pendingNum uint32
	awaitsImm  bool
}

// credit is a message that arrived on a receive ahead of its turn.
type credit struct {
	imm, bytes uint32
	taken      bool
	failed     bool // nothing arrived on it, and nothing will on later ones: the queue pair is in ERR
}

// NewInbox makes an inbox for a rail that has up to credits receives posted.
func NewInbox(credits int) Inbox {
	size := 1
	for size < credits {
		size *= 2
	}
	return Inbox{mask: uint64(size - 1)}
}

// Room returns how many more credits may be posted; posted is the number of those posted so far.
func (b *Inbox) Room(posted uint64) int { return int(b.next + b.mask + 1 - posted) }

// AwaitsImm reports whether the next message of the rail is the user's immediate of the one before.
func (b *Inbox) AwaitsImm() bool { return b.awaitsImm }

// Resolve finds the count of the posted credit that has the given low bits; mask has all of these
// bits set. It reports false if there is none, or if a message has already arrived on it.
func (b *Inbox) Resolve(low, mask, posted uint64) (c uint64, ok bool) {
	c = b.next + (low-b.next)&mask
	return c, c < posted && c-b.next <= b.mask && (b.kept == 0 || !b.slots[c&b.mask].taken)
}

// Put handles the message on credit c, which Resolve has found. It reports true if the message is
// the next one of the rail: pass it to [Receiver.Arrive], and then call Pop for more. Otherwise the
// message is kept.
func (b *Inbox) Put(c uint64, imm, bytes uint32) bool {
	if c != b.next {
		b.keep(c, credit{imm: imm, bytes: bytes, taken: true})
		return false
	}
	b.next++
	return true
}

// Fail handles the failure of credit c, which Resolve has found.
func (b *Inbox) Fail(c uint64) { b.keep(c, credit{taken: true, failed: true}) }

// keep stores the arrival, or the failure, of credit c.
func (b *Inbox) keep(c uint64, v credit) {
	if b.slots == nil {
		b.slots = make([]credit, b.mask+1)
	}
	b.slots[c&b.mask] = v
	b.kept++
}

// Pop returns the next message of the rail if it has arrived ahead of its turn.
func (b *Inbox) Pop() (imm, bytes uint32, ok bool) {
	if b.kept == 0 {
		return 0, 0, false
	}
	slot := &b.slots[b.next&b.mask]
	if !slot.taken || slot.failed {
		return 0, 0, false
	}
	slot.taken = false
	b.kept--
	b.next++
	return slot.imm, slot.bytes, true
}

// DropPending drops a numbered message whose user immediate has not arrived, and never will on this
// rail. It reports whether there was one.
func (b *Inbox) DropPending() (dropped bool) {
	dropped, b.awaitsImm = b.awaitsImm, false
	return dropped
}

// Restart drops everything that has arrived. posted is the number of credits posted so far; the
// next one posted is the next to arrive.
func (b *Inbox) Restart(posted uint64) {
	clear(b.slots)
	*b = Inbox{next: posted, slots: b.slots, mask: b.mask}
}
