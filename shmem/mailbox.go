package shmem

import (
	"context"
	"sync/atomic"
)

// A mailbox carries the data of collective calls from one PE to another, in pieces. It has two
// slots in the receiver's heap, each with a word that the sender writes behind a fence when the
// slot is full, and a word in the sender's heap in which the receiver counts the pieces that it has
// taken out.
//
// Pieces are numbered across calls, so a PE that is a call ahead does no harm: its next pieces wait
// in the slots, or at their sender. The word of a full slot has the piece's number, modulo 16, and
// the tag of the call.
//
// Invariant: the sender's posted less the receiver's count is 0 to 2, the number of full slots.

// piece returns how many of the left bytes go into the next slot.
func (p *PE) piece(left int) int { return min(left, int(p.layout.slot)) }

// hasRoom reports whether a slot at the peer is free.
func (t *peer) hasRoom() bool {
	return t.posted-atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.taken(t.id))) < 2
}

// post sends a piece. There must be room.
func (t *peer) post(ctx context.Context, op string, g tag, b []byte) error {
	l := &t.pe.layout
	slot := t.posted % 2
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

// postWhenRoom waits for room and posts.
func (t *peer) postWhenRoom(ctx context.Context, op string, g tag, b []byte) error {
	if err := t.pe.awaitCollective(ctx, op, t, func() bool { return t.hasRoom() }); err != nil {
		return err
	}
	return t.post(ctx, op, g, b)
}

// nextWord returns the word of the slot for the next piece.
func (t *peer) nextWord() uint64 {
	return atomic.LoadUint64(word64(t.pe.heap, t.pe.layout.slotWord(t.id, t.received%2)))
}

// hasNext reports whether the next piece has arrived.
func (t *peer) hasNext() bool { return t.nextWord()&tagNumber == (t.received+1)&tagNumber }

// open returns the next piece, of n bytes, which must have arrived. It stays in its slot until
// discard.
func (t *peer) open(ctx context.Context, op string, g tag, n int) ([]byte, error) {
	if theirs := tag(t.nextWord() &^ tagNumber); theirs != g {
		return nil, t.pe.mismatch(ctx, op, t, theirs, g)
	}
	off := t.pe.layout.slotOf(t.id, t.received%2)
	return t.pe.heap[off : off+uint64(n)], nil
}

// openWhenThere waits for the next piece and opens it.
func (t *peer) openWhenThere(ctx context.Context, op string, g tag, n int) ([]byte, error) {
	if err := t.pe.awaitCollective(ctx, op, t, func() bool { return t.hasNext() }); err != nil {
		return nil, err
	}
	return t.open(ctx, op, g, n)
}

// discard returns the slot of the open piece to the sender.
func (t *peer) discard(ctx context.Context, op string) error {
	t.received++
	// An older count that lands late, over a slow rail, would take the slot back.
	if err := t.order(ctx); err != nil {
		return t.opError(op, err)
	}
	if err := t.putWord(ctx, t.pe.layout.taken(t.pe.id), t.received); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// exchange sends n bytes of src, from offset stride*i, to every PE i, and receives n bytes from PE
// i into dst at offset n*i. It continues with whichever PE is ready, so no PE depends on the order
// in which others serve it.
func (p *PE) exchange(ctx context.Context, op string, g tag, dst, src []byte, stride, n int) error {
	copy(dst[n*p.id:n*(p.id+1)], src[stride*p.id:])
	slot := int(p.layout.slot)
	pieces := max((n+slot-1)/slot, 1) // a single empty one if n is 0
	for i := range p.peers {
		if i != p.id {
			p.peers[i].out, p.peers[i].in = pieces, pieces
		}
	}
	for p.exchanging() {
		if err := p.awaitCollective(ctx, op, nil, func() bool { return p.canExchange() }); err != nil {
			return err
		}
		for d := 1; d < len(p.peers); d++ { // each PE begins with a different one
			t := &p.peers[(p.id+d)%len(p.peers)]
			if err := t.deliver(ctx, op, g, src[stride*t.id:][:n], pieces); err != nil {
				return err
			}
			if err := t.collect(ctx, op, g, dst[n*t.id:][:n], pieces); err != nil {
				return err
			}
		}
	}
	return p.flushLocal(ctx, op)
}

// exchanging reports whether any piece is still to be posted or received.
func (p *PE) exchanging() bool {
	for i := range p.peers {
		if t := &p.peers[i]; t.out+t.in != 0 {
			return true
		}
	}
	return false
}

// canExchange reports whether any piece can be posted or has arrived.
func (p *PE) canExchange() bool {
	for i := range p.peers {
		if t := &p.peers[i]; t.out != 0 && t.hasRoom() || t.in != 0 && t.hasNext() {
			return true
		}
	}
	return false
}

// deliver posts as many pieces of src as there is room for.
func (t *peer) deliver(ctx context.Context, op string, g tag, src []byte, pieces int) error {
	for ; t.out != 0 && t.hasRoom(); t.out-- {
		b := src[(pieces-t.out)*int(t.pe.layout.slot):]
		if err := t.post(ctx, op, g, b[:t.pe.piece(len(b))]); err != nil {
			return err
		}
	}
	return nil
}

// collect receives the pieces of dst that have arrived.
func (t *peer) collect(ctx context.Context, op string, g tag, dst []byte, pieces int) error {
	for ; t.in != 0 && t.hasNext(); t.in-- {
		to := dst[(pieces-t.in)*int(t.pe.layout.slot):]
		b, err := t.open(ctx, op, g, t.pe.piece(len(to)))
		if err != nil {
			return err
		}
		copy(to, b)
		if err := t.discard(ctx, op); err != nil {
			return err
		}
	}
	return nil
}
