package shmem

import "context"

// Broadcast copies PE root's buf to the buf of every PE. buf may be any memory. It is collective;
// all PEs pass the same length and root. It returns when this PE has the data, whether or not all
// others have it. An invalid root is verbs.ErrInvalid, and ends the call of all other PEs with
// [ErrMismatch].
func Broadcast[T Element](ctx context.Context, pe *PE, buf []T, root int) error {
	const op = "broadcast"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if uint(root) >= uint(pe.Size()) {
		return pe.refuse(ctx, kindBroadcast, invalid(op, "root %d: the numbers are 0 to %d", root,
			pe.Size()-1))
	}
	g, err := pe.call(op, kindBroadcast, shape{n: len(buf), size: sizeOf[T](), param: root})
	if err != nil {
		return err
	}
	if err := pe.broadcast(ctx, op, g, bytesOf(buf), root); err != nil {
		return err
	}
	return pe.flushLocal(ctx, op)
}

// broadcast sends b down the tree, piece by piece; if b is empty, one piece of no bytes.
func (p *PE) broadcast(ctx context.Context, op string, g tag, b []byte, root int) error {
	tree := p.tree(root)
	for more := true; more; more = len(b) != 0 {
		n := p.piece(len(b))
		if tree.me != 0 {
			t := &p.peers[tree.parent()]
			from, err := t.openWhenThere(ctx, op, g, n)
			if err != nil {
				return err
			}
			copy(b, from)
			if err := t.discard(ctx, op); err != nil {
				return err
			}
		}
		for bit := highest(tree.n); bit != 0; bit /= 2 { // the largest subtree first
			child, ok := tree.child(bit)
			if !ok {
				continue
			}
			if err := p.peers[child].postWhenRoom(ctx, op, g, b[:n]); err != nil {
				return err
			}
		}
		b = b[n:]
	}
	return nil
}

// AllGather copies every PE's src to dst on every PE, in the order of the PEs: len(dst) is len(src)
// times the number of PEs. dst and src may be any memory, and must not overlap. It is collective;
// all PEs pass the same length. If the lengths do not fit together, the error is verbs.ErrInvalid,
// and the call of all other PEs ends with [ErrMismatch].
func AllGather[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-gather"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if len(dst) != len(src)*pe.Size() {
		return pe.refuse(ctx, kindAllGather,
			invalid(op, "dst has %d elements: %d for each of %d PEs are %d", len(dst), len(src), pe.Size(),
				len(src)*pe.Size()))
	}
	g, err := pe.call(op, kindAllGather, shape{n: len(src), size: sizeOf[T]()})
	if err != nil {
		return err
	}
	b := bytesOf(src)
	return pe.exchange(ctx, op, g, bytesOf(dst), b, 0, len(b))
}

// AllToAll sends part i of src to PE i and receives part i of dst from PE i. Both have as many
// equal parts as there are PEs. dst and src may be any memory, and must not overlap. It is
// collective; all PEs pass the same length. If a length does not fit, the error is
// verbs.ErrInvalid, and the call of all other PEs ends with [ErrMismatch].
func AllToAll[T Element](ctx context.Context, pe *PE, dst, src []T) error {
	const op = "all-to-all"
	if err := pe.enter(op); err != nil {
		return err
	}
	defer pe.collective.Unlock()
	if len(dst) != len(src) || len(src)%pe.Size() != 0 {
		return pe.refuse(ctx, kindAllToAll,
			invalid(op, "dst has %d elements, src %d: both must have the same multiple of %d, the number "+
				"of PEs", len(dst), len(src), pe.Size()))
	}
	g, err := pe.call(op, kindAllToAll, shape{n: len(src), size: sizeOf[T]()})
	if err != nil {
		return err
	}
	b := bytesOf(src)
	part := len(b) / pe.Size()
	return pe.exchange(ctx, op, g, bytesOf(dst), b, part, part)
}

// ReduceOp is the operation by which Reduce combines two values.
type ReduceOp uint8

// The operations.
const (
	OpSum ReduceOp = iota
	OpProd
	OpMin // Go's min, also of floats
	OpMax // Go's max, also of floats
	OpAnd // integers only, like OpOr and OpXor
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

// Reduce combines every PE's src element by element, and writes the result to dst on every PE. dst
// and src may be any memory, and may be the same. The order in which values are combined depends
// only on the number of PEs, so every PE gets the same bits, in every run. It is collective; all
// PEs pass the same length and op. If dst and src differ in length, or the elements do not have op,
// the error is verbs.ErrInvalid, and the call of all other PEs ends with [ErrMismatch].
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

// paramFunc replaces the op in the tag of a ReduceFunc.
const paramFunc = 1<<16 - 1

// checkReduce returns an error if the arguments of a reduction are wrong.
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

// combineUp combines the values of all PEs below this one in the tree into left, and posts the
// result to the parent.
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

// combiner returns the function that combines b into a, of the same length; nil if the elements do
// not have the operation.
func combiner[T Element](op ReduceOp) func(a, b []T) {
	switch op {
	case OpSum:
		return sumInto[T]
	case OpProd:
		return prodInto[T]
	case OpMin:
		return minInto[T]
	case OpMax:
		return maxInto[T]
	}
	if isFloat[T]() {
		return nil
	}
	switch op {
	case OpAnd:
		return andInto[T]
	case OpOr:
		return orInto[T]
	case OpXor:
		return xorInto[T]
	}
	return nil
}

func isFloat[T Element]() bool {
	one, two := T(1), T(2)
	return one/two != 0
}

func sumInto[T Element](a, b []T) {
	for i, v := range b {
		a[i] += v
	}
}

func prodInto[T Element](a, b []T) {
	for i, v := range b {
		a[i] *= v
	}
}

func minInto[T Element](a, b []T) {
	for i, v := range b {
		a[i] = min(a[i], v)
	}
}

func maxInto[T Element](a, b []T) {
	for i, v := range b {
		a[i] = max(a[i], v)
	}
}

// Bitwise operations give the same result byte by byte. Bytes have these operators, and a type
// parameter that includes floats does not.

func andInto[T Element](a, b []T) {
	x := bytesOf(a)
	for i, v := range bytesOf(b) {
		x[i] &= v
	}
}

func orInto[T Element](a, b []T) {
	x := bytesOf(a)
	for i, v := range bytesOf(b) {
		x[i] |= v
	}
}

func xorInto[T Element](a, b []T) {
	x := bytesOf(a)
	for i, v := range bytesOf(b) {
		x[i] ^= v
	}
}

// tree is a PE's place in a binomial tree of all PEs. Clear the lowest bit of a PE's distance from
// the root to get its parent's; set one bit below it to get a child's.
type tree struct {
	root int // number of the root
	me   int // the PE's distance from the root, counted upwards and around
	n    int // PEs
}

// tree returns this PE's place in the tree below root.
func (p *PE) tree(root int) tree {
	n := len(p.peers)
	return tree{root: root, me: (p.id - root + n) % n, n: n}
}

// parent returns the parent's number; the PE must not be the root.
func (t tree) parent() int { return (t.me&(t.me-1) + t.root) % t.n }

// child returns the number of the child that is bit further from the root, a power of two; ok is
// false if there is none.
func (t tree) child(bit int) (pe int, ok bool) {
	if t.me&bit != 0 || t.me&(bit-1) != 0 || t.me+bit >= t.n {
		return 0, false
	}
	return (t.me + bit + t.root) % t.n, true
}

// highest returns the largest power of two below n; 0 for 1.
func highest(n int) int {
	bit := 0
	for d := 1; d < n; d *= 2 {
		bit = d
	}
	return bit
}
