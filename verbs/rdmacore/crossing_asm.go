//go:build linux && (amd64 || arm64) && !purego

package rdmacore

import "unsafe"

// crossAddr is the address of cross, set in crossing_*.s.
var crossAddr uintptr //nolint:gochecknoglobals // of the assembly

// cgocall is the runtime's entry into C, which calls of cgo and purego use. The runtime names
// purego among those that may link to it, and promises to keep it.
//
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// call calls C: the runtime's call with a stub for three arguments, and nothing else. purego's
// SyscallN does the same with a block of fifty arguments, which it fills, copies to C's registers
// and stack, and clears. It takes twice as long: see the package's documentation.
func (c *crossing) call() uintptr {
	cgocall(crossAddr, unsafe.Pointer(c))
	return c.result
}
