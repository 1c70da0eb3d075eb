//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"runtime"
	"syscall"

	"github.com/ebitengine/purego"
)

// call calls C. It costs twice as much as a [crossing], which the hot paths use, and an allocation,
// since SyscallN lets its arguments escape. A call that blocks occupies the goroutine's thread, but
// no core.
func call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// result returns the errno in the int that a call returned: 0, an errno, -errno, or -1. Drivers
// return all of these.
func result(r uintptr) syscall.Errno {
	switch e := int32(r); { // the upper half of the register is undefined
	case e == -1:
		return syscall.EIO
	case e < 0:
		return syscall.Errno(-e)
	default:
		return syscall.Errno(e)
	}
}

// status calls a C function that returns an int like that, where -1 means that errno is set.
func (l *library) status(fn uintptr, args ...uintptr) syscall.Errno {
	runtime.LockOSThread() // errno belongs to the thread
	defer runtime.UnlockOSThread()
	r := call(fn, args...)
	if int32(r) == -1 {
		return l.errno()
	}
	return result(r)
}

// pointer calls a C function that returns a pointer, or NULL with errno set.
func (l *library) pointer(fn uintptr, args ...uintptr) (uintptr, syscall.Errno) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	*object[int32](call(l.errnoLocation)) = 0
	if p := call(fn, args...); p != 0 {
		return p, 0
	}
	return 0, l.errno()
}

// errno returns the errno of the last call on this thread, which purego does not save on Linux. A
// call that failed without an errno counts as EIO.
func (l *library) errno() syscall.Errno {
	if e := *object[int32](call(l.errnoLocation)); e != 0 {
		return syscall.Errno(e)
	}
	return syscall.EIO
}

// crossing is a call of the hot path: a C function of up to three arguments, and what it returned.
// It is a field of the object that makes the call, and is used under that object's lock.
//
// It is on the heap, as part of a queue, never on a goroutine's stack, which C must not see.
//
// Its method call has two versions: crossing_asm.go, and crossing_purego.go for builds with the tag
// purego, which by convention means no assembly.
type crossing struct {
	fn     uintptr
	args   [3]uintptr
	result uintptr
}
