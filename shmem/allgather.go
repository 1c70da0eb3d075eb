package shmem

import "context"

// AllGather copies the src of all PEs to dst on every PE, in the order of the PEs: len(dst) is
// len(src) times the number of PEs. dst and src may be any memory, and must not overlap. It is
// collective; all PEs pass the same length. Lengths that do not fit each other are
// verbs.ErrInvalid, and end the call of all other PEs with [ErrMismatch].
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
	return pe.exchange(ctx, op, g, bytesOf(dst), b, 0, len(b))
}

// AllToAll sends part i of src to PE i, and receives in part i of dst what PE i has sent: both have
// as many equal parts as there are PEs. dst and src may be any memory, and must not overlap. It is
// collective; all PEs pass the same length. Lengths that do not fit are verbs.ErrInvalid, and end
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
	return pe.exchange(ctx, op, g, bytesOf(dst), b, part, part)
}
