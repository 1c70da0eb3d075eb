package shmem

import "unsafe"

// This file holds all uses of unsafe in this package. Heaps are aligned to pages, blocks to
// blockAlign, and offsets of elements are multiples of their size, so every view is aligned. An
// Element has no pointers.

// sizeOf returns the size of an element in bytes.
func sizeOf[T Element]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// bytesOf returns the memory of s.
func bytesOf[T Element](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*sizeOf[T]())
}

// viewOf returns b as elements. Its length must be a multiple of their size, and its address
// aligned to it.
func viewOf[T Element](b []byte) []T {
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/sizeOf[T]())
}

// within reports whether all of b is in the heap, and returns its offset.
func within(heap, b []byte) (off uint64, ok bool) {
	start, at := uintptr(unsafe.Pointer(unsafe.SliceData(heap))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if at < start || at-start > uintptr(len(heap)) || uintptr(len(b)) > uintptr(len(heap))-(at-start) {
		return 0, false
	}
	return uint64(at - start), true
}

// overlap reports whether two pieces of memory have bytes in common.
func overlap(a, b []byte) bool {
	x, y := uintptr(unsafe.Pointer(unsafe.SliceData(a))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return len(a) != 0 && len(b) != 0 && x < y+uintptr(len(b)) && y < x+uintptr(len(a))
}

// word64 returns the word at an offset of the heap, a multiple of eight.
func word64(heap []byte, off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(heap[off : off+8])))
}

// word32 returns the word at an offset of the heap, a multiple of four.
func word32(heap []byte, off uint64) *uint32 {
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(heap[off : off+4])))
}
