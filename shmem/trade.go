package shmem

import "context"

// AllGather gives every PE the src of all, in the order of the PEs: len(dst) is len(src) times the number of PEs. Any memory will do, and dst and src
// must not overlap. It is collective; all PEs give the same length.
func AllGather[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-gather"
	if len(dst) != len(src)*pe.PEs() {
		return invalid(op, "dst has %d elements: %d for each of %d PEs are %d", len(dst), len(src), pe.PEs(), len(src)*pe.PEs())
	}
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	b := bytesOf(src)
	return pe.trade(ctx, op, kindAllGather, bytesOf(dst), b, 0, len(b))
}

// AllToAll sends part i of src to PE i, and gets in part i of dst what PE i has sent: both are as many equal parts as there are PEs. Any memory will
// do, and dst and src must not overlap. It is collective; all PEs give the same length.
func AllToAll[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-to-all"
	if len(dst) != len(src) || len(src)%pe.PEs() != 0 {
		return invalid(op, "dst has %d elements, src %d: both must have the same multiple of %d, the number of PEs", len(dst), len(src), pe.PEs())
	}
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	b := bytesOf(src)
	part := len(b) / pe.PEs()
	return pe.trade(ctx, op, kindAllToAll, bytesOf(dst), b, part, part)
}

// trade sends n bytes of src, from stride*i on, to every PE i, and receives n bytes of each into dst, from n*i on. Whatever can go on with any PE
// does, so that nobody waits for the order in which others get round to it.
func (p *PE) trade(ctx context.Context, op string, k kind, dst, src []byte, stride, n int) error {
	copy(dst[n*p.id:n*(p.id+1)], src[stride*p.id:])
	g := newTag(k, n)
	for i := range p.peers {
		p.peers[i].out, p.peers[i].in = 0, 0
	}
	for p.trading(n) {
		if err := p.await(ctx, op, nil, func() bool { return p.canTrade(n) }); err != nil {
			return err
		}
		for d := 1; d < len(p.peers); d++ { // each begins with another one
			t := &p.peers[(p.id+d)%len(p.peers)]
			if err := t.deliver(ctx, op, g, src[stride*t.id:], n); err != nil {
				return err
			}
			if err := t.collect(ctx, op, g, dst[n*t.id:], n); err != nil {
				return err
			}
		}
	}
	return p.sent(ctx, op)
}

// trading reports whether any piece has still to go or to come.
func (p *PE) trading(n int) bool {
	for i := range p.peers {
		if t := &p.peers[i]; i != p.id && (t.out != n || t.in != n) {
			return true
		}
	}
	return false
}

// canTrade reports whether any piece can go or has come.
func (p *PE) canTrade(n int) bool {
	for i := range p.peers {
		if t := &p.peers[i]; i != p.id && (t.out != n && t.hasRoom() || t.in != n && t.hasMail()) {
			return true
		}
	}
	return false
}

// deliver sends the pieces that there is room for.
func (t *peer) deliver(ctx context.Context, op string, g tag, src []byte, n int) error {
	for t.out != n && t.hasRoom() {
		size := t.pe.piece(n - t.out)
		if err := t.mail(ctx, op, g, src[t.out:t.out+size]); err != nil {
			return err
		}
		t.out += size
	}
	return nil
}

// collect receives the pieces that have come.
func (t *peer) collect(ctx context.Context, op string, g tag, dst []byte, n int) error {
	for t.in != n && t.hasMail() {
		size := t.pe.piece(n - t.in)
		b, err := t.open(ctx, op, g, size)
		if err != nil {
			return err
		}
		copy(dst[t.in:], b)
		if err := t.discard(ctx, op); err != nil {
			return err
		}
		t.in += size
	}
	return nil
}
