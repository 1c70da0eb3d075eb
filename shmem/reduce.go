package shmem

import "context"

// ReduceOp is how Reduce combines two values.
type ReduceOp uint8

// The ways to combine.
const (
	OpSum ReduceOp = iota
	OpProd
	OpMin // Go's min, also of floats
	OpMax // Go's max, also of floats
	OpAnd // of integers only, as OpOr and OpXor
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

// Reduce combines the src of all PEs element by element, and writes the result to dst on every PE.
// dst and src may be any memory, and the same. Values are combined in an order that depends on the
// number of PEs alone: every PE has the same bits, in every run. It is collective; all PEs pass the
// same length and op. A dst and src of different lengths, or an op that these elements do not have,
// are verbs.ErrInvalid, and end the call of all other PEs with [ErrMismatch].
func Reduce[T Element](ctx context.Context, pe *PE, dst, src []T, op ReduceOp) error {
	return reduce(ctx, pe, dst, src, int(op), combiner[T](op))
}

// ReduceFunc is Reduce with the caller's function, which must be associative; its first argument
// comes from PEs with lower numbers. It must not call anything of this package. All PEs must pass
// the same function, which cannot be checked.
func ReduceFunc[T Element](ctx context.Context, pe *PE, dst, src []T, fn func(a, b T) T) error {
	combine := func(a, b []T) {
		for i, v := range b {
			a[i] = fn(a[i], v)
		}
	}
	if fn == nil {
		combine = nil
	}
	return reduce(ctx, pe, dst, src, paramFunc, combine)
}

// paramFunc stands for an op in the tag of a reduction by a function of the caller's.
const paramFunc = 1<<16 - 1

// checkReduce says what is wrong with the arguments of a reduction.
func checkReduce(dst, src, param int, known bool) error {
	const op = "reduce"
	switch {
	case dst != src:
		return invalid(op, "dst has %d elements, src %d", dst, src)
	case known:
		return nil
	case param == paramFunc:
		return invalid(op, "fn is nil")
	}
	return invalid(op, "op %v of these elements", ReduceOp(param))
}

// reduce combines up a tree, piece by piece, and sends the result down again. combine combines b
// into a; param identifies it to the other PEs.
func reduce[T Element](ctx context.Context, pe *PE, dst, src []T, param int, combine func(a, b []T)) error {
	const op = "reduce"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if err := checkReduce(len(dst), len(src), param, combine != nil); err != nil {
		return pe.refuse(ctx, kindReduce, err)
	}
	g, err := pe.call(op, kindReduce, shape{n: len(dst), size: sizeOf[T](), param: param})
	if err != nil {
		return err
	}
	copy(dst, src)
	if err := combineUp(ctx, pe, op, g, dst, combine); err != nil {
		return err
	}
	if err := pe.broadcast(ctx, op, g, bytesOf(dst), 0); err != nil {
		return err
	}
	return pe.flushLocal(ctx, op)
}

// combineUp combines left of all PEs below this one in the tree into left, and posts it to the
// parent.
func combineUp[T Element](ctx context.Context, pe *PE, op string, g tag, left []T,
	combine func(a, b []T)) error {
	tree := pe.tree(0)
	for more := true; more; more = len(left) != 0 {
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
			if err := pe.peers[tree.parent()].postWhenRoom(ctx, op, g, bytesOf(left[:n])); err != nil {
				return err
			}
		}
		left = left[n:]
	}
	return nil
}
