package roce

import "unsafe"

// wordOf is the first eight bytes of b, which a NIC may change.
func wordOf(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(unsafe.SliceData(b))) }
