package shmem

import (
	"fmt"
	"sync/atomic"

	"ibverbx/internal/collective"
)

// Element is the type of the elements of symmetric memory: integers, floats and complex numbers of
// a fixed size, and [Float16] and [BFloat16], or a type that is defined on one of them. Complex
// numbers have sums and products only.
type Element = collective.Element

// Float16 is an element of 16 bits, IEEE 754's binary16. Its method Float32 returns the value.
// Reduce combines it in float32 and rounds each result to nearest, ties to even.
//
// A type that you define on it (type half shmem.Float16) is an integer to Reduce, which cannot tell
// it from one that is defined on uint16. An alias (type half = shmem.Float16) is the same type. So
// it is with BFloat16.
type Float16 = collective.Float16

// BFloat16 is the same for the upper half of a float32.
type BFloat16 = collective.BFloat16

// ToFloat16 rounds to nearest, ties to even.
func ToFloat16(v float32) Float16 { return collective.ToFloat16(v) }

// ToBFloat16 rounds to nearest, ties to even.
func ToBFloat16(v float32) BFloat16 { return collective.ToBFloat16(v) }

// Word is the type of the values of atomics and waits: integers of four and of eight bytes.
type Word interface {
	~int32 | ~uint32 | ~int64 | ~uint64
}

// Sym names n elements at the same place of every PE's symmetric heap. It is a small value, like a
// slice, that you may copy and pass around. [Alloc] makes it, and it names the same elements on
// every PE that took part. The zero value names nothing.
//
// The memory is there until [Free]. Use after Free is not detected: the memory may belong to
// another block by then.
type Sym[T Element] struct {
	off uint64 // of the first element in the heap, bytes
	n   int    // elements
}

// Len returns the number of elements.
func (s Sym[T]) Len() int { return s.n }

// Offset returns the offset of the first element in every PE's heap, in bytes; for logs.
func (s Sym[T]) Offset() uint64 { return s.off }

// At names element i. Like indexing a slice, it panics if there is none.
func (s Sym[T]) At(i int) Sym[T] {
	if uint(i) >= uint(s.n) {
		panic(fmt.Sprintf("shmem: element %d of symmetric memory of %d", i, s.n))
	}
	return Sym[T]{off: s.off + uint64(i*collective.SizeOf[T]()), n: 1}
}

// Slice names elements i to j-1. Like slicing a slice, it panics if i or j is out of range.
func (s Sym[T]) Slice(i, j int) Sym[T] {
	if i < 0 || j < i || j > s.n {
		panic(fmt.Sprintf("shmem: slice [%d:%d] of symmetric memory of %d elements", i, j, s.n))
	}
	return Sym[T]{off: s.off + uint64(i*collective.SizeOf[T]()), n: j - i}
}

// Local returns pe's own copy, in place: others can Get what you write to it. The package comment
// says when you may read what others write. Do not use it once pe is closed. Local panics if s is
// not symmetric memory of pe.
func (s Sym[T]) Local(pe *PE) []T {
	if err := pe.inHeap(s.off, s.n*collective.SizeOf[T]()); err != nil {
		panic("shmem: local: " + err.Error())
	}
	return collective.View[T](pe.heap[s.off : s.off+uint64(s.n*collective.SizeOf[T]())])
}

// Load reads the first element of pe's own copy with one atomic access, ordered like those of
// sync/atomic, and does nothing else: in particular it makes no progress. It panics if s names
// nothing.
func Load[T Word](pe *PE, s Sym[T]) T {
	if s.n == 0 {
		panic("shmem: load: no element")
	}
	return load[T](pe, s.off)
}

// load reads a word of pe's heap with one atomic access.
func load[T Word](pe *PE, off uint64) T {
	if collective.SizeOf[T]() == 8 {
		return T(atomic.LoadUint64(word64(pe.heap, off)))
	}
	return T(atomic.LoadUint32(word32(pe.heap, off)))
}

// bytes returns the length of the memory that s names.
func (s Sym[T]) bytes() int { return s.n * collective.SizeOf[T]() }
