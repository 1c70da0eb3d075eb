package shmem

import "context"

// AllGather gives every PE the src of all, in the order of the PEs: len(dst) is len(src) times the
// number of PEs. Any memory will do, and dst and src must not overlap. It is collective; all PEs
// give the same length. Lengths that do not fit each other are verbs.ErrInvalid, and end the call
// of all other PEs with [ErrMismatch].
func AllGather[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-gather"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if len(dst) != len(src)*pe.PEs() {
		return pe.refuse(ctx, kindAllGather,
			invalid(op, "dst has %d elements: %d for each of %d PEs are %d", len(dst), len(src), pe.PEs(),
				len(src)*pe.PEs()))
	}
	g, err := pe.call(op, kindAllGather, shape{n: len(src), size: sizeOf[T]()})
	if err != nil {
		return err
	}
	b := bytesOf(src)
	return pe.trade(ctx, op, g, bytesOf(dst), b, 0, len(b))
}

// AllToAll sends part i of src to PE i, and gets in part i of dst what PE i has sent: both are as
// many equal parts as there are PEs. Any memory will do, and dst and src must not overlap. It is
// collective; all PEs give the same length. Lengths that do not fit are verbs.ErrInvalid, and end
// the call of all other PEs with [ErrMismatch].
func AllToAll[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-to-all"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if len(dst) != len(src) || len(src)%pe.PEs() != 0 {
		return pe.refuse(ctx, kindAllToAll,
			invalid(op, "dst has %d elements, src %d: both must have the same multiple of %d, the number "+
				"of PEs", len(dst), len(src), pe.PEs()))
	}
	g, err := pe.call(op, kindAllToAll, shape{n: len(src), size: sizeOf[T]()})
	if err != nil {
		return err
	}
	b := bytesOf(src)
	part := len(b) / pe.PEs()
	return pe.trade(ctx, op, g, bytesOf(dst), b, part, part)
}

// trade sends n bytes of src, from stride*i on, to every PE i, and receives n bytes of each into
// dst, from n*i on. Whatever can go on with any PE does, so that nobody waits for the order in
// which others get round to it.
func (p *PE) trade(ctx context.Context, op string, g tag, dst, src []byte, stride, n int) error {
	copy(dst[n*p.id:n*(p.id+1)], src[stride*p.id:])
	slot := int(p.layout.slot)
	pieces := max((n+slot-1)/slot, 1) // an empty one if need be
	for i := range p.peers {
		if i != p.id {
			p.peers[i].out, p.peers[i].in = pieces, pieces
		}
	}
	for p.trading() {
		if err := p.meet(ctx, op, nil, func() bool { return p.canTrade() }); err != nil {
			return err
		}
		for d := 1; d < len(p.peers); d++ { // each begins with another one
			t := &p.peers[(p.id+d)%len(p.peers)]
			if err := t.deliver(ctx, op, g, src[stride*t.id:][:n], pieces); err != nil {
				return err
			}
			if err := t.collect(ctx, op, g, dst[n*t.id:][:n], pieces); err != nil {
				return err
			}
		}
	}
	return p.sent(ctx, op)
}

// trading reports whether any piece has still to go or to come.
func (p *PE) trading() bool {
	for i := range p.peers {
		if t := &p.peers[i]; t.out+t.in != 0 {
			return true
		}
	}
	return false
}

// canTrade reports whether any piece can go or has come.
func (p *PE) canTrade() bool {
	for i := range p.peers {
		if t := &p.peers[i]; t.out != 0 && t.hasRoom() || t.in != 0 && t.hasMail() {
			return true
		}
	}
	return false
}

// deliver sends the pieces of src that there is room for.
func (t *peer) deliver(ctx context.Context, op string, g tag, src []byte, pieces int) error {
	for ; t.out != 0 && t.hasRoom(); t.out-- {
		b := src[(pieces-t.out)*int(t.pe.layout.slot):]
		if err := t.mail(ctx, op, g, b[:t.pe.piece(len(b))]); err != nil {
			return err
		}
	}
	return nil
}

// collect receives the pieces of dst that have come.
func (t *peer) collect(ctx context.Context, op string, g tag, dst []byte, pieces int) error {
	for ; t.in != 0 && t.hasMail(); t.in-- {
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
