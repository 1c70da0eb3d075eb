package tagged

import (
	"context"

	"ibverbx/internal/collective"
)

// Reductions by a function of the program.

// ReduceFunc is [Reduce] by a function, which must be associative; its first argument comes from
// lower ranks. All ranks must pass the same function, which cannot be checked. It runs in whichever
// goroutine makes progress, and must not call anything of this package. A call allocates a little.
func ReduceFunc[T Element](ctx context.Context, g Group, dst, src []T, fn func(a, b T) T, root int) error {
	return collect(ctx, g, by(call{kind: collective.Reduce, root: root}, fn), dst, src, len(src))
}

// AllReduceFunc is [AllReduce] by a function, as in [ReduceFunc].
func AllReduceFunc[T Element](ctx context.Context, g Group, dst, src []T, fn func(a, b T) T) error {
	return collect(ctx, g, by(call{kind: collective.AllReduce}, fn), dst, src, len(src))
}

// ReduceScatterFunc is [ReduceScatter] by a function, as in [ReduceFunc].
func ReduceScatterFunc[T Element](ctx context.Context, g Group, dst, src []T, fn func(a, b T) T) error {
	return collect(ctx, g, by(call{kind: collective.ReduceScatter}, fn), dst, src, len(dst))
}

// ScanFunc is [Scan] by a function, as in [ReduceFunc].
func ScanFunc[T Element](ctx context.Context, g Group, dst, src []T, fn func(a, b T) T) error {
	return collect(ctx, g, by(call{kind: collective.Scan}, fn), dst, src, len(src))
}

// StartReduceFunc starts [ReduceFunc].
func StartReduceFunc[T Element](g Group, dst, src []T, fn func(a, b T) T, root int) (*Request, error) {
	return start(g, by(call{kind: collective.Reduce, root: root}, fn), dst, src, len(src))
}

// StartAllReduceFunc starts [AllReduceFunc].
func StartAllReduceFunc[T Element](g Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	return start(g, by(call{kind: collective.AllReduce}, fn), dst, src, len(src))
}

// StartReduceScatterFunc starts [ReduceScatterFunc].
func StartReduceScatterFunc[T Element](g Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	return start(g, by(call{kind: collective.ReduceScatter}, fn), dst, src, len(dst))
}

// StartScanFunc starts [ScanFunc].
func StartScanFunc[T Element](g Group, dst, src []T, fn func(a, b T) T) (*Request, error) {
	return start(g, by(call{kind: collective.Scan}, fn), dst, src, len(src))
}

// by makes a reduction one by a function.
func by[T Element](c call, fn func(a, b T) T) call {
	c.op = opFunc
	if fn == nil {
		return c // which is refused
	}
	c.combine = func(_ *flight, to, a, b []byte) {
		sum, x, y := collective.View[T](to), collective.View[T](a), collective.View[T](b)
		for i := range sum {
			sum[i] = fn(x[i], y[i])
		}
	}
	return c
}
