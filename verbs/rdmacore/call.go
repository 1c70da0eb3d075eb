//go:build linux && (amd64 || arm64)

package rdmacore

import (
	"runtime"
	"syscall"

	"github.com/ebitengine/purego"
)

// call crosses into C. It costs twice what a [crossing] does, which the hot paths have, and an
// allocation, since SyscallN lets its arguments escape. The goroutine's thread is C's meanwhile,
// and a call that blocks costs a thread and not a core.
func call(fn uintptr, args ...uintptr) uintptr {
	r, _, _ := purego.SyscallN(fn, args...)
	return r
}

// result is the errno in what a call returned that returns an int: 0, or an errno, or -errno, or
// just -1. Drivers return all of these.
func result(r uintptr) syscall.Errno {
	switch e := int32(r); { // the upper half of the register is anything
	case e == -1:
		return syscall.EIO
	case e < 0:
		return syscall.Errno(-e)
	default:
		return syscall.Errno(e)
	}
}

// status crosses into C for a call that returns an int like that, but means errno by -1.
func (l *library) status(fn uintptr, args ...uintptr) syscall.Errno {
	runtime.LockOSThread() // errno is the thread's
	defer runtime.UnlockOSThread()
	r := call(fn, args...)
	if int32(r) == -1 {
		return l.errno()
	}
	return result(r)
}

// pointer crosses into C for a call that returns a pointer, or NULL with errno set.
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
