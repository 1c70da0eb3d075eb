package shmem

import (
	"context"

	"ibverbx/internal/collective"
)

// Cmp is how a wait compares a word of the heap with a value.
type Cmp uint8

// The comparisons: equal, not equal, greater, greater or equal, less, less or equal.
const (
	EQ Cmp = iota
	NE
	GT
	GE
	LT
	LE
)

// String returns Go's operator for the comparison.
func (c Cmp) String() string {
	switch c {
	case EQ:
		return "=="
	case NE:
		return "!="
	case GT:
		return ">"
	case GE:
		return ">="
	case LT:
		return "<"
	case LE:
		return "<="
	}
	return "unknown"
}

// holds reports whether a and b compare as c says.
func holds[T Word](c Cmp, a, b T) bool {
	switch c {
	case EQ:
		return a == b
	case NE:
		return a != b
	case GT:
		return a > b
	case GE:
		return a >= b
	case LT:
		return a < b
	}
	return a <= b
}

// WaitUntil waits until the first word of s in pe's own heap compares with value as cmp says,
// because another PE has changed it. The change is then complete, and so is everything that its
// writer ordered before it (PutSignal, Fence, Quiet). If a PE fails or closes, WaitUntil returns a
// [*PEError], because the change may never come.
//
// Writes by others raise no event, so a wait must look. The goroutine polls for
// Config.Transport.Spin and then sleeps in steps that grow from Config.Step to a millisecond. After
// tens of milliseconds a change is seen 1.2 ms after it was made (median), and the wait takes 4 %
// of a core. To see changes in microseconds, at the cost of a core, set Spin to more than the wait
// takes. Collective calls know who writes and are woken.
func WaitUntil[T Word](ctx context.Context, pe *PE, s Sym[T], cmp Cmp, value T) error {
	return WaitUntilAll(ctx, pe, s.first(), cmp, value)
}

// first names the first element, or nothing if there is none.
func (s Sym[T]) first() Sym[T] { return Sym[T]{off: s.off, n: min(s.n, 1)} }

// WaitUntilAll is WaitUntil for all words of s.
func WaitUntilAll[T Word](ctx context.Context, pe *PE, s Sym[T], cmp Cmp, value T) error {
	const op = "wait until"
	if err := pe.checkWait(op, s.off, s.n, s.bytes(), cmp); err != nil {
		return err
	}
	done := 0 // leading words that have satisfied the comparison once
	return pe.await(ctx, op, func() bool {
		for done < s.n && holds(cmp, load[T](pe, s.off+uint64(done*collective.SizeOf[T]())), value) {
			done++
		}
		return done == s.n
	})
}

// WaitUntilAny is WaitUntil for any word of s; it returns the index of that word, the lowest if
// there are several.
func WaitUntilAny[T Word](ctx context.Context, pe *PE, s Sym[T], cmp Cmp, value T) (int, error) {
	const op = "wait until any"
	if err := pe.checkWait(op, s.off, s.n, s.bytes(), cmp); err != nil {
		return 0, err
	}
	which := -1
	err := pe.await(ctx, op, func() bool {
		which = find(pe, s, cmp, value)
		return which >= 0
	})
	return max(which, 0), err
}

// WaitUntilSome is [WaitUntilAny] that appends the indexes of all such words to some, in order.
func WaitUntilSome[T Word](
	ctx context.Context, pe *PE, s Sym[T], cmp Cmp, value T, some []int,
) ([]int, error) {
	if _, err := WaitUntilAny(ctx, pe, s, cmp, value); err != nil {
		return some, err
	}
	return findAll(pe, s, cmp, value, some), nil
}

// TestSome is [WaitUntilSome] that makes some progress and does not wait.
func TestSome[T Word](pe *PE, s Sym[T], cmp Cmp, value T, some []int) ([]int, error) {
	if err := pe.checkWait("test some", s.off, s.n, s.bytes(), cmp); err != nil {
		return some, err
	}
	pe.worker.Progress()
	return findAll(pe, s, cmp, value, some), nil
}

// findAll appends the indexes of the words that satisfy the comparison.
func findAll[T Word](pe *PE, s Sym[T], cmp Cmp, value T, some []int) []int {
	for i := range s.n {
		if holds(cmp, load[T](pe, s.off+uint64(i*collective.SizeOf[T]())), value) {
			some = append(some, i)
		}
	}
	return some
}

// Test makes some progress and reports whether WaitUntil would return at once.
func Test[T Word](pe *PE, s Sym[T], cmp Cmp, value T) (bool, error) {
	if err := pe.checkWait("test", s.off, s.n, s.bytes(), cmp); err != nil {
		return false, err
	}
	pe.worker.Progress()
	return holds(cmp, load[T](pe, s.off), value), nil
}

// find returns the index of the first word that satisfies the comparison, or -1.
func find[T Word](pe *PE, s Sym[T], cmp Cmp, value T) int {
	for i := range s.n {
		if holds(cmp, load[T](pe, s.off+uint64(i*collective.SizeOf[T]())), value) {
			return i
		}
	}
	return -1
}
