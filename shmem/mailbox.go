package shmem

import (
	"context"
	"sync/atomic"

	"ibverbx/internal/collective"
)

// A mailbox carries the messages of collective calls from one PE to another. It has two slots in
// the receiver's heap, each with a word that the sender writes behind a fence when the slot is
// full, and a word in the sender's heap in which the receiver counts the messages that it has taken
// out.
//
// Messages are numbered across calls, so a PE that is a call ahead does no harm: its next messages
// wait in the slots, or at their sender. The word of a full slot has the message's number, modulo
// 16, and the tag of the call.

// depth is the number of slots of a mailbox.
const depth = 2

// mailboxes are the two between this PE and a peer.
//
// Invariant: counted <= taken <= opened, and opened less counted is 0 to depth. So is posted less
// what the peer has counted: the slots that it may not write to.
type mailboxes struct {
	posted  uint64      // messages sent to the peer so far
	opened  uint64      // messages of the peer that have been looked at so far
	taken   uint64      // messages taken out so far: others that have been opened are in their slots
	counted uint64      // how many of those the peer has been told of
	empty   [depth]bool // the message of a slot has been taken out, but not the one before it
	base    uint64      // opened before the current run
	more    bool        // the current run opens another one
	out     begun       // sends that wait for room
	in      begun       // receives that wait for their message
}

// emptied records that the message of a slot has been taken out, and reports whether the peer must
// be told now. It has another slot for its next call, so it is told of the last message of a call
// together with the one that follows, unless it is more than a message ahead of what it was sent.
func (m *mailboxes) emptied(slot uint64) (tell bool) {
	m.empty[slot] = true
	for ; m.empty[m.taken%depth]; m.taken++ {
		m.empty[m.taken%depth] = false
	}
	all := m.taken-m.counted == depth
	return all || m.taken != m.counted && (m.more || m.opened > m.posted+1)
}

// begun holds steps of the current run that have begun and wait for the peer, the oldest first. No
// more than depth messages in one direction are under way at once.
type begun struct {
	steps [depth]int32
	n     int
}

func (q *begun) add(step int) {
	q.steps[q.n] = int32(step)
	q.n++
}

func (q *begun) take() (step int) {
	step = int(q.steps[0])
	copy(q.steps[:], q.steps[1:])
	q.n--
	return step
}

// waits reports whether a step of this PE waits for the peer.
func (m *mailboxes) waits() bool { return m.out.n+m.in.n != 0 }

// hasRoom reports whether a slot at the peer is free.
func (t *peer) hasRoom() bool {
	return t.posted-atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.taken(t.id))) < depth
}

// post sends a message. There must be room.
func (t *peer) post(ctx context.Context, op string, g tag, b []byte) error {
	l := &t.pe.layout
	slot := t.posted % depth
	t.posted++
	err := t.putCopy(ctx, b, l.slotOf(t.pe.id, slot))
	if err == nil {
		err = t.order(ctx)
	}
	if err == nil {
		err = t.putWord(ctx, l.slotWord(t.pe.id, slot), uint64(g)|t.posted&tagNumber)
	}
	if err != nil {
		return t.opError(op, err)
	}
	return nil
}

// nextWord returns the word of the slot for the next message.
func (t *peer) nextWord() uint64 {
	return atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.slotWord(t.id, t.opened%depth)))
}

// hasNext reports whether the next message has arrived.
func (t *peer) hasNext() bool { return t.nextWord()&tagNumber == (t.opened+1)&tagNumber }

// open returns the slot of the next message, which must have arrived. It stays there until discard.
func (t *peer) open(ctx context.Context, op string, g tag) (slot uint64, err error) {
	if theirs := tag(t.nextWord() &^ tagNumber); theirs != g {
		return 0, t.pe.mismatch(ctx, op, t, t.pe.differ(theirs, t.pe.in))
	}
	slot = t.opened % depth
	t.opened++
	return slot, nil
}

// message returns the memory of a slot.
func (t *peer) message(slot uint64) []byte {
	off := t.pe.layout.slotOf(t.id, slot)
	return t.pe.heap[off : off+t.pe.layout.slot]
}

// landed returns the slot of the message that is in a range of Land.
func (t *peer) landed(r collective.Range, piece int) uint64 {
	return (t.base + uint64(r.Off/piece)) % depth
}

// discard returns the slot of an open message to the sender.
func (t *peer) discard(ctx context.Context, op string, slot uint64) error {
	if !t.emptied(slot) {
		return nil
	}
	t.counted = t.taken
	// An older count that lands late, over a slow rail, would take the slot back.
	if err := t.order(ctx); err != nil {
		return t.opError(op, err)
	}
	if err := t.putWord(ctx, t.pe.layout.taken(t.pe.id), t.counted); err != nil {
		return t.opError(op, err)
	}
	return nil
}
