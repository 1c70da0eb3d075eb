//go:build linux && (amd64 || arm64)

package rdmacore

// crossing is a call of the hot path: a C function of up to three arguments, and what it returned.
// It is part of what the call is for, and is used under that one's lock.
//
// It lies on the heap, as part of a queue, and never on a goroutine's stack, which C must not see.
//
// Two files have its call: crossing_asm.go, the usual one, and crossing_purego.go for builds with
// the tag purego, which by custom means no assembly.
type crossing struct {
	fn     uintptr
	args   [3]uintptr
	result uintptr
}
