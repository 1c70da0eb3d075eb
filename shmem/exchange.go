package shmem

import "context"

// exchange sends n bytes of src, from stride*i on, to every PE i, and receives n bytes of each into
// dst, from n*i on. It continues with whichever PE is ready, so that no PE depends on the order in
// which others serve it.
func (p *PE) exchange(ctx context.Context, op string, g tag, dst, src []byte, stride, n int) error {
	copy(dst[n*p.id:n*(p.id+1)], src[stride*p.id:])
	slot := int(p.layout.slot)
	pieces := max((n+slot-1)/slot, 1) // one of no bytes if n is 0
	for i := range p.peers {
		if i != p.id {
			p.peers[i].out, p.peers[i].in = pieces, pieces
		}
	}
	for p.exchanging() {
		if err := p.awaitCollective(ctx, op, nil, func() bool { return p.canExchange() }); err != nil {
			return err
		}
		for d := 1; d < len(p.peers); d++ { // each PE begins with another one
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

// exchanging reports whether any piece has still to be posted or received.
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

// deliver posts the pieces of src that there is room for.
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
