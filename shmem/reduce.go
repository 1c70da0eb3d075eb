package shmem

import "context"

// ReduceOp is how Reduce combines two values.
type ReduceOp uint8

// The ways to combine.
const (
	OpSum ReduceOp = iota
	OpProd
	OpMin // of floats what min of Go says
	OpMax
	OpAnd // the bits of integers
	OpOr
	OpXor
)

// String names the operation.
func (o ReduceOp) String() string {
	switch o {
	case OpSum:
		return "sum"
	case OpProd:
		return "prod"
	case OpMin:
		return "min"
	case OpMax:
		return "max"
	case OpAnd:
		return "and"
	case OpOr:
		return "or"
	case OpXor:
		return "xor"
	}
	return "unknown"
}

// Reduce combines the src of all PEs element by element and gives every PE the result in dst, which may be src. Any memory will do. Values
// are combined in an order that depends on the number of PEs alone: every PE has the same bits, in every run. It is collective; all PEs give
// the same length and op.
func Reduce[T Element](ctx context.Context, pe *PE, dst, src []T, op ReduceOp) error {
	combine := combiner[T](op)
	if combine == nil {
		return invalid("reduce", "op %v of these elements", op)
	}
	return reduce(ctx, pe, dst, src, combine)
}

// ReduceFunc is Reduce with a function of the caller's, which must be associative; what it is given first comes from PEs with lower numbers. It must
// not call anything of this package.
func ReduceFunc[T Element](ctx context.Context, pe *PE, dst, src []T, fn func(a, b T) T) error {
	if fn == nil {
		return invalid("reduce", "fn is nil")
	}
	return reduce(ctx, pe, dst, src, func(a, b []T) {
		for i, v := range b {
			a[i] = fn(a[i], v)
		}
	})
}

// reduce combines up a tree, piece by piece, and sends the result down again. combine puts the result into a.
func reduce[T Element](ctx context.Context, pe *PE, dst, src []T, combine func(a, b []T)) error {
	const op = "reduce"
	if len(dst) != len(src) {
		return invalid(op, "dst has %d elements, src %d", len(dst), len(src))
	}
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	copy(dst, src)
	g := newTag(kindReduce, len(bytesOf(dst)))
	tree := pe.tree(0)
	for left := dst; len(left) != 0; {
		n := pe.piece(len(bytesOf(left))) / sizeOf[T]()
		for bit := 1; bit < tree.n; bit *= 2 {
			child, ok := tree.child(bit)
			if !ok {
				break
			}
			t := &pe.peers[child]
			b, err := t.openWhenThere(ctx, op, g, n*sizeOf[T]())
			if err != nil {
				return err
			}
			combine(left[:n], viewOf[T](b))
			if err := t.discard(ctx, op); err != nil {
				return err
			}
		}
		if tree.me != 0 {
			if err := pe.peers[tree.parent()].mailWhenRoom(ctx, op, g, bytesOf(left[:n])); err != nil {
				return err
			}
		}
		left = left[n:]
	}
	if err := pe.broadcast(ctx, op, g, bytesOf(dst), 0); err != nil {
		return err
	}
	return pe.sent(ctx, op)
}
