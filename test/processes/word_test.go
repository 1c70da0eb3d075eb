package processes_test

import "unsafe"

// word64 is the word at an offset of b, which must be aligned. It is the only use of package unsafe
// here: Go has no other way to read atomically what a NIC writes.
func word64(b []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(unsafe.SliceData(b[at : at+8])))
}
