package shmem

import (
	"context"

	"ibverbx"
	"ibverbx/transport"
)

// Put writes src to the first len(src) elements of dst on PE to. It returns when src can be written
// to again; the data arrives by Quiet.
func Put[T Element](ctx context.Context, pe *PE, dst Sym[T], src []T, to int) error {
	const op = "put"
	if len(src) > dst.n {
		return invalid(op, "src has %d elements, dst %d", len(src), dst.n)
	}
	b := bytesOf(src)
	t, err := pe.target(op, to, dst.off, len(b))
	if err != nil {
		return err
	}
	if err := t.put(ctx, b, dst.off); err != nil {
		return t.told(op, err)
	}
	return nil
}

// PutNBI is Put that only initiates: src must not be written to before Quiet, as far as it lies in
// the symmetric heap. Memory elsewhere is copied.
func PutNBI[T Element](ctx context.Context, pe *PE, dst Sym[T], src []T, to int) error {
	const op = "put nbi"
	if len(src) > dst.n {
		return invalid(op, "src has %d elements, dst %d", len(src), dst.n)
	}
	b := bytesOf(src)
	t, err := pe.target(op, to, dst.off, len(b))
	if err != nil {
		return err
	}
	if err := t.putNBI(ctx, b, dst.off); err != nil {
		return t.told(op, err)
	}
	return nil
}

// P writes one value to the first element of dst on PE to.
func P[T Element](ctx context.Context, pe *PE, dst Sym[T], v T, to int) error {
	const op = "p"
	if dst.n == 0 {
		return invalid(op, "dst has no element")
	}
	t, err := pe.target(op, to, dst.off, sizeOf[T]())
	if err != nil {
		return err
	}
	c := pe.take()
	b := bytesOf(c.word[:])[:sizeOf[T]()]
	viewOf[T](b)[0] = v
	err = t.putShort(ctx, b, dst.off)
	pe.give(c)
	if err != nil {
		return t.told(op, err)
	}
	return nil
}

// put writes b, and returns when that can be written to again.
func (t *peer) put(ctx context.Context, b []byte, off uint64) error {
	if len(b) <= t.bcopy {
		return t.putCopy(ctx, b, off)
	}
	p := t.pe
	if at, ok := within(p.heap, b); ok {
		return t.putWait(ctx, p.region.Slice(at, uint64(len(b))), off)
	}
	if p.cfg.RegisterFrom > 0 && len(b) >= p.cfg.RegisterFrom {
		if mr, err := p.dom.Register(b, 0); err == nil {
			return p.lend(mr, t.putWait(ctx, mr.All(), off))
		}
	}
	return t.putCopy(ctx, b, off)
}

// putNBI writes b, which is left alone until Quiet if it lies in the heap.
func (t *peer) putNBI(ctx context.Context, b []byte, off uint64) error {
	if len(b) > t.short {
		if at, ok := within(t.pe.heap, b); ok {
			return t.putZcopy(ctx, nil, t.pe.region.Slice(at, uint64(len(b))), off)
		}
	}
	return t.putCopy(ctx, b, off)
}

// putCopy writes a copy of b, in pieces.
func (t *peer) putCopy(ctx context.Context, b []byte, off uint64) error {
	for len(b) > t.short {
		n := min(len(b), t.bcopy)
		if err := t.putBuffered(ctx, b[:n], off); err != nil {
			return err
		}
		b, off = b[n:], off+uint64(n)
	}
	return t.putShort(ctx, b, off)
}

func (t *peer) putShort(ctx context.Context, b []byte, off uint64) error {
	if len(b) == 0 {
		return nil
	}
	if err := t.behindFence(ctx); err != nil {
		return err
	}
	remote := t.heap.Slice(off, uint64(len(b)))
	return t.pe.begin(ctx, func() error { return t.ep.PutShort(b, remote) })
}

// putBuffered writes a piece through a registered buffer.
func (t *peer) putBuffered(ctx context.Context, b []byte, off uint64) error {
	if err := t.behindFence(ctx); err != nil {
		return err
	}
	remote := t.heap.Slice(off, uint64(len(b)))
	return t.pe.begin(ctx, func() error {
		_, err := t.ep.PutBcopy(func(dst []byte) int { return copy(dst, b) }, remote)
		return err
	})
}

// putZcopy writes from registered memory.
func (t *peer) putZcopy(ctx context.Context, comp *transport.Completion, local ibverbx.Segment,
	off uint64) error {
	if err := t.behindFence(ctx); err != nil {
		return err
	}
	remote := t.heap.Slice(off, local.Length)
	return t.pe.begin(ctx, func() error {
		_, err := t.ep.PutZcopy(comp, remote, local)
		return err
	})
}

// putWait writes from registered memory and waits until that can be written to again.
func (t *peer) putWait(ctx context.Context, local ibverbx.Segment, off uint64) error {
	p := t.pe
	c := p.take()
	c.comp.Init(1, nil)
	if err := t.putZcopy(ctx, &c.comp, local, off); err != nil {
		p.give(c)
		return err
	}
	return p.wait(ctx, c)
}

// wait waits for a call's operations, and gives it back unless they go on: then the garbage
// collector has it one day.
func (p *PE) wait(ctx context.Context, c *call) error {
	err := p.worker.Wait(ctx, &c.comp)
	if c.comp.Fired() {
		p.give(c)
	}
	return err
}

// lend ends the registration of memory for one call. If NICs still use it, because the call's ctx
// has ended, Quiet or Close does so later.
func (p *PE) lend(mr *ibverbx.MR, err error) error {
	if mr.Close() != nil {
		p.mu.Lock()
		p.orphans = append(p.orphans, mr)
		p.mu.Unlock()
	}
	return err
}

// bury ends what registrations lend could not.
func (p *PE) bury() {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.orphans[:0]
	for _, mr := range p.orphans {
		if mr.Close() != nil {
			left = append(left, mr)
		}
	}
	clear(p.orphans[len(left):])
	p.orphans = left
}
