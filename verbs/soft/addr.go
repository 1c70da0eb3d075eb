package soft

import "unsafe"

// addrOf is the address of buf's first byte. It is the one use of unsafe in this package: the number only
// names memory, which is always reached through the region's slice.
func addrOf(buf []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) }
