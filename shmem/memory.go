package shmem

import "unsafe"

// This file holds all uses of unsafe in this package; package collective has views of elements.
// Heaps are aligned to pages, blocks to blockAlign, and offsets of elements are multiples of their
// size, so every view is aligned. An Element has no pointers.

// within reports whether all of b is in the heap, and returns its offset.
func within(heap, b []byte) (off uint64, ok bool) {
	start, at := uintptr(unsafe.Pointer(unsafe.SliceData(heap))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if at < start || at-start > uintptr(len(heap)) || uintptr(len(b)) > uintptr(len(heap))-(at-start) {
		return 0, false
	}
	return uint64(at - start), true
}

// word64 returns the word at an offset of the heap, a multiple of eight.
func word64(heap []byte, off uint64) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(heap[off : off+8])))
}

// word32 returns the word at an offset of the heap, a multiple of four.
func word32(heap []byte, off uint64) *uint32 {
	return (*uint32)(unsafe.Pointer(unsafe.SliceData(heap[off : off+4])))
}
