//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file and crossing_asm.go are the package's gate to unsafe. Everything that C reads or writes
// is in mappings made here, which the Go runtime neither moves nor frees. So addresses can be
// numbers, and no Go pointer is ever passed.

// mapping is mapped memory, outside the Go heap.
type mapping struct {
	b    []byte
	next int // offset of the first byte that carve has not handed out
}

// mapMemory maps zeroed memory. flags may ask for huge pages.
func mapMemory(size, flags int) (mapping, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
	return mapping{b: b}, err
}

// unmap returns the memory to the kernel; it must not be used afterwards.
func (m *mapping) unmap() error {
	if m.b == nil {
		return nil
	}
	err := unix.Munmap(m.b)
	m.b = nil
	return err
}

// cacheLine is the alignment of carve, so that two arrays share no cache line.
const cacheLine = 64

// carved returns the bytes of a mapping that carve uses for n values of T.
func carved[T any](n int) int {
	var t T
	return (n*int(unsafe.Sizeof(t)) + cacheLine - 1) &^ (cacheLine - 1)
}

// carve returns n values of T from a mapping, after those carved before. The mapping must be large
// enough.
func carve[T any](m *mapping, n int) []T {
	b := m.b[m.next : m.next+carved[T](n)]
	m.next += len(b)
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// address returns the address of a value in mapped memory, or of memory for a NIC.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// object is a structure that C owns. addr came from C, so the garbage collector knows nothing of
// it.
func object[T any](addr uintptr) *T {
	// This converts the variable, not its value: go vet would take that for arithmetic on a Go
	// pointer.
	return (*T)(*(*unsafe.Pointer)(unsafe.Pointer(&addr)))
}

// goString returns a copy of a string that C owns.
func goString(addr uintptr) string {
	if addr == 0 {
		return ""
	}
	n := 0
	for *object[byte](addr + uintptr(n)) != 0 {
		n++
	}
	return string(unsafe.Slice(object[byte](addr), n))
}

// pointerSize is the size of a C pointer in bytes.
const pointerSize = unsafe.Sizeof(uintptr(0))

// sizeOf returns the size of a T in bytes.
func sizeOf[T any]() int {
	var t T
	return int(unsafe.Sizeof(t))
}
