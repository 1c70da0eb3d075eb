package shmem

import (
	"context"

	"ibverbx"
	"ibverbx/internal/collective"
	"ibverbx/transport"
	"ibverbx/verbs"
)

// Get reads the first len(dst) elements of src on PE from, and returns when they are in dst.
func Get[T Element](ctx context.Context, pe *PE, dst []T, src Sym[T], from int) error {
	const op = "get"
	if len(dst) > src.n {
		return invalid(op, "dst has %d elements, src %d", len(dst), src.n)
	}
	b := collective.Bytes(dst)
	t, err := pe.target(op, from, src.off, len(b))
	if err != nil {
		return err
	}
	if err := t.get(ctx, b, src.off); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// GetNBI is Get that does not wait: the NICs own dst until Quiet returns, and the data is there
// afterwards.
func GetNBI[T Element](ctx context.Context, pe *PE, dst []T, src Sym[T], from int) error {
	const op = "get nbi"
	if len(dst) > src.n {
		return invalid(op, "dst has %d elements, src %d", len(dst), src.n)
	}
	b := collective.Bytes(dst)
	t, err := pe.target(op, from, src.off, len(b))
	if err != nil {
		return err
	}
	if err := t.getNBI(ctx, b, src.off); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// IGet reads n elements of src on PE from, which are srcStride apart, into elements of dst that are
// dstStride apart. Each is a get of its own, one after the other.
func IGet[T Element](
	ctx context.Context, pe *PE, dst []T, src Sym[T], dstStride, srcStride, n, from int,
) error {
	if err := checkStrides("iget", len(dst), src.n, dstStride, srcStride, n); err != nil {
		return err
	}
	for i := range n {
		v, err := G(ctx, pe, src.At(i*srcStride), from)
		if err != nil {
			return err
		}
		dst[i*dstStride] = v
	}
	return nil
}

// G reads the first element of src on PE from.
func G[T Element](ctx context.Context, pe *PE, src Sym[T], from int) (T, error) {
	const op = "g"
	if src.n == 0 {
		return 0, invalid(op, "src has no element")
	}
	t, err := pe.target(op, from, src.off, collective.SizeOf[T]())
	if err != nil {
		return 0, err
	}
	c := pe.getCall()
	c.comp.Init(1, nil)
	b := collective.Bytes(c.word[:])[:collective.SizeOf[T]()]
	if err := t.getBuffered(ctx, &c.comp, b, src.off); err != nil {
		pe.putCall(c)
		return 0, t.opError(op, err)
	}
	if err := pe.worker.Wait(ctx, &c.comp); err != nil {
		if c.comp.Fired() {
			pe.putCall(c)
		}
		return 0, t.opError(op, err)
	}
	v := collective.View[T](b)[0]
	pe.putCall(c)
	return v, nil
}

// get reads into b, and returns when the data has arrived.
func (t *peer) get(ctx context.Context, b []byte, off uint64) error {
	if len(b) == 0 {
		return nil
	}
	p := t.pe
	if at, ok := within(p.heap, b); ok {
		_, err := t.getWait(ctx, p.region.Slice(at, uint64(len(b))), off)
		return err
	}
	if p.cfg.RegisterFrom > 0 && len(b) >= p.cfg.RegisterFrom {
		if mr, err := p.dom.Register(b, verbs.AccessLocalWrite); err == nil {
			ended, err := t.getWait(ctx, mr.All(), off)
			p.closeRegion(mr, ended)
			return err
		}
	}
	c := p.getCall()
	c.comp.Init((len(b)+t.bcopy-1)/t.bcopy, nil)
	for len(b) != 0 {
		n := min(len(b), t.bcopy)
		if err := t.getBuffered(ctx, &c.comp, b[:n], off); err != nil {
			c.comp.Done(err) // pieces in flight count down the rest
		}
		b, off = b[n:], off+uint64(n)
	}
	_, err := p.wait(ctx, c)
	return err
}

// getNBI starts to read into b.
func (t *peer) getNBI(ctx context.Context, b []byte, off uint64) error {
	if len(b) == 0 {
		return nil
	}
	p := t.pe
	if at, ok := within(p.heap, b); ok {
		return t.getZcopy(ctx, nil, p.region.Slice(at, uint64(len(b))), off)
	}
	for len(b) != 0 {
		n := min(len(b), t.bcopy)
		if err := t.getBuffered(ctx, nil, b[:n], off); err != nil {
			return err
		}
		b, off = b[n:], off+uint64(n)
	}
	return nil
}

// getBuffered reads a piece through a registered buffer.
func (t *peer) getBuffered(ctx context.Context, comp *transport.Completion, b []byte, off uint64) error {
	remote := t.heap.Slice(off, uint64(len(b)))
	return t.pe.begin(ctx, func() error {
		_, err := t.ep.GetBcopy(comp, b, remote)
		return err
	})
}

// getZcopy reads into registered memory.
func (t *peer) getZcopy(ctx context.Context, comp *transport.Completion, local ibverbx.Segment,
	off uint64) error {
	remote := t.heap.Slice(off, local.Length)
	return t.pe.begin(ctx, func() error {
		_, err := t.ep.GetZcopy(comp, remote, local)
		return err
	})
}

// getWait reads into registered memory, and returns when the data has arrived. It reports whether
// the operation has ended or never began.
func (t *peer) getWait(ctx context.Context, local ibverbx.Segment, off uint64) (ended bool, err error) {
	p := t.pe
	c := p.getCall()
	c.comp.Init(1, nil)
	if err := t.getZcopy(ctx, &c.comp, local, off); err != nil {
		p.putCall(c)
		return true, err
	}
	return p.wait(ctx, c)
}
