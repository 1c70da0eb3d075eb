//go:build linux && (amd64 || arm64) && !purego

package rdmacore

import "unsafe"

// crossAddr is where cross is, in crossing_*.s, which sets it.
var crossAddr uintptr //nolint:gochecknoglobals // of the assembly

// cgocall is the runtime's way into C: what cgo's calls and purego's go through. The runtime names
// purego among those that may link to it, and promises to keep it.
//
//go:linkname cgocall runtime.cgocall
func cgocall(fn uintptr, arg unsafe.Pointer) int32

// call crosses into C: the runtime's call with a stub for three arguments, and nothing else.
// purego's SyscallN does the same with a block of fifty arguments, which it fills, hands to C's
// registers and stack, and empties: an empty poll takes 77 ns with this call and 152 ns with that
// one (BenchmarkEmptyPoll, least of 120 runs on a loaded machine), a write posted and polled 205
// and 379.
func (c *crossing) call() uintptr {
	cgocall(crossAddr, unsafe.Pointer(c))
	return c.result
}
