package shmem

import (
	"context"

	"ibverbx"
	"ibverbx/internal/collective"
	"ibverbx/transport"
)

// Put writes src to the first len(src) elements of dst on PE to. It returns when you may write to
// src again; Quiet completes it.
func Put[T Element](ctx context.Context, pe *PE, dst Sym[T], src []T, to int) error {
	const op = "put"
	if len(src) > dst.n {
		return invalid(op, "src has %d elements, dst %d", len(src), dst.n)
	}
	b := collective.Bytes(src)
	t, err := pe.target(op, to, dst.off, len(b))
	if err != nil {
		return err
	}
	if err := t.put(ctx, b, dst.off); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// PutNBI is Put that does not wait: if src is in the symmetric heap, do not write to it before
// Quiet returns. Other memory is copied.
func PutNBI[T Element](ctx context.Context, pe *PE, dst Sym[T], src []T, to int) error {
	const op = "put nbi"
	if len(src) > dst.n {
		return invalid(op, "src has %d elements, dst %d", len(src), dst.n)
	}
	b := collective.Bytes(src)
	t, err := pe.target(op, to, dst.off, len(b))
	if err != nil {
		return err
	}
	if err := t.putNBI(ctx, b, dst.off); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// IPut writes n elements of src, which are srcStride apart, to elements of dst on PE to that are
// dstStride apart. Each is a put of its own. It returns when you may write to src again; Quiet
// completes it.
func IPut[T Element](
	ctx context.Context, pe *PE, dst Sym[T], src []T, dstStride, srcStride, n, to int,
) error {
	if err := checkStrides("iput", dst.n, len(src), dstStride, srcStride, n); err != nil {
		return err
	}
	for i := range n {
		if err := P(ctx, pe, dst.At(i*dstStride), src[i*srcStride], to); err != nil {
			return err
		}
	}
	return nil
}

// checkStrides checks the arguments of a strided call.
func checkStrides(op string, dst, src, dstStride, srcStride, n int) error {
	if dstStride < 1 || srcStride < 1 || n < 0 {
		return invalid(op, "%d elements with strides %d and %d: strides are 1 or more", n, dstStride,
			srcStride)
	}
	if n > 0 && (n-1 >= (dst+dstStride-1)/dstStride || n-1 >= (src+srcStride-1)/srcStride) {
		return invalid(op, "%d elements with strides %d of dst, which has %d, and %d of src, which has %d", n,
			dstStride, dst, srcStride, src)
	}
	return nil
}

// P writes one value to the first element of dst on PE to.
func P[T Element](ctx context.Context, pe *PE, dst Sym[T], v T, to int) error {
	const op = "p"
	if dst.n == 0 {
		return invalid(op, "dst has no element")
	}
	t, err := pe.target(op, to, dst.off, collective.SizeOf[T]())
	if err != nil {
		return err
	}
	c := pe.getCall()
	b := collective.Bytes(c.word[:])[:collective.SizeOf[T]()]
	collective.View[T](b)[0] = v
	err = t.putShort(ctx, b, dst.off)
	pe.putCall(c)
	if err != nil {
		return t.opError(op, err)
	}
	return nil
}

// put writes b, and returns when b may be changed again.
func (t *peer) put(ctx context.Context, b []byte, off uint64) error {
	if len(b) <= t.bcopy {
		return t.putCopy(ctx, b, off)
	}
	p := t.pe
	if at, ok := within(p.heap, b); ok {
		_, err := t.putWait(ctx, p.region.Slice(at, uint64(len(b))), off)
		return err
	}
	if p.cfg.RegisterFrom > 0 && len(b) >= p.cfg.RegisterFrom {
		if mr, err := p.dom.Register(b, 0); err == nil {
			ended, err := t.putWait(ctx, mr.All(), off)
			p.closeRegion(mr, ended)
			return err
		}
	}
	return t.putCopy(ctx, b, off)
}

// putNBI starts to write b. If b is in the heap, it must not change before Quiet returns.
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

// putShort writes a copy of b, which is not longer than short.
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

// putWait writes from registered memory, and returns when the memory may be changed again. It
// reports whether the operation has ended or never began.
func (t *peer) putWait(ctx context.Context, local ibverbx.Segment, off uint64) (ended bool, err error) {
	p := t.pe
	c := p.getCall()
	c.comp.Init(1, nil)
	if err := t.putZcopy(ctx, &c.comp, local, off); err != nil {
		p.putCall(c)
		return true, err
	}
	return p.wait(ctx, c)
}

// putWord writes one of the package's own words, and wakes the peer if it sleeps.
func (t *peer) putWord(ctx context.Context, off, v uint64) error {
	err := t.putOwnWord(ctx, off, v)
	if err == nil {
		t.wake(ctx)
	}
	return err
}

// putOwnWord writes one of the package's own words.
func (t *peer) putOwnWord(ctx context.Context, off, v uint64) error {
	c := t.pe.getCall()
	c.word[0] = v
	err := t.putShort(ctx, collective.Bytes(c.word[:]), off)
	t.pe.putCall(c)
	return err
}
