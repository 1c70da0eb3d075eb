package shmem

// combiner is how an operation combines b into a, of the same length; nil when it does not fit the
// elements.
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

// Bits are the same whichever way they are grouped: bytes have the operators that a type parameter
// with floats in it lacks.

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
