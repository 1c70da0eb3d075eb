package transport_test

import "unsafe"

// word is eight bytes of memory, at a multiple of eight, as the number that sync/atomic loads.
func word(mem []byte) *uint64 { return (*uint64)(unsafe.Pointer(&mem[:8][0])) }
