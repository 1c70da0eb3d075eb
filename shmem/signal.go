package shmem

import (
	"context"
	"fmt"

	"ibverbx/internal/collective"
)

// SignalOp is the operation of PutSignal on the signal.
type SignalOp uint8

// The operations on a signal.
const (
	SignalSet SignalOp = iota // store the value
	SignalAdd                 // add the value atomically
)

// String returns the name of the constant.
func (o SignalOp) String() string {
	switch o {
	case SignalSet:
		return "SignalSet"
	case SignalAdd:
		return "SignalAdd"
	}
	return fmt.Sprintf("unknown signal op %d", uint8(o))
}

// PutSignal is Put followed by an update of the first number of sig on the same PE: when the target
// sees the signal, all of the data is in its memory. It returns when you may write to src again.
// The signal may leave only when this PE waits for something: see Config.Background. If some PEs
// set a signal while others add to it, its value is undefined.
func PutSignal[T Element](
	ctx context.Context, pe *PE, dst Sym[T], src []T, sig Sym[uint64], value uint64, op SignalOp, to int,
) error {
	return putSignal(ctx, pe, "put signal", dst, src, sig, value, op, to, false)
}

// PutSignalNBI is PutSignal that does not wait; the rules of [PutNBI] apply to src.
func PutSignalNBI[T Element](
	ctx context.Context, pe *PE, dst Sym[T], src []T, sig Sym[uint64], value uint64, op SignalOp, to int,
) error {
	return putSignal(ctx, pe, "put signal nbi", dst, src, sig, value, op, to, true)
}

// putSignal is PutSignal, or PutSignalNBI if nbi is set.
func putSignal[T Element](
	ctx context.Context, pe *PE, name string, dst Sym[T], src []T, sig Sym[uint64], value uint64, op SignalOp,
	to int, nbi bool,
) error {
	switch {
	case len(src) > dst.n:
		return invalid(name, "src has %d elements, dst %d", len(src), dst.n)
	case sig.n == 0:
		return invalid(name, "sig has no element")
	case op > SignalAdd:
		return invalid(name, "op %d: must be SignalSet or SignalAdd", op)
	}
	b := collective.Bytes(src)
	if _, err := pe.target(name, to, sig.off, 8); err != nil {
		return err
	}
	t, err := pe.target(name, to, dst.off, len(b))
	if err != nil {
		return err
	}
	if nbi {
		err = t.putNBI(ctx, b, dst.off)
	} else {
		err = t.put(ctx, b, dst.off)
	}
	if err == nil {
		err = t.order(ctx)
	}
	switch {
	case err != nil:
	case op == SignalSet:
		err = t.putWord(ctx, sig.off, value)
	default:
		err = t.add(ctx, sig.off, value)
	}
	if err != nil {
		return t.opError(name, err)
	}
	return nil
}
