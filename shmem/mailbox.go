package shmem

import (
	"context"
	"sync/atomic"
)

// A mailbox carries what collective calls have to say from one PE to another, in pieces: two slots
// in the receiver's heap, each with a word that the sender writes behind a fence when the slot is
// full, and a word in the sender's heap in which the receiver counts what it has taken out. Pieces
// are numbered through all calls, so that a PE that is a call ahead does no harm: its next pieces
// wait in the slots, or with their sender. The word of a full slot has the piece's number, modulo
// 16, and the tag of the call.

// piece is how many of the bytes that are left travel in one slot.
func (p *PE) piece(left int) int { return min(left, int(p.layout.slot)) }

// hasRoom reports whether a slot at the other PE is free.
func (t *peer) hasRoom() bool {
	return t.mailed-atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.taken(t.id))) < 2
}

// mail sends a piece. There must be room.
func (t *peer) mail(ctx context.Context, op string, g tag, b []byte) error {
	l := &t.pe.layout
	slot := t.mailed % 2
	t.mailed++
	err := t.putCopy(ctx, b, l.slotOf(t.pe.id, slot))
	if err == nil {
		err = t.order(ctx)
	}
	if err == nil {
		err = t.putWord(ctx, l.arrived(t.pe.id, slot), uint64(g)|t.mailed&tagNumber)
	}
	if err != nil {
		return t.told(op, err)
	}
	return nil
}

// mailWhenRoom waits for room first.
func (t *peer) mailWhenRoom(ctx context.Context, op string, g tag, b []byte) error {
	if err := t.pe.meet(ctx, op, t, func() bool { return t.hasRoom() }); err != nil {
		return err
	}
	return t.mail(ctx, op, g, b)
}

// next is the word that tells of the next piece.
func (t *peer) next() uint64 {
	return atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.arrived(t.id, t.received%2)))
}

// hasMail reports whether the next piece has come.
func (t *peer) hasMail() bool { return t.next()&tagNumber == (t.received+1)&tagNumber }

// open gives the next piece, of n bytes, which must have come. It is there until discard.
func (t *peer) open(ctx context.Context, op string, g tag, n int) ([]byte, error) {
	if theirs := tag(t.next() &^ tagNumber); theirs != g {
		return nil, t.pe.mismatch(ctx, op, t, theirs, g)
	}
	off := t.pe.layout.slotOf(t.id, t.received%2)
	return t.pe.heap[off : off+uint64(n)], nil
}

// openWhenThere waits for the piece first.
func (t *peer) openWhenThere(ctx context.Context, op string, g tag, n int) ([]byte, error) {
	if err := t.pe.meet(ctx, op, t, func() bool { return t.hasMail() }); err != nil {
		return nil, err
	}
	return t.open(ctx, op, g, n)
}

// discard gives the slot of the piece back to the sender.
func (t *peer) discard(ctx context.Context, op string) error {
	t.received++
	if err := t.putWord(ctx, t.pe.layout.taken(t.pe.id), t.received); err != nil {
		return t.told(op, err)
	}
	return nil
}
