package shmem

import (
	"context"
	"encoding/binary"

	"ibverbx/internal/collective"
	"ibverbx/internal/errwrap"
	"ibverbx/transport"
)

// FetchAdd adds v to the first word of dst on PE to and returns the value before. See the section
// on atomics in the package comment.
func FetchAdd[T Word](ctx context.Context, pe *PE, dst Sym[T], v T, to int) (T, error) {
	return fetching(ctx, pe, "fetch add", changeAdd, dst, v, 0, to)
}

// Add adds v. On eight bytes it does not wait, and Quiet completes it.
func Add[T Word](ctx context.Context, pe *PE, dst Sym[T], v T, to int) error {
	const op = "add"
	if collective.SizeOf[T]() != 8 {
		_, err := fetching(ctx, pe, op, changeAdd, dst, v, 0, to)
		return err
	}
	t, err := wordOn(pe, op, dst, to)
	if err != nil {
		return err
	}
	if err := t.add(ctx, dst.off, uint64(v)); err != nil {
		return t.opError(op, err)
	}
	return nil
}

// FetchInc adds 1 and returns the value before.
func FetchInc[T Word](ctx context.Context, pe *PE, dst Sym[T], to int) (T, error) {
	return fetching(ctx, pe, "fetch inc", changeAdd, dst, 1, 0, to)
}

// Inc adds 1; see [Add].
func Inc[T Word](ctx context.Context, pe *PE, dst Sym[T], to int) error {
	return Add(ctx, pe, dst, 1, to)
}

// Fetch returns the value.
func Fetch[T Word](ctx context.Context, pe *PE, dst Sym[T], to int) (T, error) {
	const op = "fetch"
	t, err := wordOn(pe, op, dst, to)
	if err != nil {
		return 0, err
	}
	w := place(dst.off, collective.SizeOf[T]())
	old, err := t.fetchAdd(ctx, w.off, 0)
	if err != nil {
		return 0, t.opError(op, err)
	}
	return T(w.get(old)), nil
}

// Set stores v. It waits until the change is done.
func Set[T Word](ctx context.Context, pe *PE, dst Sym[T], v T, to int) error {
	_, err := fetching(ctx, pe, "set", changeSwap, dst, v, 0, to)
	return err
}

// Swap stores v and returns the value before.
func Swap[T Word](ctx context.Context, pe *PE, dst Sym[T], v T, to int) (T, error) {
	return fetching(ctx, pe, "swap", changeSwap, dst, v, 0, to)
}

// CompareSwap stores v if the value is compare, and returns the value before.
func CompareSwap[T Word](ctx context.Context, pe *PE, dst Sym[T], compare, v T, to int) (T, error) {
	return fetching(ctx, pe, "compare swap", changeCompare, dst, v, compare, to)
}

// FetchAnd keeps the bits that are in mask and returns the value before.
func FetchAnd[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) (T, error) {
	return fetching(ctx, pe, "fetch and", changeAnd, dst, mask, 0, to)
}

// FetchOr sets the bits that are in mask and returns the value before.
func FetchOr[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) (T, error) {
	return fetching(ctx, pe, "fetch or", changeOr, dst, mask, 0, to)
}

// FetchXor inverts the bits that are in mask and returns the value before.
func FetchXor[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) (T, error) {
	return fetching(ctx, pe, "fetch xor", changeXor, dst, mask, 0, to)
}

// And keeps the bits that are in mask. It waits until the change is done.
func And[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) error {
	_, err := fetching(ctx, pe, "and", changeAnd, dst, mask, 0, to)
	return err
}

// Or sets the bits that are in mask; see [And].
func Or[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) error {
	_, err := fetching(ctx, pe, "or", changeOr, dst, mask, 0, to)
	return err
}

// Xor inverts the bits that are in mask; see [And].
func Xor[T Word](ctx context.Context, pe *PE, dst Sym[T], mask T, to int) error {
	_, err := fetching(ctx, pe, "xor", changeXor, dst, mask, 0, to)
	return err
}

// Lock waits until this PE alone holds a lock: a symmetric word that is zero at first, of which the
// copy of PE 0 counts. Waiting PEs try again and again, in no order. What the last holder wrote
// before Unlock is visible. Goroutines of a PE share what it holds.
func Lock(ctx context.Context, pe *PE, lock Sym[uint64]) error {
	for looks := 1; ; looks = min(2*looks, 1<<10) {
		if held, err := TryLock(ctx, pe, lock); held || err != nil {
			return err
		}
		left := looks
		err := pe.worker.WaitFor(ctx, pe.cfg.Step, func() bool { left--; return left < 0 })
		if err != nil {
			return opError("lock", err)
		}
	}
}

// TryLock is [Lock] that does not wait for another holder; it reports whether this PE has the lock.
func TryLock(ctx context.Context, pe *PE, lock Sym[uint64]) (bool, error) {
	was, err := fetching(ctx, pe, "lock", changeCompare, lock, uint64(pe.id)+1, 0, 0)
	return err == nil && was == 0, err
}

// Unlock gives up a lock. It calls Quiet first. If this PE does not hold it, the error is
// verbs.ErrInvalid.
func Unlock(ctx context.Context, pe *PE, lock Sym[uint64]) error {
	const op = "unlock"
	if err := pe.quiet(ctx, op); err != nil {
		return err
	}
	mine := uint64(pe.id) + 1
	was, err := fetching(ctx, pe, op, changeCompare, lock, 0, mine, 0)
	if err == nil && was != mine {
		return invalid(op, "the lock is not held by %v", pe)
	}
	return err
}

// change is the operation of an atomic on a word.
type change uint8

const (
	changeAdd change = iota
	changeSwap
	changeCompare
	changeAnd
	changeOr
	changeXor
)

// apply returns the value after the change.
func (c change) apply(old, v, compare uint64) uint64 {
	switch c {
	case changeAdd:
		return old + v
	case changeSwap:
		return v
	case changeAnd:
		return old & v
	case changeOr:
		return old | v
	case changeXor:
		return old ^ v
	}
	if old == compare {
		return v
	}
	return old
}

// wordOn checks the arguments of an atomic.
func wordOn[T Word](pe *PE, op string, dst Sym[T], to int) (*peer, error) {
	if dst.n == 0 {
		return nil, invalid(op, "dst has no element")
	}
	return pe.target(op, to, dst.off, collective.SizeOf[T]())
}

// fetching makes a change and returns the value before.
func fetching[T Word](
	ctx context.Context, pe *PE, op string, c change, dst Sym[T], v, compare T, to int,
) (T, error) {
	t, err := wordOn(pe, op, dst, to)
	if err != nil {
		return 0, err
	}
	w := place(dst.off, collective.SizeOf[T]())
	var old uint64
	switch {
	case w.mask != ^uint64(0), c != changeAdd && c != changeCompare:
		old, err = t.update(ctx, w, c, uint64(v), uint64(compare))
	case c == changeAdd:
		old, err = t.fetchAdd(ctx, w.off, uint64(v))
	default:
		old, err = t.compareSwap(ctx, w.off, uint64(compare), uint64(v))
	}
	if err != nil {
		return 0, t.opError(op, err)
	}
	return T(old), nil
}

// word locates a number of four or eight bytes in the eight bytes that a NIC changes.
type word struct {
	off   uint64 // of the eight bytes in the heap
	shift uint   // position of the number in them, in bits
	mask  uint64 // as many bits as the number has, not shifted
}

// place returns the word of a number of size bytes.
func place(off uint64, size int) word {
	if size == 8 {
		return word{off: off, mask: ^uint64(0)}
	}
	w := word{off: off &^ 7, mask: 1<<32 - 1}
	if second := off&4 != 0; second == littleEndian() {
		w.shift = 32
	}
	return w
}

func littleEndian() bool { return binary.NativeEndian.Uint16([]byte{1, 0}) == 1 }

// get returns the number in the eight bytes.
func (w word) get(all uint64) uint64 { return all >> w.shift & w.mask }

// with returns the eight bytes with the number replaced by v.
func (w word) with(all, v uint64) uint64 { return all&^(w.mask<<w.shift) | (v&w.mask)<<w.shift }

// update makes a change by compare-and-swap and returns the value before. Its first guess is zero;
// if that is wrong, the NIC returns the right value.
func (t *peer) update(ctx context.Context, w word, c change, v, compare uint64) (uint64, error) {
	compare &= w.mask
	for all := uint64(0); ; {
		old := w.get(all)
		was, err := t.compareSwap(ctx, w.off, all, w.with(all, c.apply(old, v, compare)))
		switch {
		case err != nil:
			return 0, err
		case was == all:
			return old, nil
		case c == changeCompare && w.get(was) != compare:
			return w.get(was), nil
		}
		if err := errwrap.ContextErr(ctx); err != nil {
			return 0, err
		}
		all = was
	}
}

// add adds to eight bytes without waiting.
func (t *peer) add(ctx context.Context, off, v uint64) error {
	return t.startAdd(ctx, nil, nil, off, v)
}

// fetchAdd adds to eight bytes and returns the value before.
func (t *peer) fetchAdd(ctx context.Context, off, v uint64) (uint64, error) {
	c := t.pe.getCall()
	c.comp.Init(1, nil)
	return t.pe.fetched(ctx, c, t.startAdd(ctx, &c.comp, &c.old, off, v))
}

// startAdd starts an addition to eight bytes, and stores the value before in old unless it is nil.
func (t *peer) startAdd(ctx context.Context, comp *transport.Completion, old *uint64, off, v uint64) error {
	if err := t.behindFence(ctx); err != nil {
		return err
	}
	remote := t.heap.Slice(off, 8)
	return t.pe.begin(ctx, func() error {
		return t.ep.FetchAdd(comp, old, remote, v)
	})
}

// compareSwap sets eight bytes to swap if they are compare, and returns the value before.
func (t *peer) compareSwap(ctx context.Context, off, compare, swap uint64) (uint64, error) {
	c := t.pe.getCall()
	c.comp.Init(1, nil)
	return t.pe.fetched(ctx, c, t.startCompareSwap(ctx, c, off, compare, swap))
}

// startCompareSwap starts a compare-and-swap.
func (t *peer) startCompareSwap(ctx context.Context, c *call, off, compare, swap uint64) error {
	if err := t.behindFence(ctx); err != nil {
		return err
	}
	remote := t.heap.Slice(off, 8)
	return t.pe.begin(ctx, func() error {
		return t.ep.CompareSwap(&c.comp, &c.old, remote, compare, swap)
	})
}
